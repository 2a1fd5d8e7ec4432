"""A streaming parser that extracts tool calls from a response, in time linear in the text.

It holds back text that can be the start of a marker. A marker that is a token of the vocabulary counts only as that
token: the same characters spelled by other tokens are text. A malformed call, or a call of a function that was not
offered, is text. If the name of such a call has already been reported, `ToolDelta.withdrawn` lists the call: its text
follows, and it does not count.
"""

import secrets
import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.core.text.stop_strings import StopMatcher
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tools.call_reader import Reader
from ridgeline.core.text.tools.call_sink import CallSink
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.json_scanner import Malformed
from ridgeline.core.text.tools.tool_format import ToolFormat

_ID = string.ascii_letters + string.digits
_PIECE = 1024  # characters read at a time: the rest of a piece is copied at the end of each section


@dataclass(frozen=True, slots=True)
class CallDelta:
    """New data of one tool call: its id and name in the first delta, and further text of its arguments."""

    index: int
    """The index of a tool call in the response."""
    id: str = ""
    """The id of a tool call, in its first delta."""
    name: str = ""
    """The name of the called function, in the first delta of a tool call."""
    arguments: str = ""
    """The new text of a tool call's arguments (JSON)."""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """The text and the tool calls that a part of a response releases."""

    content: str = ""
    """The new text of a response outside tool calls."""
    calls: tuple[CallDelta, ...] = ()
    """The new data of the tool calls in a response."""
    withdrawn: tuple[int, ...] = ()
    """The indices of tool calls that were reported but turned out not to be valid."""


