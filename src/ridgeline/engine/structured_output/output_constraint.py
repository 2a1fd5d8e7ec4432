"""A guide: what one choice may say next, and whether it is complete."""

from collections.abc import Collection, Sequence
from typing import Self

import llguidance

from ridgeline.core.text import Tokenizer
from ridgeline.engine.structured_output.grammar import CACHE_BYTES, GrammarCache, reason_of
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary, Mask
from ridgeline.engine.structured_output.thinking import ThinkingState, ThinkingTags
from ridgeline.engine.structured_output_params import DeadEnd, GuideStats, StructuredOutputs


class OutputConstraint:
    """Follows one choice, token by token. It is never taken back: a choice that is preempted keeps what it has said,
    and a step that failed has said nothing.
    """

    timestamps: int | None = None
    """As SampleRow.timestamps: a grammar knows none."""

    def __init__(
        self,
        tables: GrammarVocabulary,
        matcher: llguidance.LLMatcher,
        ends: Collection[int],
        thinking: ThinkingState | None = None,
    ) -> None:
        """ends: tokens that end the text; they are allowed where the grammar is complete. Reasoning is not ended by
        those of them that are control tokens.
        """
        self._tables, self._matcher, self._thinking = tables, matcher, thinking
        self._ends = frozenset(ends)
        self._end_mask = tables.mask(ends)
        self._control_ends = tables.mask(self._ends & tables.control)
        self._mask: Mask | None = None
        self._may_end = False  # whether the text may end at the place of the mask
        self.complete = False
        """Whether the grammar's text is whole and nothing may follow it."""

    def copy(self) -> Self:
        """The same guide for another choice, at the beginning."""
        thinking = None if self._thinking is None else self._thinking.copy()
        return type(self)(self._tables, self._matcher.deep_copy(), self._ends, thinking)

    def ahead(self) -> Self:
        """The same guide as far as it has come, for tokens that are guessed."""
        thinking = None if self._thinking is None else self._thinking.ahead()
        guide = type(self)(self._tables, self._matcher.deep_copy(), self._ends, thinking)
        guide.complete = self.complete
        return guide

    def admits(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may be said one after the other with the text still to go on."""
        guide = self.ahead()
        for count, token in enumerate(tokens):
            if not guide.allowed()[token >> 5] >> (token & 31) & 1:
                return count
            guide.take(token)
            if guide.complete:
                return count
        return len(tokens)

    def dead_end(self, held: Collection[int]) -> DeadEnd | None:
        """Return why no token may come next, or None if one may.

        The library stops at its own limits (states of a lexer, items of a parser), and a vocabulary may not spell what
        a grammar wants. Neither is a fault of the model.

        Args:
            held: Tokens that may not come yet, though the grammar allows them.
        """
        if (self.allowed() & ~self._tables.mask(held)).any():
            return None
        if self._may_end:
            return DeadEnd(whole=True)
        why = reason_of(self._matcher) or "no token of the vocabulary fits"
        return DeadEnd(whole=False, reason=f"the structured output cannot go on: {why}")

    def allowed(self) -> Mask:
        """The tokens that may come next, uint32 [W]; not to be changed. Nothing where the grammar cannot go on."""
        if self._mask is None:
            self._mask = self._allowed()
        return self._mask

    def _allowed(self) -> Mask:
        thinking = self._thinking
        if thinking is not None and thinking.inside:
            return thinking.mask() & ~self._control_ends
        mask, self._may_end = self._tables.next_of(self._matcher)
        if self._may_end:
            mask |= self._end_mask
        if thinking is not None and (thinking.may_open or thinking.after):
            mask |= thinking.mask()
        return mask

    def take(self, token: int) -> None:
        """A token was chosen that is no end of the text."""
        self._mask = None
        if self._thinking is not None and self._thinking.take(token):
            return
        self._matcher.consume_token(token)
        self.complete = self._matcher.is_stopped() and self._matcher.is_accepting() and not self._matcher.is_error()


class StructuredOutputManager:
    """Makes the guides of a model's requests. The tables of its vocabulary are made when the first one is asked for."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: int,
        tags: tuple[str, str] | None = None,
        most_bytes: int = CACHE_BYTES,
    ) -> None:
        """vocabulary: token ids that the model has. tags: what it writes its reasoning between. most_bytes: of compiled
        grammars that are kept.
        """
        self._tokenizer, self._vocabulary, self._literals, self._most = tokenizer, vocabulary, tags, most_bytes
        self._tables: GrammarVocabulary | None = None
        self._tags: ThinkingTags | None = None
        self._cache: GrammarCache | None = None

    def constraint_for(
        self, outputs: StructuredOutputs, prompt: Sequence[int], ends: Collection[int]
    ) -> OutputConstraint:
        """A guide for the answer to a prompt. Raises ValueError for a form that cannot be followed."""
        if self._tables is None or self._cache is None:
            self._tables = GrammarVocabulary(self._tokenizer, self._vocabulary)
            self._cache = GrammarCache(self._tables, self._most)
            self._tags = None if self._literals is None else ThinkingTags(self._tokenizer, self._literals, self._tables)
        thinking = self._tags.begin(prompt) if self._tags is not None and outputs.after_reasoning else None
        return OutputConstraint(self._tables, self._cache.matcher(outputs), ends, thinking)

    @property
    def stats(self) -> GuideStats:
        """What was compiled so far, and what is kept."""
        cache = self._cache
        return GuideStats() if cache is None else GuideStats(cache.compiled, cache.nbytes)
