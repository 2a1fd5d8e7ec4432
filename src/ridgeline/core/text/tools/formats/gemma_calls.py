"""The tool calls of Gemma 4 and FunctionGemma: `call:tide{days:3,harbour:<|"|>Brest<|"|>}` between markers.

Keys have no quotes, and strings stand between markers of the vocabulary. Values and keys in JSON's notation are read
too, as are words without quotes, which the function's schema gives a type.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from ridgeline.core.text.tools.call_grammar import CallGrammar, pattern_of
from ridgeline.core.text.tools.call_reader import MAX_NAME, Reader, TextReader, after_blanks, expect
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.json_scanner import BLANK, MAX_DEPTH, MAX_NUMBER, Malformed
from ridgeline.core.text.tools.json_schema import excludes_strings
from ridgeline.core.text.tools.literal_reader import (
    IN_LITERAL,
    WORDS,
    Lookahead,
    json_of_character,
    json_of_word,
    read_string,
    rereading,
)
from ridgeline.core.text.tools.parameter_values import json_of
from ridgeline.core.text.tools.schema_grammar import Notation, SchemaGrammar
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat

_KEY = re.compile(r"[\w$.@/-]+(?: [\w$.@/-]+)*")
_HEADER = re.compile(r"\s*(?::?call:|:)\s*([^\s:]+)\s*")
"""The text before the arguments. Gemma 4 sometimes writes a colon before `call:` or in its place."""


@dataclass(frozen=True, slots=True)
class _GemmaMarkers:
    """The literals of a version of the format."""

    opening: str
    quote: str
    """The marker before and after a string."""
    closing: str


_GEMMA4 = _GemmaMarkers("<|tool_call>", '<|"|>', "<tool_call|>")
_FUNCTION_GEMMA = _GemmaMarkers("<start_function_call>", "<escape>", "<end_function_call>")


def _read(new: NewCall, markers: _GemmaMarkers, ahead: Lookahead) -> Reader:
    """Read one call and its closing marker."""
    header = ""
    while (c := (yield)) != "{":
        header += c
        if c == "<" or len(header) > MAX_NAME:  # what follows can begin the next call
            raise Malformed
    found = _HEADER.fullmatch(header)
    if found is None:
        raise Malformed
    sink = new()
    sink.take_name(found[1])
    yield from _Values(markers.quote, ahead, sink.function).read_members(sink.pending)
    sink.end()
    yield from expect(markers.closing)


class _Values:
    """A reader of the arguments of one call, which writes them as JSON."""

    def __init__(self, quote: str, ahead: Lookahead, function: Function) -> None:
        """Prepare to read arguments.

        Args:
            quote: The marker before and after a string.
            ahead: Receives the characters that must be read again.
            function: The function that is called.
        """
        self._quote, self._ahead, self._function = quote, ahead, function

    def read_members(self, out: list[str], depth: int = 0) -> Reader:
        """Read the members of an object after its opening brace."""
        c, separator = (yield from after_blanks()), "{"
        while c != "}":
            key = yield from self._read_key(c)
            out += (separator, key, ": ")
            separator = ", "
            schema = self._function.schema_of(json.loads(key)) if depth == 0 else {}
            c = yield from self._read_value(out, schema, depth + 1)
            if c == ",":
                c = yield from after_blanks()
            elif c != "}":
                raise Malformed
        out.append("{}" if separator == "{" else "}")

    def _read_items(self, out: list[str], depth: int) -> Reader:
        """Read the items of a list after its opening bracket."""
        c, separator = (yield from after_blanks()), "["
        while c != "]":
            out.append(separator)
            separator = ", "
            c = yield from self._read_value(out, {}, depth + 1, c)
            if c == ",":
                c = yield from after_blanks()
            elif c != "]":
                raise Malformed
        out.append("[]" if separator == "[" else "]")

    def _read_value(self, out: list[str], schema: Mapping[str, Any], depth: int, c: str = "") -> TextReader:
        """Read a value and return the next character that is not white space; `c` is its first, if read already."""
        c = c or (yield from after_blanks())
        if depth > MAX_DEPTH:
            raise Malformed
        if c in (self._quote[0], '"', "'"):
            yield from self._read_string(out, schema, c)
        elif c == "{":
            yield from self.read_members(out, depth)
        elif c == "[":
            yield from self._read_items(out, depth)
        else:
            word = ""
            while c not in ",}]" and len(word) <= MAX_NUMBER:
                word += c
                c = yield
            out.append(self._json_of_word(word.strip(BLANK), schema))
            return c
        return (yield from after_blanks())

    def _read_string(self, out: list[str], schema: Mapping[str, Any], c: str) -> Reader:
        """Read a string after its first character; FunctionGemma also writes numbers as strings."""
        text = list[str]() if excludes_strings(schema, self._function.parameters) else out
        if c == self._quote[0]:
            yield from self._read_quoted(text)
        else:
            yield from read_string(text, c, self._ahead, IN_LITERAL)
        if text is not out:
            out.append(json_of(json.loads("".join(text)), schema, self._function.parameters))

    def _json_of_word(self, word: str, schema: Mapping[str, Any]) -> str:
        """Return the JSON of a value without quotes: a number, null, a boolean, or else a string."""
        if not word or len(word) > MAX_NUMBER or "{" in word or self._quote[0] in word:
            raise Malformed
        if word in WORDS:
            return WORDS[word]
        with suppress(Malformed):
            number = json_of_word(word)
            if not json_of(number, schema, self._function.parameters).startswith('"'):
                return number
        return json_of(word, schema, self._function.parameters)

    def _read_quoted(self, out: list[str]) -> Reader:
        """Read a string after the first character of its opening marker."""
        yield from expect(self._quote[1:])
        out.append('"')
        held = ""
        while held != self._quote:
            held += yield
            while not self._quote.startswith(held):
                out.append(json_of_character(held[0]))
                held = held[1:]
        out.append('"')

    def _read_key(self, c: str) -> TextReader:
        """Read a key and its colon, and return the key as JSON."""
        key = list[str]()
        if c == self._quote[0]:
            yield from self._read_quoted(key)
        elif c == '"':
            yield from read_string(key, c, self._ahead, IN_LITERAL)
        else:
            name = ""
            while c != ":":
                name += c
                if c in "{}[]," or len(name) > MAX_NAME:
                    raise Malformed
                c = yield
            return json.dumps(name.strip(BLANK), ensure_ascii=False)
        yield from expect(":")
        return "".join(key)


# -- grammar of forced calls ------------------------------------------------------------------------------------------


class _Braces(Notation):
    """The notation of Gemma's arguments."""

    separator, key_end, objects, sorts_keys = ",", ":", ("{", "}"), True
    words: ClassVar[Mapping[bool | None, str]] = {None: "None", True: "true", False: "false"}

    def __init__(self, quote: str) -> None:
        """Create the notation with the marker before and after a string."""
        self._quote = quote

    @override
    def string(self, grammar: CallGrammar, name: str, least: int, most: int | None) -> str:
        quote, terminal = grammar.literal(self._quote), name.upper()
        if most == 0:
            return grammar.add(name, quote, quote)
        text = rf"/(?s:.){{%d,{'' if most is None else most}}}/ & ~/(?s:.*){pattern_of(self._quote)}(?s:.*)/"
        if quote.startswith("<["):  # a token, which ends the text before it
            grammar.add(terminal, text % max(least, 1))
            return grammar.add(name, quote, terminal if least else f"{terminal}?", quote)
        grammar.add(terminal, f"({text % least}) {quote}")
        return grammar.add(name, quote, terminal)

    @override
    def constant(self, text: str) -> str | None:
        return None if self._quote in text else f"{self._quote}{text}{self._quote}"

    @override
    def key(self, key: str) -> str | None:
        return key if _KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _arguments(quote: str, grammar: CallGrammar, name: str, function: Function) -> str:
    """Add the rules of a call's arguments, and return the name of their rule."""
    return SchemaGrammar(grammar, name, function.parameters, _Braces(quote)).value(function.parameters)


def _format(name: str, markers: _GemmaMarkers) -> ToolFormat:
    """Return a version of the format."""
    return ToolFormat(
        name,
        (markers.opening,),
        lambda new, _: rereading(partial(_read, new, markers)),
        CallLayout(start="", before=f"{markers.opening}call:", middle="", after=markers.closing, between="", end=""),
        markers=(markers.opening, markers.quote, markers.closing),
        arguments=partial(_arguments, markers.quote),
    )


GEMMA4 = _format("gemma4", _GEMMA4)
FUNCTION_GEMMA = _format("functiongemma", _FUNCTION_GEMMA)
