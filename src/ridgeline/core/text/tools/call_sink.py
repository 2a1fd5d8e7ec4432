"""The tool call that a parser is reading: its name and arguments, and which of them have been reported."""

from collections.abc import Mapping

from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.json_scanner import Malformed


class CallSink:
    """The tool call that a parser is reading: its name and arguments, and which of them have been reported.

    `name` is None until it is known. `reported` says whether the name has been reported, and `done` whether the call is
    complete. `pending` is the text of the arguments that has not been reported. `identity` is the id that the model
    wrote, if its format has ids that later prompts must repeat.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        """Create an empty call.

        Args:
            functions: The functions that were offered, by name.
        """
        self._functions = functions
        self.name: str | None = None
        self.identity = ""
        self.reported = self.done = False
        self.pending: list[str] = []

    @property
    def function(self) -> Function:
        """The function that is called; the name must be known."""
        assert self.name is not None, "a call gets its name before its parameters"
        return self._functions[self.name]

    def take_name(self, name: str) -> None:
        """Set the name of the function that a tool call calls.

        Raises:
            Malformed: If the function was not offered, or the call already has a name.
        """
        if self.name is not None or name not in self._functions:
            raise Malformed
        self.name = name

    def end(self) -> None:
        """Mark a tool call as complete.

        Raises:
            Malformed: If the call has no name.
        """
        if self.name is None:
            raise Malformed
        self.done = True
