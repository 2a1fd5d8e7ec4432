"""Tool calls that are written as calls of Python functions: `[tide(harbour='Brest', days=3)]`.

LFM2, Llama 3.2 and 4, and OLMo 3 write them, each between markers of its own. Values are literals of Python or JSON;
nothing is evaluated. LFM2's template writes strings without escaping the quotes in them.
"""

import json
import re
from collections.abc import Generator, Mapping
from functools import partial
from typing import ClassVar

from typing_extensions import override

from ridgeline.core.text.tools.call_grammar import CallGrammar
from ridgeline.core.text.tools.call_reader import MAX_NAME, Reader, TextReader, after_blanks, expect
from ridgeline.core.text.tools.call_sink import CallSink
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.json_scanner import BLANK, Malformed
from ridgeline.core.text.tools.json_schema import excludes_strings
from ridgeline.core.text.tools.literal_reader import IN_LITERAL, Closing, Lookahead, json_of_word, read_value, rereading
from ridgeline.core.text.tools.parameter_values import json_of
from ridgeline.core.text.tools.schema_grammar import Notation, SchemaGrammar
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat

_NAME = r"(?!\d)[\w$][\w$.-]*"


def _closing(after_call: str, begun_after_call: str = "") -> Closing:
    """Return the text that can follow a string argument: a comma and the next argument, or the end of the call.

    Args:
        after_call: Pattern of the text that can follow a call.
        begun_after_call: Pattern of the beginnings of that text.
    """
    whole = rf"\s*(?:,\s*(?:\)|{_NAME}\s*=)|\){after_call})"
    begun = rf"\s*(?:,\s*(?:{_NAME}\s*)?|\)\s*{begun_after_call})?"
    return Closing(re.compile(whole), re.compile(begun))


def _beginnings(literal: str) -> str:
    """Return the pattern of all beginnings of a literal."""
    pattern = ""
    for c in reversed(literal):
        pattern = f"(?:{re.escape(c)}{pattern})?"
    return pattern


_LINES_END = "</function_calls>"
_IN_LIST = _closing(r"\s*[\],]")
_IN_LINES = _closing(rf"(?:[^\S\n]*\n|\s*(?:,|{re.escape(_LINES_END)}))", _beginnings(_LINES_END))


def _read_list(new: NewCall, end: str, ahead: Lookahead) -> Reader:
    """Read a list of calls in brackets, and the marker after it, if the format has one."""
    yield from expect("[")
    c = yield from after_blanks()
    while True:
        sink = yield from _read_call(new, c, ahead, _IN_LIST)
        c = yield from after_blanks()
        if c not in ",]":
            raise Malformed
        sink.end()
        if c == ",":
            c = yield from after_blanks()
        if c == "]":
            break
    if end:
        yield from expect(end)


def _read_lines(new: NewCall, ahead: Lookahead) -> Reader:
    """Read calls on lines of their own, and the closing tag."""
    c = yield from after_blanks()
    while c != "<":
        sink = yield from _read_call(new, c, ahead, _IN_LINES)
        sink.end()
        c = yield from after_blanks()
        if c == ",":
            c = yield from after_blanks()
    yield from expect(_LINES_END[1:])


def _read_call(new: NewCall, c: str, ahead: Lookahead, closing: Closing) -> Generator[None, str, CallSink]:
    """Read a call up to its closing parenthesis; `c` is the first character of its name."""
    name, c = yield from _read_word(c)
    if c != "(":
        raise Malformed
    sink = new()
    sink.take_name(name)
    yield from _read_arguments(sink, ahead, closing)
    return sink


def _read_word(c: str) -> Generator[None, str, tuple[str, str]]:
    """Read a name or a literal word; return it and the next character that is not white space."""
    word = ""
    while c.isalnum() or c in "_.-$":
        word += c
        if len(word) > MAX_NAME:
            raise Malformed
        c = yield
    return word, ((yield from after_blanks()) if c in BLANK else c)


