"""The description of one format in which models write tool calls: markers, a reader, and the text around calls."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.text.tools.call_grammar import CallGrammar, json_arguments
from ridgeline.core.text.tools.call_reader import Reader
from ridgeline.core.text.tools.call_sink import CallSink
from ridgeline.core.text.tools.function import Function

NewCall = Callable[[], CallSink]
"""A function that creates the object (CallSink) that receives the next tool call of a response."""


@dataclass(frozen=True, slots=True)
class CallLayout:
    """The text that a chat template writes around tool calls.

    The order is `start`; for each call `before`, its name, `middle`, its arguments and `after`; `between` each two
    calls; and `end`.
    """

    start: str
    before: str
    middle: str
    after: str
    between: str | None
    """The text between two tool calls, or None if a response can have only one."""
    end: str
    call_id: str = ""
    """An example of a call's id as it stands in `before` or `middle`, or "" if the format has no ids."""
    id_pattern: str = ""
    """A regular expression for the ids that a model can write instead of the example."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format in which a family of models writes tool calls."""

    name: str
    """The name of a tool-call format in vLLM."""
    openings: tuple[str, ...]
    """The markers of which one begins the tool calls in a response."""
    read: Callable[[NewCall, str], Reader]
    """A function that creates the reader of the tool calls after an opening marker.

    It receives the opening marker too, or "" if the response began without one (`bare`).
    """
    layout: CallLayout
    """The text that chat templates write around tool calls in this format."""
    markers: tuple[str, ...] = ()
    """The literals of a tool-call format that can be control tokens of the model."""
    arguments: Callable[[CallGrammar, str, Function], str] = json_arguments
    """A function that returns the grammar of a call's arguments, whose rules begin with the given name."""
    bare: str = ""
    """The first characters of a response that is read as tool calls although no opening marker precedes them."""
    short_ids: bool = False
    """Whether tool calls have ids of nine letters and digits."""
    may_omit_arguments: bool = False
    """Whether a call without arguments can end the response right after its name."""
