"""The end of a model's reasoning in a structured output: reasoning is free, the response after it is not.

As in core/text/reasoning.py, markers that are tokens of the vocabulary count as those tokens. Otherwise several tokens
spell a marker, and only a section that the prompt has opened counts. Some formats write a header before the response
(gpt-oss, Solar). The header is then fixed, unless the grammar itself begins with it, as grammars of tool calls do.
"""

import enum
from collections.abc import Sequence

from ridgeline.core.text import ReasoningFormat, ReasoningSplitter, Tokenizer
from ridgeline.core.text.reasoning import counts_by_id, marker_ids
from ridgeline.core.text.reasoning_format import Section
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary, Mask

BREAKS = 2
"""The number of line-break tokens that may stand between a reasoning section and the response; templates write two."""


class _Place(enum.Enum):
    """The part of the output that comes next."""

    REASONING = enum.auto()
    START = enum.auto()  # of the response: reasoning or markers may come first
    TURN = enum.auto()  # the fixed tokens between the reasoning and the next header
    HEADER = enum.auto()  # of a message; the response needs it
    RESPONSE = enum.auto()


class ThinkingMarkers:
    """The markers of a model's reasoning as tokens, and the token masks that they need."""

    def __init__(self, tokenizer: Tokenizer, reasoning: ReasoningFormat, tables: GrammarVocabulary) -> None:
        self._tokenizer, self._format, self._tables = tokenizer, reasoning, tables
        literals = marker_ids(tokenizer, reasoning)
        self.by_id = counts_by_id(reasoning, literals.values())
        markers = {token: reasoning.section_of[literal] for token, literal in literals.items()} if self.by_id else {}
        self.calls = frozenset(t for t, literal in literals.items() if literal in reasoning.call_markers)
        self.ends = frozenset(t for t, section in markers.items() if section is not Section.REASONING) - self.calls
        self.opening = self._ids(reasoning.opening) if self.by_id else ()
        lead = self._ids(reasoning.closing)[1:] if self.by_id else ()
        self.header = self._ids(reasoning.header) if self.by_id else ()
        """The tokens that begin a message with the response; () if responses need none."""
        self.turn = lead[: len(lead) - len(self.header)]
        """The tokens between the marker that ends the reasoning and the next message."""
        dropped = [t for t, section in markers.items() if section is Section.RESPONSE and t not in self.calls]
        self.dropped = tuple((t,) for t in dropped if literals[t] != reasoning.closing) if not self.header else ()
        """The markers that can stand right before the response."""
        self.marker_mask = tables.mask((*markers, *self.calls))
        self.call_mask = tables.mask(self.calls)
        self.closing = reasoning.closing.encode()
        self._unfit = None if self.by_id else [self._spills(at) for at in range(len(self.closing))]

    def begin(self, prompt: Sequence[int], grammar: Mask) -> "ThinkingState":
        """Return the reasoning state of a response to this prompt.

        Args:
            prompt: The token ids of the prompt.
            grammar: The tokens with which the grammar can begin.
        """
        has_header = (grammar & self.marker_mask).any() and not (grammar & ~self.marker_mask).any()
        headers = () if has_header else (self.header,)
        section = ReasoningSplitter(self._tokenizer, prompt, self._format).section
        place, sequences = _Place.RESPONSE, tuple[tuple[int, ...], ...]()
        if section is Section.REASONING:
            place = _Place.REASONING
        elif section is Section.HEADER:
            place, sequences = _Place.HEADER, (self.opening, *headers)
        elif self.by_id and not self._closed(prompt):
            place, sequences = _Place.START, (self.opening, *self.dropped)
        return ThinkingState(self, self._tables, place, sequences, headers)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special=False))

    def _closed(self, prompt: Sequence[int]) -> bool:
        """Return whether the prompt ends with a closed reasoning section, as in templates that switch reasoning off."""
        blank = (i for i in reversed(prompt) if not 0 <= i < self._tables.rows or self._tables.tokens[i].strip())
        return next(blank, None) in self.ends

    def unfit(self, matched: int) -> Mask | None:
        """Return the mask of tokens to forbid because they would end the reasoning and also begin the response.

        Args:
            matched: Number of bytes of the closing marker that the text ends with.
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

    Before the response, the model can write one of a few token `sequences`, each of which leads to the reasoning, a
    header or the response. `pending` has the tokens of such a sequence so far. `headers` are the sequences that lead
    from the header of a message to the response, unless the grammar itself begins with the header. `after` is the
    number of line-break tokens that may still follow the reasoning without being part of the response.
    """

    def __init__(
        self,
        markers: ThinkingMarkers,
        tables: GrammarVocabulary,
        place: _Place,
        sequences: tuple[tuple[int, ...], ...],
        headers: tuple[tuple[int, ...], ...],
    ) -> None:
        self._markers, self._tables = markers, tables
        self._place, self._sequences, self._headers = place, sequences, headers
        self.pending: tuple[int, ...] = ()
        self.after = 0
        self._matched = 0  # bytes of the closing marker that the text ends with

    @property
    def inside(self) -> bool:
        """Whether the model is writing reasoning now."""
        return self._place is _Place.REASONING

    @property
    def has_ended(self) -> bool:
        """Whether the response has begun, so that only the grammar restricts the next token."""
        return self._place is _Place.RESPONSE

    @property
    def may_respond(self) -> bool:
        """Whether the next token can be the first one of the response."""
        return self.has_ended or (self._place is _Place.START and not self.pending)

    def copy(self) -> "ThinkingState":
        """Return a copy of the reasoning state as it is now, for another choice or to advance with guessed tokens."""
        other = ThinkingState(self._markers, self._tables, self._place, self._sequences, self._headers)
        other.pending, other.after, other._matched = self.pending, self.after, self._matched
        return other

    def mask(self, grammar: Mask) -> Mask:
        """Return the mask of allowed tokens before the response, except those that end the text.

        Args:
            grammar: The tokens that the grammar allows next, after the pending ones.
        """
        markers = self._markers
        if self.inside:
            unfit = markers.unfit(self._matched)
            free = self._tables.every if unfit is None else self._tables.every & ~unfit
            return free & ~markers.call_mask | grammar & markers.call_mask
        at = len(self.pending)
        mask = self._tables.mask(sequence[at] for sequence in self._sequences if sequence[:at] == self.pending)
        if self._place is _Place.HEADER and not self.pending:
            mask |= grammar & markers.marker_mask  # other text would become a part of the header
        elif self._place is not _Place.TURN:
            mask |= grammar
        return mask | self._tables.breaks if self.after else mask

    def take(self, token: int) -> tuple[int, ...]:
        """Record a sampled token; return the tokens that belong to the response and not to the reasoning."""
        if self.has_ended:
            return (token,)
        if self.inside:
            return self._take_reasoning(token)
        data = self._tables.tokens[token]
        if self.after > 0 and not self.pending and data and not data.strip(b"\n"):
            left = self.after - 1
            self._enter(_Place.START if left else _Place.RESPONSE)
            self.after = left
            return ()
        so_far = (*self.pending, token)
        sequences = tuple(sequence for sequence in self._sequences if sequence[: len(so_far)] == so_far)
        if not sequences:
            self._enter(_Place.RESPONSE)
            return so_far
        if so_far not in sequences:
            self.pending, self.after = so_far, 0
            return ()
        if self._place is _Place.TURN:
            self._enter(_Place.HEADER, *self._headers)
        else:
            self._enter(_Place.REASONING if so_far == self._markers.opening else _Place.RESPONSE)
        return ()

    def _enter(self, place: _Place, *sequences: tuple[int, ...]) -> None:
        """Move to another part of the output, with the token sequences that may follow."""
        self._place, self._sequences, self.pending, self.after = place, sequences, (), 0

    def _take_reasoning(self, token: int) -> tuple[int, ...]:
        """Record a token of the reasoning, which can end it."""
        markers = self._markers
        if token in markers.calls:
            self._enter(_Place.RESPONSE)
            return (token,)
        if token in markers.ends if markers.by_id else self._closes(self._tables.tokens[token]):
            self._end_reasoning()
        return ()

    def _end_reasoning(self) -> None:
        """Move from the reasoning to what may stand before the response."""
        markers = self._markers
        if markers.header:
            self._enter(_Place.TURN, markers.turn)
        else:
            self._enter(_Place.START, *markers.dropped)
            self.after = BREAKS

    def _closes(self, data: bytes) -> bool:
        """Return whether these bytes complete the marker that closes the reasoning; record a partial match."""
        closing = self._markers.closing
        text = closing[: self._matched] + data
        if closing in text:
            return True
        sizes = range(min(len(text), len(closing) - 1), 0, -1)
        self._matched = next((size for size in sizes if text.endswith(closing[:size])), 0)
        return False
