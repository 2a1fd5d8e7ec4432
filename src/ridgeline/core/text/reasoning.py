r"""Separation of reasoning sections, for example between `<think>` and `</think>`, from the response text.

If the markers of a format are single tokens of the vocabulary, they count only as those tokens: the same characters
spelled by other tokens are text. Otherwise the markers are matched as text: reasoning opens only at the start of the
output or after the header of a message, and closes at the first closing marker. Text that can be the start of a marker
is then held back.

A model can call a function without closing its reasoning. The token that begins tool calls then ends the reasoning.

Line breaks between markers and text belong to the template, not to the response. They are dropped, as templates drop
them when they write the response back into a conversation (`strip('\n')`, `lstrip('\n')`).
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.core.text.reasoning_format import THINK, ReasoningFormat, Section
from ridgeline.core.text.stop_strings import StopMatcher
from ridgeline.core.text.tokenizer import Tokenizer

_TAIL = 64  # tokens at the end of the prompt that are searched if markers are text


class SplitText(NamedTuple):
    """New text, separated into response and reasoning."""

    response: str = ""
    """The new text of the response that a token releases."""
    reasoning: str = ""
    """The new text of the reasoning section that a token releases."""


class ReasoningSplitter:
    """A splitter that separates one generated stream into reasoning and response.

    `reasoning_tokens` and `response_tokens` add up to the number of pushed tokens. A token counts for the section that
    contains its first character; markers and headers count as reasoning.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], reasoning_format: ReasoningFormat = THINK) -> None:
        """Start splitting a generated stream at the markers of a format.

        Args:
            tokenizer: Tokenizer of the model.
            prompt: Token ids of the prompt, which can end inside a reasoning section.
            reasoning_format: The format of the model's reasoning.
        """
        self._format, self._sections = reasoning_format, reasoning_format.section_of
        self._ids = marker_ids(tokenizer, reasoning_format)
        """The literals of the markers that are tokens, by id."""
        self._by_id = counts_by_id(reasoning_format, self._ids.values())
        self.section = self._section_after(tokenizer, prompt)
        """The section of the stream that is being read."""
        self.reasoning_tokens = 0
        self.response_tokens = 0
        self._after_marker = self.inside  # drop line breaks until text follows
        self._breaks = ""  # line breaks at the end of the reasoning so far
        self._label: str | None = None  # text that may be the label of a reasoning section
        self._header = ""
        self._is_fresh = self.section is Section.HEADER  # whether the prompt opened the header, and nothing followed
        self._start = "" if not self._by_id and not self.inside else None  # text that may begin with a marker
        self._undecided = 0  # tokens of that text
        # Line breaks at the start of the output, which the template wrote if a marker follows.
        self._lead = "" if self._by_id and self.section is Section.RESPONSE else None
        self._matcher = self._new_matcher()
        self._response: list[str] = []
        self._reasoning: list[str] = []

    @property
    def inside(self) -> bool:
        """Whether the stream is currently in a reasoning section."""
        return self.section is Section.REASONING

    def is_marker(self, token_id: int) -> bool:
        """Return whether a token is a marker of the format."""
        return token_id in self._ids

    def copy(self) -> "ReasoningSplitter":
        """Return a copy of the splitter in its present state."""
        other = copy.copy(self)
        other._matcher, other._response, other._reasoning = copy.deepcopy(self._matcher), [], []
        return other

    def push(self, token_id: int, text: str) -> SplitText:
        """Split the next token's text into response and reasoning.

        Args:
            token_id: The token.
            text: Text that the detokenizer released, including the literal of a marker.
        """
        literal = self._ids.get(token_id)
        if literal is not None and (self._by_id or (self.inside and literal in self._format.call_markers)):
            self._push_marker(literal, text)
        elif self._by_id:
            self._count()
            self._add(text)
        else:
            self._count()
            self._scan(text)
        return self._released()

    def finish(self, text: str = "") -> SplitText:
        """Split the text that is held back at the end of the stream.

        Text that only looks like the start of a marker at the beginning of the output is ordinary text. An incomplete
        closing marker or header is dropped: the stream was cut there.
        """
        if self._by_id:
            self._add(text)
            self._response.append(self._lead or "")
            self._lead = None
        else:
            self._scan(text)
        if self._start is not None:
            rest, self._start = self._start, None
            self.response_tokens += self._undecided
            self._emit(rest)
        elif self._matcher is not None and self.section is Section.RESPONSE:
            held = self._matcher.flush().safe
            self._emit(held if len(held) < 2 else "")
        return self._released()

    # -- markers ------------------------------------------------------------------------------------------------------

    def _push_marker(self, literal: str, text: str) -> None:
        """Take the token of a marker: the section before it ends."""
        # An incomplete character that the marker ended can precede the marker's own literal.
        before = text.removesuffix(literal)
        self._release_held()
        self._add(before)
        self._mark(literal, shown=text[len(before) :])
        self._count(marker=literal)

    def _scan(self, text: str) -> None:
        """Read text in which the markers are matched as text."""
        if self._start is not None:
            text = self._decide(text)
        while text:
            if self._matcher is None:
                self._add(text)
                return
            result = self._matcher.push(text)
            self._add(result.safe)
            if result.matched is None:
                return
            self._mark(result.matched, shown=result.matched)
            text = result.rest

    def _decide(self, text: str) -> str:
        """Determine whether the output begins with a marker, which white space can precede; return the text to read.

        The result is "" while it is undecided.
        """
        assert self._start is not None
        self._start += text
        begun = self._start.lstrip()
        starts = [*self._literals(Section.REASONING), *filter(None, (self._format.header_start,))]
        if any(len(begun) < len(each) and each.startswith(begun) for each in starts):
            return ""
        whole, self._start = self._start, None
        if any(begun.startswith(each) for each in starts):
            self.reasoning_tokens += self._undecided
            self._enter(Section.HEADER)
            return begun
        self.response_tokens += self._undecided
        self.section, self._is_fresh = Section.RESPONSE, False
        self._matcher = self._new_matcher()
        return whole

    def _mark(self, literal: str, shown: str) -> None:
        """Enter the section that a marker begins.

        Args:
            literal: The marker.
            shown: The marker's own text, which belongs to the response if the marker begins a tool call.
        """
        section, self._is_fresh = self._sections[literal], False
        if section is Section.BODY:
            assert self._format.read_header is not None
            section, lead = self._format.read_header(self._header)
            self._enter(section)
            self._emit(lead + shown if lead else "")
        elif section is Section.HEADER:
            header = self._header if self.section is Section.HEADER else ""
            self._enter(section)
            self._header = header + literal
        else:
            self._enter(section)
            self._label = "" if section is Section.REASONING and self._format.label else None
        if literal in self._format.call_markers:
            self._emit(shown)

    def _enter(self, section: Section) -> None:
        """Switch to another section."""
        self.section, self._after_marker, self._breaks, self._label, self._header = section, True, "", None, ""
        self._lead = None
        self._matcher = self._new_matcher()

    def _literals(self, opening: Section | None) -> list[str]:
        """Return the markers that are matched in the response, and those that open a section of the given kind."""
        markers = self._format.markers
        ends = {self._format.closing} if markers.get(self._format.closing) is Section.RESPONSE else set()
        return [
            each
            for each, section in markers.items()
            if section is opening or (section is not Section.REASONING and each not in ends)
        ]

    def _new_matcher(self) -> StopMatcher | None:
        """Return a matcher of the markers that count as text in the current section; None if there are none."""
        if self._by_id:
            return None
        if self.section is Section.RESPONSE:
            literals = self._literals(None)
        elif self.section is Section.REASONING:
            literals = [each for each, section in self._format.markers.items() if section is not Section.REASONING]
        else:
            literals = list(self._sections)
        return StopMatcher(literals) if literals else None

    # -- text ---------------------------------------------------------------------------------------------------------

    def _add(self, text: str) -> None:
        """Add text without markers to the current section."""
        if self.section is not Section.HEADER:
            self._emit(text)
            return
        self._header += text
        if self._is_fresh and (begun := self._header.lstrip()):
            start = self._format.header_start
            if start and begun.startswith(start):
                self._is_fresh = False
            elif not start or not start.startswith(begun):
                self._leave_fresh_header()

    def _leave_fresh_header(self) -> None:
        """Release the header that the prompt opened as response text, because the model wrote no marker."""
        header, self._is_fresh = self._header, False
        self._enter(Section.RESPONSE)
        self._after_marker = False
        self._emit(header)

    def _emit(self, text: str) -> None:
        """Release text of the current section (reasoning or response), without the line breaks next to markers."""
        if self._label is not None:
            text = self._without_label(text)
        if self._after_marker:
            text = text.lstrip("\n")
            self._after_marker = not text
        if not self.inside:
            self._respond(text)
            return
        body = text.rstrip("\n")
        if body:
            self._reasoning.append(self._breaks + body)
            self._breaks = text[len(body) :]
        else:
            self._breaks += text

    def _respond(self, text: str) -> None:
        """Release response text; the line breaks at the start of the output wait for other text."""
        if self._lead is not None:
            self._lead += text
            if not self._lead.strip("\n"):
                return
            text, self._lead = self._lead, None
        self._response.append(text)

    def _without_label(self, text: str) -> str:
        """Return the text after the label of a reasoning section; "" while the text can be part of the label."""
        assert self._label is not None
        text, label = self._label + text, self._format.label
        if len(text) < len(label) and label.startswith(text):
            self._label = text
            return ""
        self._label = None
        return text.removeprefix(label)

    def _release_held(self) -> None:
        """Add the text that was held back because a marker could begin there."""
        if self._matcher is not None:
            self._add(self._matcher.flush().safe)

    def _released(self) -> SplitText:
        """Return and clear the text that was released."""
        split = SplitText("".join(self._response), "".join(self._reasoning))
        self._response, self._reasoning = [], []
        return split

    def _count(self, marker: str = "") -> None:
        """Count a token for its section."""
        if self._start is not None:
            self._undecided += 1
        elif self.section is Section.RESPONSE and (not marker or marker in self._format.call_markers):
            self.response_tokens += 1
        else:
            self.reasoning_tokens += 1

    # -- the prompt ---------------------------------------------------------------------------------------------------

    def _section_after(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> Section:
        """Return the section in which a prompt ends, as with templates that append `<think>`."""
        if self._by_id:
            last = next((self._ids[i] for i in reversed(prompt) if i in self._ids), None)
            section = Section.RESPONSE if last is None else self._sections[last]
            if section is not Section.BODY:
                return section
            assert self._format.read_header is not None
            return self._format.read_header(tokenizer.decode(prompt[-_TAIL:], skip_special=False))[0]
        # Typed text can spell these markers, so only one at the very end was written by the template.
        end = tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
        return Section.REASONING if end.endswith(self._format.opening.rstrip()) else Section.RESPONSE


@lru_cache(maxsize=16)
def marker_ids(tokenizer: Tokenizer, reasoning_format: ReasoningFormat) -> Mapping[int, str]:
    """Return the markers of a format that are single tokens of the vocabulary, by their ids.

    They are kept, because encoding the markers takes longer than all else that a new stream needs.
    """
    found = {literal: tokenizer.encode(literal, add_special=False) for literal in reasoning_format.section_of}
    return MappingProxyType({ids[0]: literal for literal, ids in found.items() if len(ids) == 1})


def counts_by_id(reasoning_format: ReasoningFormat, tokens: Iterable[str]) -> bool:
    """Return whether the markers around reasoning are tokens, so that they count only as these.

    Args:
        reasoning_format: The format.
        tokens: The markers that are single tokens of the vocabulary.
    """
    around = reasoning_format.opening + reasoning_format.closing
    return {marker for marker in reasoning_format.markers if marker in around} <= set(tokens)
