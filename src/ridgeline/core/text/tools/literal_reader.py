"""Generators that read Python and JSON literals character by character and write them as JSON.

Models mix both notations (`None`, `null`), and some write strings without escaping the quotes in them. A quote
therefore ends a string only if the text after it can follow a string. The reader looks ahead for that, and the
characters that it looked at are read again: each at most twice, so the cost stays linear.
"""

import json
import math
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from ridgeline.core.text.tools.call_reader import Reader, TextReader, after_blanks
from ridgeline.core.text.tools.json_scanner import BLANK, JSON_NUMBER, MAX_DEPTH, MAX_NUMBER, Malformed

WORDS = {"None": "null", "True": "true", "False": "false", "null": "null", "true": "true", "false": "false"}
"""The words of Python and JSON, with their JSON."""
_MAX_AHEAD = 300  # characters after a quote that are looked at
_PYTHON_INTEGER = re.compile(r"[+-]?[0-9][0-9_]*")
_PYTHON_FLOAT = re.compile(r"[+-]?(?=\.?[0-9])[0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_KEPT = "\\'\"/"  # characters that a backslash only quotes; JSON quotes the slash too
_HEX = {"x": 2, "u": 4, "U": 8}


class Lookahead:
    """The characters that a generator has looked at and will receive again."""

    def __init__(self) -> None:
        self.again = ""


def rereading(read: Callable[[Lookahead], Reader]) -> Reader:
    """Run a generator that may look ahead, and send it the characters of `Lookahead.again` once more.

    Args:
        read: Creates the generator. It sets `again` before it waits for the next character.
    """
    ahead = Lookahead()
    reading = read(ahead)
    next(reading)
    while True:
        waiting = [(yield)]
        while waiting:
            try:
                reading.send(waiting.pop())
            except StopIteration:
                return
            waiting += reversed(ahead.again)
            ahead.again = ""


@dataclass(frozen=True, slots=True)
class Closing:
    """The text that can follow a string, which tells its closing quote from a quote in it."""

    whole: re.Pattern[str]
    """The text that must follow."""
    begun: re.Pattern[str]
    """The beginnings of that text."""


IN_LITERAL = Closing(re.compile(r"\s*[,:)\]}]"), re.compile(r"\s*"))
"""The text after a string in a list or a dictionary."""


def read_value(out: list[str], c: str, ahead: Lookahead, closing: Closing = IN_LITERAL, depth: int = 0) -> TextReader:
    """Read a literal, append its JSON, and return the next character that is not white space.

    Args:
        out: Receives the JSON.
        c: The first character of the literal.
        ahead: Receives the characters that must be read again.
        closing: The text that can follow, if the literal is a string.
        depth: The number of open brackets.

    Raises:
        Malformed: If the text is not a literal, or is nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise Malformed
    if c in "'\"":
        yield from read_string(out, c, ahead, closing)
    elif c == "[":
        yield from _read_items(out, "]", ahead, depth)
    elif c == "(":
        yield from _read_parentheses(out, ahead, depth)
    elif c == "{":
        yield from _read_braces(out, ahead, depth)
    else:
        word = c
        while (c := (yield)) not in ",:=()[]{}'\"" and c not in BLANK and len(word) <= MAX_NUMBER:
            word += c
        out.append(json_of_word(word))
        if c not in BLANK:
            return c
    return (yield from after_blanks())


def json_of_word(word: str) -> str:
    """Return the JSON of a number, None, True, False, null, true or false in Python's or JSON's notation.

    Raises:
        Malformed: If the word is none of these, or a number that is too large.
    """
    if word in WORDS:
        return WORDS[word]
    if len(word) > MAX_NUMBER:
        raise Malformed
    found = JSON_NUMBER.fullmatch(word)
    if found and (not (found[1] or found[2]) or math.isfinite(float(word))):
        return word
    try:
        if _PYTHON_INTEGER.fullmatch(word):
            return str(int(word))
        if _PYTHON_FLOAT.fullmatch(word):
            return json.dumps(float(word), allow_nan=False)
    except ValueError:
        pass
    raise Malformed


def json_of_character(c: str) -> str:
    """Return a character as it is written in a JSON string."""
    if c >= " " and c not in '"\\':
        return c
    return json.dumps(c)[1:-1]


def read_string(out: list[str], quote: str, ahead: Lookahead, closing: Closing) -> Reader:
    """Read a string after its opening quote and append it as JSON; three quotes open a string of several lines.

    Line breaks are allowed in every string. An escape sequence that Python does not know stays as it is.
    """
    out.append('"')
    is_first = True
    while True:
        c = yield
        if c == quote:
            seen, closes = yield from _look(closing)
            if is_first and seen == quote:
                yield from _read_long_string(out, quote, ahead)
                return
            ahead.again = seen
            if closes:
                out.append('"')
                return
        yield from _read_character(out, c, ahead)
        is_first = False


def _look(closing: Closing) -> Generator[None, str, tuple[str, bool]]:
    """Look at the text after a quote; return it, and whether the quote closes the string."""
    seen = ""
    while True:
        seen += yield
        if closing.whole.fullmatch(seen):
            return seen, True
        if len(seen) > _MAX_AHEAD or not closing.begun.fullmatch(seen):
            return seen, False


def _read_long_string(out: list[str], quote: str, ahead: Lookahead) -> Reader:
    """Read a string after its three opening quotes, up to three closing ones."""
    count = 0
    while count < 3:
        c = yield
        if c == quote:
            count += 1
            continue
        out += [json_of_character(quote)] * count
        count = 0
        yield from _read_character(out, c, ahead)
    out.append('"')


def _read_character(out: list[str], c: str, ahead: Lookahead) -> Reader:
    """Append a character of a string; a backslash begins an escape sequence, which is read."""
    if c != "\\":
        out.append(json_of_character(c))
        return
    c = yield
    if c in _HEX:
        yield from _read_code(out, c, ahead)
    elif c in _ESCAPES:
        out.append(json_of_character(_ESCAPES[c]))
    else:
        out.append(json_of_character(c) if c in _KEPT else "\\\\" + json_of_character(c))


def _read_code(out: list[str], kind: str, ahead: Lookahead) -> Reader:
    r"""Read the digits of `\x`, `\u` or `\U`; without enough digits it is no escape sequence."""
    digits = ""
    while len(digits) < _HEX[kind]:
        c = yield
        if c not in "0123456789abcdefABCDEF":
            out.append("\\\\" + kind)
            ahead.again = digits + c
            return
        digits += c
    code = int(digits, 16)
    if code > 0x10FFFF:
        raise Malformed
    # Two escaped halves of a character are one character in JSON, as a model that writes JSON means them.
    out.append(f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else json_of_character(chr(code)))


def _read_items(out: list[str], end: str, ahead: Lookahead, depth: int, first: str = "") -> Reader:
    """Read the items of a list after its opening bracket, and append a JSON list.

    Args:
        out: Receives the JSON.
        end: The closing bracket.
        ahead: Receives the characters that must be read again.
        depth: The number of open brackets around the list.
        first: The JSON of the first item, if it has been read with the comma after it.
    """
    out.append("[" + first)
    c, separator = (yield from after_blanks()), ", " if first else ""
    while c != end:
        out.append(separator)
        c = yield from read_value(out, c, ahead, IN_LITERAL, depth + 1)
        separator = ", "
        if c == ",":
            c = yield from after_blanks()
        elif c != end:
            raise Malformed
    out.append("]")


def _read_parentheses(out: list[str], ahead: Lookahead, depth: int) -> Reader:
    """Read a tuple, which becomes a list, or a value in parentheses."""
    c, first = (yield from after_blanks()), list[str]()
    if c == ")":
        out.append("[]")
        return
    c = yield from read_value(first, c, ahead, IN_LITERAL, depth + 1)
    if c == ",":
        yield from _read_items(out, ")", ahead, depth, "".join(first))
    elif c == ")":
        out += first
    else:
        raise Malformed


def _read_braces(out: list[str], ahead: Lookahead, depth: int) -> Reader:
    """Read a dictionary, or a set, which becomes a list."""
    c = yield from after_blanks()
    separator = "{"
    while c != "}":
        key = list[str]()
        c = yield from read_value(key, c, ahead, IN_LITERAL, depth + 1)
        if c in ",}" and separator == "{":
            if c == ",":
                yield from _read_items(out, "}", ahead, depth, "".join(key))
            else:
                out += ("[", *key, "]")
            return
        if c != ":":
            raise Malformed
        out += (separator, _key("".join(key)), ": ")
        separator = ", "
        c = yield from read_value(out, (yield from after_blanks()), ahead, IN_LITERAL, depth + 1)
        if c == ",":
            c = yield from after_blanks()
        elif c != "}":
            raise Malformed
    out.append("{}" if separator == "{" else "}")


def _key(text: str) -> str:
    """Return the JSON of a value as the key of an object, as json.dumps has it."""
    if text[0] in "[{":
        raise Malformed
    return text if text[0] == '"' else json.dumps(text)
