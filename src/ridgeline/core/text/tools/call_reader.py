"""Calls, read character by character: generators that are sent one at a time, and raise Malformed where it cannot be.

What is read is told at once, through a CallSink: a name as soon as it is whole, arguments as they come.
"""

import json
from collections.abc import Collection, Generator, Sequence

from ridgeline.core.text.tools.json_scanner import BLANK, JsonScanner, JsonState, Malformed

Reading = Generator[None, str, str]
"""Is sent characters; gives one that it has read and not used, or nothing."""

_MAX_NAME = 256  # characters of a name, and of a key


class CallSink:
    """The call that is being read. name: once it is known. told: its name has been told. pending: its arguments' text
    that has not been. done: it is complete.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.name: str | None = None
        self.told = self.done = False
        self.pending: list[str] = []

    def take_name(self, name: str) -> None:
        """Raises Malformed for a function that was not offered, and for a second name."""
        if self.name is not None or name not in self._names:
            raise Malformed
        self.name = name

    def end(self) -> None:
        """Raises Malformed for a call without a name."""
        if self.name is None:
            raise Malformed
        self.done = True


def after_blanks() -> Reading:
    """The next character that is no blank."""
    while (c := (yield)) in BLANK:
        pass
    return c


def expect(literal: str) -> Generator[None, str, None]:
    """These characters, after blanks."""
    yield from one_of((literal,))


def one_of(literals: Sequence[str]) -> Reading:
    """One of these texts, none of which begins another, after blanks."""
    read = yield from after_blanks()
    while read not in literals:
        if not any(literal.startswith(read) for literal in literals):
            raise Malformed
        read += yield
    return read


def until(literal: str) -> Reading:
    """The text before a literal, at most as long as a name may be."""
    read = ""
    while not read.endswith(literal):
        read += yield
        if len(read) > _MAX_NAME + len(literal):
            raise Malformed
    return read.removesuffix(literal)


def read_arguments(sink: CallSink, first: str = "") -> Generator[None, str, None]:
    """The object of a call's arguments; `first`: its first character, where that has been read."""
    scanner, c = JsonScanner(), first or (yield from after_blanks())
    while True:
        scanner.push(c)
        sink.pending.append(c)
        if scanner.place is JsonState.END:
            return
        c = yield


def read_call(sink: CallSink, argument_keys: Collection[str], first: str = "") -> Generator[None, str, None]:
    """Read a call that is one object: its keys in any order, those that mean nothing read over.

    first: its opening brace, if that has been read.
    """
    if not first:
        yield from expect("{")
    seen: set[str] = set()
    c = yield from after_blanks()
    while c != "}":
        if c != '"':
            raise Malformed
        key = yield from _string()
        key = "arguments" if key in argument_keys else key
        if key in seen or len(seen) > len(argument_keys) + 8:
            raise Malformed
        seen.add(key)
        yield from expect(":")
        c = yield from _entry(sink, key)
        if c == ",":
            c = yield from after_blanks()
            if c == "}":
                raise Malformed
        elif c != "}":
            raise Malformed
    if "arguments" not in seen:
        sink.pending.append("{}")
    sink.end()


def _entry(sink: CallSink, key: str) -> Reading:
    """The value of a key; the character after it."""
    first = yield from after_blanks()
    if key == "arguments":
        yield from read_arguments(sink, first)
    elif key == "name":
        if first != '"':
            raise Malformed
        sink.take_name((yield from _string()))
    else:
        return (yield from _other(first))
    return (yield from after_blanks())


def _string() -> Reading:
    """A string whose opening quote has been read."""
    read, escaped = '"', False
    while True:
        c = yield
        read += c
        if c == '"' and not escaped:
            return _decoded(read)
        escaped = c == "\\" and not escaped
        if len(read) > _MAX_NAME:
            raise Malformed


def _decoded(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise Malformed from None


def _other(c: str) -> Reading:
    """A value of any kind, which is read over; the character after it."""
    scanner = JsonScanner()
    for opening in '{"":':
        scanner.push(opening)
    while True:
        scanner.push(c)
        if scanner.depth == 0 or (scanner.depth == 1 and scanner.place is JsonState.KEY):
            return c
        c = yield
