"""Generators that read tool calls whose parameters are text between tags.

A closing tag ends a parameter only if the next parameter or the end of the call follows, so that a text can contain
the tag. Models leave out closing tags of parameters at times. Then the end of the call and its section ends a
parameter, and if texts have lines of their own, so does the line that begins another parameter of the function.
"""

import json
from collections.abc import Collection, Generator

from ridgeline.core.text.tools.call_reader import Reader, TextReader, after_blanks, expect, one_of, until
from ridgeline.core.text.tools.call_sink import CallSink
from ridgeline.core.text.tools.json_scanner import BLANK
from ridgeline.core.text.tools.parameter_values import json_of, json_of_marked
from ridgeline.core.text.tools.tag_style import AS_JSON, AS_TEXT, CDATA, TagStyle
from ridgeline.core.text.tools.tool_format import NewCall

_QUOTES = ('"', "'")
_TAIL = 128  # characters in which the end of a parameter is searched


def read_tagged_calls(style: TagStyle, new: NewCall, opening: str) -> Reader:
    """Read tool calls in a style, up to the tag that closes the section.

    Args:
        style: Literals of the format.
        new: Creates the object that receives the next call.
        opening: The tag that has been read: that of the section, or of a call without one.
    """
    section = style.section or ()
    tag = opening
    while True:
        if tag in section:
            yield from expect(style.call)
        tag = yield from _read_call(style, new())
        if tag not in section[1:]:
            tag = yield from one_of((*section, style.call))
        if tag in section[1:]:
            return


def _read_call(style: TagStyle, sink: CallSink) -> TextReader:
    """Read one call after the text before its name, and return its last tag, which can be that of the section."""
    tags = (style.parameter, style.call_end)
    if style.name_end:
        name, _ = yield from _read_name(style, style.name_end)
        sink.take_name(name)
        tag = yield from one_of(tags)
    else:
        sink.take_name((yield from until("<")).strip())
        tag = yield from one_of(tags, first="<")
    keys: set[str] = set()
    key, attributes = (yield from _read_name(style, style.key_end)) if tag == style.parameter else ("", "")
    while tag == style.parameter:
        is_new = key not in keys  # of a repeated key, the first value counts: it may have been reported
        if is_new:
            sink.pending.append(("{" if not keys else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            keys.add(key)
        if style.value:
            yield from expect(style.value)
        text, tag, next_key = yield from _read_value(style, sink.function.parameter_names - keys)
        if is_new:
            sink.pending.append(_json_of(style, sink, key, text, attributes))
        if tag == style.parameter:
            key, attributes = (next_key, "") if next_key else (yield from _read_name(style, style.key_end))
    sink.pending.append("}" if keys else "{}")
    sink.end()
    return tag


def _read_name(style: TagStyle, end: str) -> Generator[None, str, tuple[str, str]]:
    """Read a name or a key up to the literal after it, and return it with the attributes that follow it."""
    first = yield from after_blanks()
    if style.quote and first in _QUOTES:
        name = yield from until(first)
        return name, (yield from until(end))
    name = (yield from until(end, first)).strip()
    return name, ""


def _read_value(style: TagStyle, keys: Collection[str]) -> Generator[None, str, tuple[str, str, str]]:
    """Read the text of a parameter, and return it with the tag that follows and the key of the next parameter.

    Args:
        style: Literals of the format.
        keys: Keys of the function's parameters that the call can still have. Only a parameter without its closing tag
            needs them, and then the next key has been read.
    """
    closing, following, unclosed = style.value_end, (style.parameter, style.call_end), style.unclosed
    read: list[str] = []
    tail = ""  # the end of what was read
    end, after = 0, None  # the length of the text if it ends here, and what follows its closing tag, without blanks
    while True:
        c = yield
        read.append(c)
        tail = (tail + c)[-_TAIL:]
        if style.cdata and len(read) == len(CDATA[0]) and tail == CDATA[0]:
            closing = CDATA[1] + style.value_end
        if after is not None and (after or c not in BLANK):
            after += c
            if after in following:
                return "".join(read[:end]), after, ""
            if not any(tag.startswith(after) for tag in following):
                after = None
        if after is None and tail.endswith(closing):
            end, after = len(read) - len(style.value_end), ""
        elif unclosed and c == ">" and (found := unclosed.search(tail)) and (not found[1] or found[1] in keys):
            tag = style.parameter if found[1] else style.section[1] if style.section else style.call_end
            return "".join(read[: len(read) - len(found[0])]), tag, found[1] or ""


def _json_of(style: TagStyle, sink: CallSink, key: str, text: str, attributes: str) -> str:
    """Return the JSON of a parameter's text."""
    if style.margin:
        text = text.removeprefix(style.margin).removesuffix(style.margin)
    if style.cdata and text.startswith(CDATA[0]):
        text = text.removeprefix(CDATA[0]).removesuffix(CDATA[1])
    schema, root = sink.function.schema_of(key), sink.function.parameters
    kind = attributes.strip() if style.typed else ""
    if kind in (AS_TEXT.strip(), AS_JSON.strip()):
        return json_of_marked(text, schema, root, is_text=kind == AS_TEXT.strip())
    return json_of(text, schema, root)