def _read_arguments(sink: CallSink, ahead: Lookahead, closing: Closing) -> Reader:
    """Read the arguments of a call; those without a name are the first parameters in the order of the schema."""
    unnamed = iter(sink.function.parameter_names)
    separator = "{"
    c = yield from after_blanks()
    while c != ")":
        word = ""
        if c.isalpha() or c in "_$":
            word, c = yield from _read_word(c)
        is_named = bool(word) and c == "="
        name = word if is_named else next(unnamed, None)
        if name is None:
            raise Malformed
        sink.pending += (separator, json.dumps(name, ensure_ascii=False), ": ")
        if is_named:
            unnamed = iter(())
            c = yield from _read_argument(sink, name, (yield from after_blanks()), ahead, closing)
        elif word:
            sink.pending.append(json_of_word(word))
        else:
            c = yield from _read_argument(sink, name, c, ahead, IN_LITERAL)
        separator = ", "
        if c == ",":
            c = yield from after_blanks()
        elif c != ")":
            raise Malformed
    sink.pending.append("{}" if separator == "{" else "}")


def _read_argument(sink: CallSink, name: str, c: str, ahead: Lookahead, closing: Closing) -> TextReader:
    """Read the value of a parameter and return the next character; Llama 4's template writes `days="3"`."""
    schema = sink.function.schema_of(name)
    if c not in "'\"" or not excludes_strings(schema, sink.function.parameters):
        return (yield from read_value(sink.pending, c, ahead, closing))
    text = list[str]()
    c = yield from read_value(text, c, ahead, closing)
    sink.pending.append(json_of(json.loads("".join(text)), schema, sink.function.parameters))
    return c


# -- grammar of forced calls ------------------------------------------------------------------------------------------

_QUOTED = str.maketrans(
    {**{chr(code): rf"\x{code:02x}" for code in range(32)}, "\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t"}
)


class _Pythonic(Notation):
    """The notation of arguments in calls of Python functions; dictionaries are written as JSON, as LFM2 does."""

    separator, key_end, objects, sorts_keys = ", ", "=", None, False
    words: ClassVar[Mapping[bool | None, str]] = {None: "None", True: "True", False: "False"}

    @override
    def string(self, grammar: CallGrammar, name: str, least: int, most: int | None) -> str:
        bounds = f"{{{least},{'' if most is None else most}}}"
        return grammar.add(name.upper(), rf"/'(\\[\\'nt]|[^'\\\x00-\x1F]){bounds}'/")

    @override
    def constant(self, text: str) -> str:
        return f"'{text.translate(_QUOTED)}'"

    @override
    def key(self, key: str) -> str | None:
        return key if re.fullmatch(_NAME, key) else None


def _pythonic_arguments(grammar: CallGrammar, name: str, function: Function) -> str:
    """Add the rules of a call's arguments, and return their expression."""
    return SchemaGrammar(grammar, name, function.parameters, _Pythonic()).members(function.parameters)


def _bracketed(name: str, opening: str = "", end: str = "", bare: str = "") -> ToolFormat:
    """Return a format whose calls are a list in brackets.

    Args:
        name: The name of the format in vLLM.
        opening: The marker before the list.
        end: The marker after the list.
        bare: The first character of a response that is a list without a marker.
    """
    return ToolFormat(
        name,
        (opening,) if opening else (),
        lambda new, _: rereading(partial(_read_list, new, end)),
        CallLayout(start=f"{opening}[", before="", middle="(", after=")", between=", ", end=f"]{end}"),
        markers=tuple(filter(None, (opening, end))),
        arguments=_pythonic_arguments,
        bare=bare,
    )


LFM2 = _bracketed("lfm2", "<|tool_call_start|>", "<|tool_call_end|>")
LLAMA4_PYTHONIC = _bracketed("llama4_pythonic", "<|python_start|>", "<|python_end|>", bare="[")
OLMO3 = ToolFormat(
    "olmo3",
    ("<function_calls>",),
    lambda new, _: rereading(partial(_read_lines, new)),
    CallLayout(start="<function_calls>", before="", middle="(", after=")", between="\n", end=_LINES_END),
    markers=("<function_calls>", _LINES_END),
    arguments=_pythonic_arguments,
)
PYTHONIC = _bracketed("pythonic", bare="[")
