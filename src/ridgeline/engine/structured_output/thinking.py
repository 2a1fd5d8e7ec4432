"""The end of a model's reasoning in a structured output: reasoning is free, the response after it is not.

As in core/text/reasoning.py, tags that are tokens of the vocabulary count as those tokens. Otherwise several tokens
spell a tag, and only a section that the prompt has opened counts.
"""

from collections.abc import Sequence

from ridgeline.core.text import ReasoningSplitter, Tokenizer
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary, Mask

BREAKS = 2
"""The number of line-break tokens that may stand between a reasoning section and the response; templates write two."""


class ThinkingTags:
    """The tags of a model's reasoning sections, and the token masks that they need."""

    def __init__(self, tokenizer: Tokenizer, literals: tuple[str, str], tables: GrammarVocabulary) -> None:
        self._tokenizer, self._literals, self._tables = tokenizer, literals, tables
        self.tokens = ReasoningSplitter(tokenizer, (), literals).tag_ids
        self.closing = literals[1].encode()
        self.opening_mask = tables.mask(() if self.tokens is None else self.tokens[:1])
        self._unfit = None if self.tokens is not None else [self._spills(at) for at in range(len(self.closing))]

    def begin(self, prompt: Sequence[int]) -> "ThinkingState":
        """Return the reasoning state of a response to this prompt."""
        inside = ReasoningSplitter(self._tokenizer, prompt, self._literals).inside
        return ThinkingState(
            self, self._tables, inside, self.tokens is not None and not inside and not self._closed(prompt)
        )

    def _closed(self, prompt: Sequence[int]) -> bool:
        """Return whether the prompt ends with a closed reasoning section, as in templates that switch reasoning off."""
        assert self.tokens is not None
        blank = (i for i in reversed(prompt) if not 0 <= i < self._tables.rows or self._tables.tokens[i].strip())
        return next(blank, None) == self.tokens[1]

    def unfit(self, matched: int) -> Mask | None:
        """Return the mask of tokens to forbid because they would end the reasoning and also begin the response.

        Args:
            matched: Number of bytes of the closing tag that the text ends with.
        """
        return None if self._unfit is None else self._unfit[matched]

    def _spills(self, matched: int) -> Mask:
        rest = self.closing[matched:]
        ids = []
        for token, data in enumerate(self._tables.tokens):
            end = len(rest) if data.startswith(rest) else data.find(self.closing) + len(self.closing)
            if (data.startswith(rest) or self.closing in data) and data[end:].strip(b"\n"):
                ids.append(token)
        return self._tables.mask(ids)


class ThinkingState:
    """The reasoning state of one choice of a request.

    `inside` tells whether the model is writing reasoning now, `may_open` whether the response may begin with it.
    `after` is the number of line-break tokens that may still follow the section and do not belong to the response.
    """

    def __init__(self, tags: ThinkingTags, tables: GrammarVocabulary, inside: bool, may_open: bool) -> None:
        self._tags, self._tables = tags, tables
        self.inside, self.may_open, self.after = inside, may_open, 0
        self._matched = 0  # bytes of the closing tag that the text ends with

    def copy(self) -> "ThinkingState":
        """Return a new reasoning state at the start of a response, for another choice of the request."""
        return ThinkingState(self._tags, self._tables, self.inside, self.may_open)

    def ahead(self) -> "ThinkingState":
        """Return a copy of the reasoning state as it is now, to advance with guessed tokens."""
        other = self.copy()
        other.after, other._matched = self.after, self._matched
        return other

    def mask(self) -> Mask:
        """Return the mask of allowed tokens inside a reasoning section, or around its tags before the response."""
        if not self.inside:
            return self._tags.opening_mask if self.may_open else self._tables.breaks
        unfit = self._tags.unfit(self._matched)
        return self._tables.every if unfit is None else self._tables.every & ~unfit

    def take(self, token: int) -> bool:
        """Record a sampled token; return whether it belongs to the reasoning, not to the response."""
        data, tokens = self._tables.tokens[token], self._tags.tokens
        if self.inside:
            closed = self._closes(data) if tokens is None else token == tokens[1]
            self.inside, self.after = not closed, BREAKS if closed else 0
            return True
        opens = self.may_open and tokens is not None and token == tokens[0]
        breaks = self.after > 0 and data != b"" and not data.strip(b"\n")
        self.inside, self.may_open, self.after = opens, False, self.after - 1 if breaks else 0
        return opens or breaks

    def _closes(self, data: bytes) -> bool:
        """Return whether these bytes complete the tag that closes the reasoning; record a partial match."""
        closing = self._tags.closing
        text = closing[: self._matched] + data
        if closing in text:
            return True
        sizes = range(min(len(text), len(closing) - 1), 0, -1)
        self._matched = next((size for size in sizes if text.endswith(closing[:size])), 0)
        return False
