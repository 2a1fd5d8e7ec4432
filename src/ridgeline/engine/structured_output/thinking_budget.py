"""The limit of a request's reasoning: after some tokens the engine writes the marker that ends the reasoning."""

from collections.abc import Sequence

from ridgeline.core.text import ReasoningFormat, ReasoningSplitter, Tokenizer


class ThinkingBudget:
    """The number of reasoning tokens that one choice may still write, and the tokens that end its reasoning."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reasoning: ReasoningFormat,
        prompt: Sequence[int],
        limit: int,
        *,
        keeps_header: bool = False,
    ) -> None:
        """Start counting the reasoning of a response.

        Args:
            tokenizer: The model's tokenizer.
            reasoning: The format of the model's reasoning.
            prompt: The token ids of the prompt, which can end inside the reasoning.
            limit: The number of reasoning tokens after which the reasoning ends.
            keeps_header: Whether only the first marker is forced, because a grammar dictates what follows it.
        """
        self._tokenizer, self._left = tokenizer, limit
        self._splitter = ReasoningSplitter(tokenizer, prompt, reasoning)
        closing = tokenizer.encode(reasoning.closing, add_special=False)
        self._closing = tuple(closing[:1] if keeps_header and reasoning.header else closing)
        self._written = 0  # tokens of `_closing` that have been forced

    def copy(self) -> "ThinkingBudget":
        """Return a copy of the budget as it is now, for another choice or to advance with guessed tokens."""
        other = object.__new__(ThinkingBudget)
        other._tokenizer, other._left = self._tokenizer, self._left
        other._splitter, other._closing, other._written = self._splitter.copy(), self._closing, self._written
        return other

    @property
    def forced(self) -> int | None:
        """The token that must come next because the budget is spent; None if the model may choose."""
        if self._written or (self._splitter.inside and self._left <= 0):
            return self._closing[self._written]
        return None

    def take(self, token: int) -> None:
        """Record a sampled token."""
        if self.forced is not None:
            self._written = (self._written + 1) % len(self._closing)
        was_inside = self._splitter.inside
        self._splitter.push(token, self._tokenizer.decode([token], skip_special=False))
        self._left -= was_inside and self._splitter.inside