class ToolParser:
    """A parser that extracts the tool calls of one response while the model generates it.

    `complete` is the number of whole calls so far.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        functions: Collection[Function],
        tokenizer: Tokenizer | None = None,
        *,
        several: bool = True,
        forced: bool = False,
    ) -> None:
        """Start extracting the tool calls of a response.

        Args:
            tool_format: Format of the model's tool calls.
            functions: The functions that were offered; their schemas give typeless arguments their types.
            tokenizer: Tokenizer that knows which markers are tokens. Without one, no marker is.
            several: Whether more than one call is allowed. If not, the parser drops the calls after the first.
            forced: Whether a grammar restricts the response to calls, so that an incomplete call at its end is not
                text.
        """
        self._format, self._several, self._forced = tool_format, several, forced
        self._functions = {function.name: function for function in functions}
        control: Mapping[str, int] = tokenizer.control if tokenizer is not None else {}
        self._marker_ids = {control[each]: each for each in tool_format.openings if each in control}
        self._markers = dict.fromkeys(self._marker_ids.values(), 0)  # opening tokens whose text has not been read yet
        self._opening = StopMatcher(tool_format.openings)
        self._section: Reader | None = None
        self._raw: list[str] = []  # the section's text since its beginning or its last whole call
        self._is_closing = False  # whether a whole call is the last that the section has begun
        self._call: CallSink | None = None
        self._index = self._withdrawn = self.complete = 0
        self._ids = set[str]()  # ids of the model's own that have been reported
        self._begun = False  # whether the response has more than white space
        self._may_be_bare = bool(tool_format.bare)
        self._blanks = ""  # trailing white space: it belongs to the template if a call or nothing follows
        self._content: list[str] = []
        self._calls: list[CallDelta] = []
        self._undone: list[int] = []

    def push(self, text: str, tokens: Iterable[int] = ()) -> ToolDelta:
        """Parse more of a response and return the text and tool calls that it releases.

        Args:
            text: New text.
            tokens: Ids of the new tokens. A token must not arrive later than its text.
        """
        if self._marker_ids:
            for token in tokens:
                if token in self._marker_ids:
                    self._markers[self._marker_ids[token]] += 1
        self._begun = self._begun or bool(text.strip())
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            while piece:
                piece = self._read_text(piece) if self._section is None else self._read_section(piece)
        self._report_call()
        return self._delta()

    def finish(self, *, cut: bool = False) -> ToolDelta:
        """Return the remaining text and tool calls at the end of a response.

        Args:
            cut: Whether the token limit ended the response. An incomplete call is then kept as it is if its name has
                been reported. Otherwise it is dropped if a whole call precedes it, and else becomes text. An incomplete
                forced call is kept as soon as its name is known.
        """
        if self._forced:
            self._report_unfinished_call()
        elif not cut:
            self._end_call_without_arguments()
        if self._section is None:
            half_marker = self._opening.flush().safe
            if not (self._forced or (cut and self.complete)):
                self._release_text(half_marker)
        elif self._call is not None or not self.complete:
            self._abort_section(cut or self._forced)
        if not (self._index > self._withdrawn or (self._call is not None and self._call.reported)):
            self._content.append(self._blanks)
        return self._delta()

    # -- text ---------------------------------------------------------------------------------------------------------

    def _read_text(self, text: str) -> str:
        """Read response text up to the marker that begins tool calls, and return the unread rest."""
        if self._may_be_bare and (begun := text.lstrip()):
            self._may_be_bare = False
            if begun[0] == self._format.bare:
                self._release_text(text[: len(text) - len(begun)])
                self._begin("")
                return begun
        result = self._opening.push(text)
        self._release_text(result.safe)
        if result.matched is not None:
            self._opening = StopMatcher(self._format.openings)
            arrived = self._markers.get(result.matched)
            if arrived == 0:
                self._release_text(result.matched)  # spelled by other tokens
            else:
                if arrived is not None:
                    self._markers[result.matched] = arrived - 1
                self._begin(result.matched)
        return result.rest

    def _release_text(self, text: str) -> None:
        """Release response text, and hold back the white space at its end."""
        body = text.rstrip()
        if body:
            self._content += (self._blanks, body)
            self._blanks = ""
        self._blanks += text[len(body) :]

    # -- calls --------------------------------------------------------------------------------------------------------

    def _begin(self, marker: str) -> None:
        """Start a section of tool calls after an opening marker."""
        self._raw, self._is_closing = [marker], False
        self._section = self._format.read(self._new_call, marker)
        next(self._section)

    def _new_call(self) -> CallSink:
        """Create the object (CallSink) that receives the next tool call of the response."""
        self._call, self._is_closing = CallSink(self._functions), False
        return self._call

    def _read_section(self, text: str) -> str:
        """Read a section of tool calls to its end and return the unread rest."""
        assert self._section is not None
        for at, c in enumerate(text):
            try:
                self._section.send(c)
            except Malformed:
                self._finish_call()
                if self._is_closing:  # what should close the section may begin the next one
                    self._section, unclosed = None, self._unclosed()
                    return unclosed + text[at:]
                self._abort_section()
                return text[at:]  # it may begin a marker
            except StopIteration:
                self._finish_call()
                self._section = None
                return text[at + 1 :]
            self._raw.append(c)
            self._finish_call()
        return ""

    def _finish_call(self) -> None:
        """Record the current tool call as whole, if it is complete."""
        if self._call is None or not self._call.done:
            return
        self._report_call()
        self.complete += 1
        self._index += 1
        self._call, self._raw, self._blanks, self._is_closing = None, [], "", True

    def _end_call_without_arguments(self) -> None:
        """End the current tool call if the response ended after its name, in a format that allows this."""
        call = self._call
        if self._format.may_omit_arguments and call is not None and call.name is not None and not call.reported:
            call.pending.append("{}")
            call.end()
            self._finish_call()

    def _unclosed(self) -> str:
        """Return and clear the text since the last whole call, without the closing literals at its beginning."""
        text, self._raw = "".join(self._raw), []
        closings = ("}", "]", *self._format.markers)
        while (body := text.lstrip()).startswith(closings):
            text = next(body.removeprefix(each) for each in closings if body.startswith(each))
        return text

    def _report_unfinished_call(self) -> None:
        """Report a forced tool call that ends before its arguments, if its function is known.

        The function is also known if only one was offered.
        """
        if self._call is None and self._begun and not self._index:
            self._call = CallSink(self._functions)
        call = self._call
        if call is None or call.reported or (self._index and not self._several):
            return
        if call.name is None and len(self._functions) == 1 and not self._index:
            (call.name,) = self._functions
        if call.name is not None:
            self._calls.append(CallDelta(self._index, self._id_of(call), call.name))
            call.reported = True

    def _abort_section(self, cut: bool = False) -> None:
        """End a section of tool calls; its text after the last whole call becomes ordinary text.

        If `cut`, the text is dropped when a call has been reported or is complete, or when calls are
        forced.
        """
        was_reported = self._call is not None and self._call.reported
        if was_reported and not cut:
            self._undone.append(self._index)
            self._withdrawn += 1
        self._index += was_reported
        if not (cut and (was_reported or self.complete or self._forced)):
            self._release_text("".join(self._raw))
        self._section, self._call, self._raw = None, None, []

    def _report_call(self) -> None:
        """Report the new data of the current tool call."""
        call = self._call
        if call is None or call.name is None or (self._index and not self._several):
            return
        if not (call.reported or call.pending):
            return  # wait until its arguments begin
        arguments = "".join(call.pending)
        call.pending.clear()
        if not call.reported:
            self._calls.append(CallDelta(self._index, self._id_of(call), call.name, arguments))
        elif arguments:
            self._calls.append(CallDelta(self._index, arguments=arguments))
        call.reported = True

    def _id_of(self, call: CallSink) -> str:
        """Return the id that the model wrote for a call, or a random one in the form that the tool format requires."""
        if call.identity and call.identity not in self._ids:
            self._ids.add(call.identity)
            return call.identity
        return short_id() if self._format.short_ids else f"call_{secrets.token_hex(12)}"

    def _delta(self) -> ToolDelta:
        """Return and clear the collected response text and tool calls."""
        delta = ToolDelta("".join(self._content), tuple(self._calls), tuple(self._undone))
        self._content, self._calls, self._undone = [], [], []
        return delta


def short_id() -> str:
    """Return a random tool-call id of nine letters and digits, the form that Mistral's templates require."""
    return "".join(secrets.choice(_ID) for _ in range(9))
