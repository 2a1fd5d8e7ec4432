"""ToolParser: calls taken out of an answer while it comes. Linear in the text, and never half a marker told.

A marker that is a token of the vocabulary counts only as that token: its letters spelled by others are text. A call
that is malformed, or of a function that was not offered, is text. One whose name has been told by then cannot be taken
back: its text follows, `undone` names it, and it does not count.
"""

import secrets
import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.core.text.stop_strings import StopMatcher
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tools.call_reader import CallSink
from ridgeline.core.text.tools.json_scanner import Malformed
from ridgeline.core.text.tools.tool_formats import Calls, ToolFormat

_ID = string.ascii_letters + string.digits
_PIECE = 1024  # characters read at a time: what is left of a piece is copied at every end of a section


@dataclass(frozen=True, slots=True)
class CallDelta:
    """News of a call: its id and name once, when they are known, and more of its arguments' text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """What a piece of an answer says. undone: calls that turned out to be none."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()
    undone: tuple[int, ...] = ()


class ToolParser:
    """Parses one answer. `complete`: how many calls are whole."""

    def __init__(
        self,
        tool_format: ToolFormat,
        names: Collection[str],
        tokenizer: Tokenizer | None = None,
        *,
        several: bool = True,
        forced: bool = False,
    ) -> None:
        """names: of the functions that were offered. tokenizer: says which markers are tokens; without one, none is.
        several: whether more than one call is wanted; those after the first are left out if not. forced: whether a
        grammar holds the response to calls, so that half a call at its end is no text.
        """
        self._format, self._names, self._several, self._forced = tool_format, names, several, forced
        control: Mapping[str, int] = tokenizer.control if tokenizer is not None else {}
        self._marker_id = control.get(tool_format.opening)
        self._markers = 0  # tokens of the opening marker whose text has not been read yet
        self._opening = StopMatcher([tool_format.opening])
        self._section: Calls | None = None
        self._raw: list[str] = []  # the section's text since its beginning or its last whole call
        self._call: CallSink | None = None
        self._index = self.complete = 0
        self._begun = False  # whether the response has more than white space
        self._may_be_bare = tool_format.starts_bare
        self._blanks = ""  # the last of the text: they are the template's if a call or nothing follows
        self._content: list[str] = []
        self._calls: list[CallDelta] = []
        self._undone: list[int] = []

    def push(self, text: str, tokens: Iterable[int] = ()) -> ToolDelta:
        """More of the answer. tokens: those that have come, at the latest with their text."""
        if self._marker_id is not None:
            self._markers += sum(token == self._marker_id for token in tokens)
        self._begun = self._begun or bool(text.strip())
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            while piece:
                piece = self._read_text(piece) if self._section is None else self._read_section(piece)
        self._tell_call()
        return self._delta()

    def finish(self, *, cut: bool = False) -> ToolDelta:
        """Return what is left at the end of the response.

        cut: Whether the limit of tokens ended it. An incomplete call then stays as it is, or is dropped if other calls
            come before it and its name has not been told. A forced call always stays, as soon as its name is known.
        """
        if self._forced:
            self._tell_before_arguments()
        if self._section is None:
            half_marker = self._opening.flush().safe
            if not (self._forced or (cut and self.complete)):
                self._say(half_marker)
        elif self._call is not None or not self.complete:
            self._break_off(cut or self._forced)
        if not (self._index or (self._call is not None and self._call.told)):
            self._content.append(self._blanks)
        return self._delta()

    # -- text ---------------------------------------------------------------------------------------------------------

    def _read_text(self, text: str) -> str:
        """Read text up to a section; what is left."""
        if self._may_be_bare and (begun := text.lstrip()):
            self._may_be_bare = False
            if begun[0] == "{":
                self._begin("")
                return begun
        result = self._opening.push(text)
        self._say(result.safe)
        if result.matched is not None:
            self._opening = StopMatcher([self._format.opening])
            if self._marker_id is not None and not self._markers:
                self._say(result.matched)  # spelled by other tokens
            else:
                self._markers -= self._marker_id is not None
                self._begin(result.matched)
        return result.rest

    def _say(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._content += (self._blanks, body)
            self._blanks = ""
        self._blanks += text[len(body) :]

    # -- calls --------------------------------------------------------------------------------------------------------

    def _begin(self, marker: str) -> None:
        self._raw = [marker]
        self._section = self._format.read(self._new_call)
        next(self._section)

    def _new_call(self) -> CallSink:
        self._call = CallSink(self._names)
        return self._call

    def _read_section(self, text: str) -> str:
        """Read a section to its end; what is left."""
        assert self._section is not None
        for at, c in enumerate(text):
            try:
                self._section.send(c)
            except Malformed:
                self._finish_call()
                self._break_off()
                return text[at:]  # it may begin a marker
            except StopIteration:
                self._finish_call()
                self._section = None
                return text[at + 1 :]
            self._raw.append(c)
            self._finish_call()
        return ""

    def _finish_call(self) -> None:
        """Count the call that is being read, if it is whole."""
        if self._call is None or not self._call.done:
            return
        self._tell_call()
        self.complete += 1
        self._index += 1
        self._call, self._raw, self._blanks = None, [], ""

    def _tell_before_arguments(self) -> None:
        """Tell a forced call that ends before its arguments, if its name has been read or is the only one possible."""
        if self._call is None and self._begun and not self._index:
            self._call = CallSink(self._names)
        call = self._call
        if call is None or call.told or (self._index and not self._several):
            return
        if call.name is None and len(self._names) == 1 and not self._index:
            (call.name,) = self._names
        if call.name is not None:
            self._calls.append(CallDelta(self._index, self._new_id(), call.name))
            call.told = True

    def _break_off(self, cut: bool = False) -> None:
        """The section is none, or has ended: its text is text, from the last whole call on."""
        told = self._call is not None and self._call.told
        if told and not cut:
            self._undone.append(self._index)
        self._index += told
        if not (cut and (told or self.complete or self._forced)):
            self._say("".join(self._raw))
        self._section, self._call, self._raw = None, None, []

    def _tell_call(self) -> None:
        """Tell what is new of the call that is being read."""
        call = self._call
        if call is None or call.name is None or (self._index and not self._several):
            return
        if not (call.told or call.pending):
            return  # until its arguments begin
        arguments = "".join(call.pending)
        call.pending.clear()
        if not call.told:
            self._calls.append(CallDelta(self._index, self._new_id(), call.name, arguments))
        elif arguments:
            self._calls.append(CallDelta(self._index, arguments=arguments))
        call.told = True

    def _new_id(self) -> str:
        return short_id() if self._format.short_ids else f"call_{secrets.token_hex(12)}"

    def _delta(self) -> ToolDelta:
        delta = ToolDelta("".join(self._content), tuple(self._calls), tuple(self._undone))
        self._content, self._calls, self._undone = [], [], []
        return delta


def short_id() -> str:
    """Nine letters and digits, as Mistral's templates want them."""
    return "".join(secrets.choice(_ID) for _ in range(9))
