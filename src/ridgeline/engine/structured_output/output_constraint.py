"""The constraint of a structured output on one choice: which tokens may come next, and whether it is complete."""

from collections.abc import Collection, Sequence
from typing import Self

import llguidance

from ridgeline.core.text import Tokenizer
from ridgeline.engine.structured_output.grammar import CACHE_BYTES, GrammarCache, reason_of
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary, Mask
from ridgeline.engine.structured_output.thinking import ThinkingState, ThinkingTags
from ridgeline.engine.structured_output_params import DeadEnd, GuideStats, StructuredOutputs


class OutputConstraint:
    """The constraint of a structured output on one choice, which follows the choice token by token.

    It never goes back: a preempted choice keeps its tokens, and a failed step adds none.
    """

    timestamps: int | None = None
    """The first timestamp token (SampleRow.timestamps): none, because grammars have no timestamps."""

    def __init__(
        self,
        tables: GrammarVocabulary,
        matcher: llguidance.LLMatcher,
        ends: Collection[int],
        thinking: ThinkingState | None = None,
    ) -> None:
        """Make a constraint for a choice without tokens.

        Args:
            tables: The vocabulary.
            matcher: A matcher at the start of the grammar.
            ends: Tokens that end the text, which are allowed when the grammar is complete. Those of them that are
                control tokens cannot end a reasoning section.
            thinking: The state of the reasoning section, if one may come first.
        """
        self._tables, self._matcher, self._thinking = tables, matcher, thinking
        self._ends = frozenset(ends)
        self._end_mask = tables.mask(ends)
        self._control_ends = tables.mask(self._ends & tables.control)
        self._mask: Mask | None = None
        self._may_end = False  # whether the text may end where the mask applies
        self.complete = False
        """Whether the text is complete by its grammar and nothing may follow."""

    def copy(self) -> Self:
        """Return a constraint with the same grammar at the start of its text, for another choice of the request."""
        thinking = None if self._thinking is None else self._thinking.copy()
        return type(self)(self._tables, self._matcher.deep_copy(), self._ends, thinking)

    def ahead(self) -> Self:
        """Return a copy of the constraint in its present state, to advance with guessed tokens."""
        thinking = None if self._thinking is None else self._thinking.ahead()
        guide = type(self)(self._tables, self._matcher.deep_copy(), self._ends, thinking)
        guide.complete = self.complete
        return guide

    def admits(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may follow one after the other without completing the text."""
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

        The library stops at its own limits (states of a lexer, items of a parser), and a vocabulary may lack the tokens
        that a grammar wants. Neither is a fault of the model.

        Args:
            held: Tokens that may not come yet, though the grammar allows them.
        """
        if (self.allowed() & ~self._tables.mask(held)).any():
            return None
        if self._may_end:
            return DeadEnd(whole=True)
        why = reason_of(self._matcher) or "no token of the vocabulary matches the grammar"
        return DeadEnd(whole=False, reason=f"the structured output cannot continue: {why}")

    def allowed(self) -> Mask:
        """Return the mask of tokens that may come next, uint32 [W], which the caller must not change.

        It is empty if the grammar cannot continue.
        """
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
        """Advance the constraint by a sampled token that does not end the text."""
        self._mask = None
        if self._thinking is not None and self._thinking.take(token):
            return
        self._matcher.consume_token(token)
        self.complete = self._matcher.is_stopped() and self._matcher.is_accepting() and not self._matcher.is_error()


class StructuredOutputManager:
    """The maker of the constraints of a model's requests.

    It prepares the vocabulary at the first request that needs it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: int,
        tags: tuple[str, str] | None = None,
        most_bytes: int = CACHE_BYTES,
    ) -> None:
        """Make a manager without grammars.

        Args:
            tokenizer: The model's tokenizer.
            vocabulary: The number of token ids of the model.
            tags: The tags between which the model writes its reasoning; None for no reasoning.
            most_bytes: Maximum number of bytes of compiled grammars to cache.
        """
        self._tokenizer, self._vocabulary, self._literals, self._most = tokenizer, vocabulary, tags, most_bytes
        self._tables: GrammarVocabulary | None = None
        self._tags: ThinkingTags | None = None
        self._cache: GrammarCache | None = None

    def constraint_for(
        self, outputs: StructuredOutputs, prompt: Sequence[int], ends: Collection[int]
    ) -> OutputConstraint:
        """Return a constraint for the response to a prompt.

        Args:
            outputs: The format of the response.
            prompt: The token ids of the prompt, which may have opened a reasoning section.
            ends: Token ids that end the text.

        Raises:
            ValueError: If the format cannot be compiled.
        """
        if self._tables is None or self._cache is None:
            self._tables = GrammarVocabulary(self._tokenizer, self._vocabulary)
            self._cache = GrammarCache(self._tables, self._most)
            self._tags = None if self._literals is None else ThinkingTags(self._tokenizer, self._literals, self._tables)
        thinking = self._tags.begin(prompt) if self._tags is not None and outputs.after_reasoning else None
        return OutputConstraint(self._tables, self._cache.matcher(outputs), ends, thinking)

    @property
    def stats(self) -> GuideStats:
        """The number of grammars compiled so far, and the bytes of the cached ones."""
        cache = self._cache
        return GuideStats() if cache is None else GuideStats(cache.compiled, cache.nbytes)
