"""The constraint of a structured output on one choice: which tokens may come next, and whether it is complete."""

from collections.abc import Collection, Sequence
from typing import Self

import llguidance

from ridgeline.core.text import ReasoningFormat, Tokenizer
from ridgeline.engine.structured_output.grammar import CACHE_BYTES, GrammarCache, reason_of
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary, Mask
from ridgeline.engine.structured_output.thinking import ThinkingMarkers, ThinkingState
from ridgeline.engine.structured_output.thinking_budget import ThinkingBudget
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
        matcher: llguidance.LLMatcher | None,
        ends: Collection[int],
        thinking: ThinkingState | None = None,
        budget: ThinkingBudget | None = None,
    ) -> None:
        """Make a constraint for a choice without tokens.

        Args:
            tables: The vocabulary.
            matcher: A matcher at the start of the grammar; None if the response is free.
            ends: Tokens that end the text, which are allowed when the grammar is complete. Those of them that are
                control tokens cannot end a reasoning section.
            thinking: The state of the reasoning section, if one may come first.
            budget: The limit of the reasoning; None for no limit.
        """
        self._tables, self._matcher, self._thinking, self._budget = tables, matcher, thinking, budget
        self._ends = frozenset(ends)
        self._end_mask = tables.mask(ends)
        self._control_ends = tables.mask(self._ends & tables.control)
        self._mask: Mask | None = None
        self._next: tuple[Mask, bool] | None = None  # of the matcher where it stands, which reasoning does not change
        self._may_end = False  # whether the text may end where the mask applies
        self.complete = False
        """Whether the text is complete by its grammar and nothing may follow."""

    def copy(self) -> Self:
        """Return a constraint with the same grammar at the start of its text, for another choice of the request."""
        matcher = None if self._matcher is None else self._matcher.deep_copy()
        thinking = None if self._thinking is None else self._thinking.copy()
        budget = None if self._budget is None else self._budget.copy()
        return type(self)(self._tables, matcher, self._ends, thinking, budget)

    def ahead(self) -> Self:
        """Return a copy of the constraint in its present state, to advance with guessed tokens."""
        guide = self.copy()
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
        found = None if self._matcher is None else reason_of(self._matcher)
        why = found or "no token of the vocabulary matches the grammar"
        return DeadEnd(whole=False, reason=f"the structured output cannot continue: {why}")

    def allowed(self) -> Mask:
        """Return the mask of tokens that may come next, uint32 [W], which the caller must not change.

        It is empty if the grammar cannot continue.
        """
        if self._mask is None:
            self._mask = self._allowed()
        return self._mask

    def _allowed(self) -> Mask:
        forced = None if self._budget is None else self._budget.forced
        if forced is not None:
            self._may_end = False
            return self._tables.mask((forced,))
        if self._matcher is None:
            self._may_end = True
            return self._tables.every | self._end_mask
        thinking = self._thinking
        if thinking is not None and thinking.pending:
            mask, complete = self._tables.next_of(_after(self._matcher, thinking.pending))
        else:
            self._next = self._next or self._tables.next_of(self._matcher)
            mask, complete = self._next
        self._may_end = complete and (thinking is None or thinking.may_respond)
        if thinking is not None and not thinking.has_ended:
            mask = thinking.mask(mask) & ~self._control_ends
        return mask | self._end_mask if self._may_end else mask

    def take(self, token: int) -> None:
        """Advance the constraint by a sampled token that does not end the text."""
        self._mask = None
        if self._budget is not None:
            self._budget.take(token)
        if self._matcher is None:
            return
        taken = (token,) if self._thinking is None else self._thinking.take(token)
        for each in taken:
            self._matcher.consume_token(each)
        if taken:
            self._next = None
            self.complete = self._matcher.is_stopped() and self._matcher.is_accepting() and not self._matcher.is_error()


def _after(matcher: llguidance.LLMatcher, tokens: Sequence[int]) -> llguidance.LLMatcher:
    """Return a copy of a matcher that has taken further tokens, which need not belong to its grammar."""
    matcher = matcher.deep_copy()
    matcher.consume_tokens(list(tokens))
    return matcher


class StructuredOutputManager:
    """The maker of the constraints of a model's requests.

    It prepares the vocabulary at the first request that needs it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: int,
        reasoning: ReasoningFormat | None = None,
        most_bytes: int = CACHE_BYTES,
    ) -> None:
        """Make a manager without grammars.

        Args:
            tokenizer: The model's tokenizer.
            vocabulary: The number of token ids of the model.
            reasoning: The format of the model's reasoning; None for no reasoning.
            most_bytes: Maximum number of bytes of compiled grammars to cache.
        """
        self._tokenizer, self._vocabulary, self._reasoning, self._most = tokenizer, vocabulary, reasoning, most_bytes
        self._tables: GrammarVocabulary | None = None
        self._markers: ThinkingMarkers | None = None
        self._cache: GrammarCache | None = None

    def constraint_for(
        self, outputs: StructuredOutputs | None, prompt: Sequence[int], ends: Collection[int], budget: int | None = None
    ) -> OutputConstraint:
        """Return a constraint for the response to a prompt.

        Args:
            outputs: The format of the response; None for a free one.
            prompt: The token ids of the prompt, which may have opened a reasoning section.
            ends: Token ids that end the text.
            budget: The number of reasoning tokens after which the reasoning ends; None for no limit.

        Raises:
            ValueError: If the format cannot be compiled, or a model without markers of reasoning gets a budget.
        """
        if self._tables is None or self._cache is None:
            self._tables = GrammarVocabulary(self._tokenizer, self._vocabulary)
            self._cache = GrammarCache(self._tables, self._most)
            if self._reasoning is not None:
                self._markers = ThinkingMarkers(self._tokenizer, self._reasoning, self._tables)
        matcher = thinking = None
        if outputs is not None:
            matcher = self._cache.matcher(outputs)
            if self._markers is not None and outputs.after_reasoning:
                thinking = self._markers.begin(prompt, self._tables.next_of(matcher)[0])
        has_reasoning = outputs is None or outputs.after_reasoning  # otherwise the grammar applies to all of the text
        limit = self._budget(prompt, budget, outputs) if budget is not None and has_reasoning else None
        return OutputConstraint(self._tables, matcher, ends, thinking, limit)

    def _budget(self, prompt: Sequence[int], limit: int, outputs: StructuredOutputs | None) -> ThinkingBudget:
        """Return the limit of the reasoning of a response.

        Raises:
            ValueError: If the model has no markers of reasoning.
        """
        if self._reasoning is None:
            raise ValueError("thinking_token_budget needs markers of reasoning, and the model has none: leave it out")
        has_grammar = outputs is not None
        return ThinkingBudget(self._tokenizer, self._reasoning, prompt, limit, keeps_header=has_grammar)

    @property
    def stats(self) -> GuideStats:
        """The number of grammars compiled so far, and the bytes of the cached ones."""
        cache = self._cache
        return GuideStats() if cache is None else GuideStats(cache.compiled, cache.nbytes)
