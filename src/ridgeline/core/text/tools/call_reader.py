"""Generators that read tool calls character by character and raise Malformed if the text is not a call.

They report data at once through a CallSink: a name when it is complete, and arguments as they arrive.
"""

import json
from collections.abc import Collection, Generator, Sequence

from ridgeline.core.text.tools.call_sink import CallSink
from ridgeline.core.text.tools.json_scanner import BLANK, JsonScanner, JsonState, Malformed

Reader = Generator[None, str, None]
"""A generator that receives the characters of a text one by one."""
TextReader = Generator[None, str, str]
"""A reader that returns a text, or the first character that it did not use."""

MAX_NAME = 256
"""The most characters of a name or a key."""


def after_blanks() -> TextReader:
    """Skip white space and return the next character."""
    while (c := (yield)) in BLANK:
        pass
    return c


def expect(literal: str) -> Reader:
    """Read exactly this literal of a tool call, after optional white space."""
    yield from one_of((literal,))


def one_of(literals: Sequence[str], first: str = "") -> TextReader:
    """Read one of several literals of a tool call, after optional white space, and return it.

    No literal can be a prefix of another. `first` is the first character, if read already.
    """
    read = first or (yield from after_blanks())
    while read not in literals:
        if not any(literal.startswith(read) for literal in literals):
            raise Malformed
        read += yield
    return read


def until(literal: str, first: str = "") -> TextReader:
    """Return the text before a literal; raise Malformed if it is longer than a function name can be.

    `first` is the first character, if read already.
    """
    read = first
    while not read.endswith(literal):
        read += yield
        if len(read) > MAX_NAME + len(literal):
            raise Malformed
    return read.removesuffix(literal)


def read_arguments(sink: CallSink, first: str = "") -> Reader:
    """Read the JSON object of a tool call's arguments; `first` is its first character, if read already."""
    scanner, c = JsonScanner(), first or (yield from after_blanks())
    while True:
        scanner.push(c)
        sink.pending.append(c)
        if scanner.place is JsonState.END:
            return
        c = yield


def read_call(sink: CallSink, argument_keys: Collection[str], first: str = "", *, name_key: str = "name") -> Reader:
    """Read a tool call that is one JSON object with its keys in any order; unknown keys are skipped.

    Args:
        sink: Receives the name and the arguments.
        argument_keys: Keys under which the arguments can be.
        first: The opening brace, if it has been read already.
        name_key: The key of the function's name.
    """
    if not first:
        yield from expect("{")
    seen: set[str] = set()
    c = yield from after_blanks()
    while c != "}":
        if c != '"':
            raise Malformed
        key = yield from read_string()
        key = "arguments" if key in argument_keys else key
        if key in seen or len(seen) > len(argument_keys) + 8:
            raise Malformed
        seen.add(key)
        yield from expect(":")
        c = yield from _entry(sink, key, name_key)
        if c == ",":
            c = yield from after_blanks()
            if c == "}":
                raise Malformed
        elif c != "}":
            raise Malformed
    if "arguments" not in seen:
        sink.pending.append("{}")
    sink.end()


def _entry(sink: CallSink, key: str, name_key: str) -> TextReader:
    """Read the value of one key of a tool call's JSON, and return the character after the value."""
    first = yield from after_blanks()
    if key == "arguments" and first == "n":  # models write null for a function without parameters
        yield from one_of(("null",), first)
        sink.pending.append("{}")
    elif key == "arguments":
        yield from _quoted_arguments(sink) if first == '"' else read_arguments(sink, first)
    elif key == name_key:
        if first != '"':
            raise Malformed
        sink.take_name((yield from read_string()))
    else:
        return (yield from _other(first))
    return (yield from after_blanks())


def _quoted_arguments(sink: CallSink) -> Reader:
    """Read arguments that the model wrote as a JSON string with the object in it, as OpenAI's interface has them."""
    text = (yield from read_string(None)).strip() or "{}"
    scanner = JsonScanner()
    for c in text:
        if scanner.place is JsonState.END:
            raise Malformed
        scanner.push(c)
    if scanner.place is not JsonState.END:
        raise Malformed
    sink.pending.append(text)


def read_string(longest: int | None = MAX_NAME) -> TextReader:
    """Read and decode a JSON string whose opening quote has been read; None allows any length."""
    read, escaped = ['"'], False
    while True:
        c = yield
        read.append(c)
        if c == '"' and not escaped:
            return _decoded("".join(read))
        escaped = c == "\\" and not escaped
        if longest is not None and len(read) > longest:
            raise Malformed


def _decoded(text: str) -> str:
    """Decode a JSON string; raise Malformed if it is invalid."""
    try:
        return str(json.loads(text))
    except ValueError:
        raise Malformed from None


def _other(c: str) -> TextReader:
    """Skip a JSON value of any kind and return the character after it."""
    scanner = JsonScanner()
    for opening in '{"":':
        scanner.push(opening)
    while True:
        scanner.push(c)
        if scanner.depth == 0 or (scanner.depth == 1 and scanner.place is JsonState.KEY):
            return c
        c = yield
