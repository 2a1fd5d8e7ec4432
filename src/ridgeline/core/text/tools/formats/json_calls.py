"""Tool calls that are JSON objects, in a list or one after the other, between tags that differ from model to model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from ridgeline.core.text.tools.call_reader import Reader, expect, one_of, read_call
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat


@dataclass(frozen=True, slots=True)
class _Tags:
    """The tags around tool calls, and the key of the function's name."""

    closings: Mapping[str, str]
    """The closing tag by opening tag, for the opening tags that have one."""
    name_key: str = "name"


def _read(tags: _Tags, new: NewCall, opening: str) -> Reader:
    """Read a list of tool calls, or tool calls that follow each other, and the closing tag."""
    closing = tags.closings.get(opening, "")
    first = yield from one_of(("[", "{"))
    is_list = first == "["
    separator, end = (",", "]") if is_list else ("{", closing)
    while True:
        yield from read_call(new(), ("arguments", "parameters"), "" if is_list else "{", name_key=tags.name_key)
        if not end or (yield from one_of((separator, end))) == end:
            break
    if is_list and closing:
        yield from expect(closing)


def _tokens(*tags: str) -> tuple[str, ...]:
    """Return the literals in the tags that can be tokens of the vocabulary."""
    return tuple(token for tag in tags for token in re.findall("<[^<>]+>", tag))


def _tagged_list(name: str, opening: str, closing: str, *more: str, bare: str = "") -> ToolFormat:
    """Return the format of a list of tool calls between an opening and a closing tag, or further opening tags."""
    return ToolFormat(
        name,
        (opening, *more),
        partial(_read, _Tags({opening: closing})),
        CallLayout(
            start=f"{opening}[",
            before='{"name": "',
            middle='", "arguments": ',
            after="}",
            between=", ",
            end=f"]{closing}",
        ),
        markers=_tokens(opening, *more, closing),
        bare=bare,
    )


def _tagged_objects(
    name: str,
    opening: str,
    closing: str,
    *more: str,
    between: str | None,
    arguments: str = "arguments",
    blank: str = "",
) -> ToolFormat:
    """Return the format of tool calls of which each is an object between an opening and a closing tag.

    Args:
        name: Name of the format.
        opening: Opening tag.
        closing: Closing tag, or "".
        more: Further opening tags.
        between: Text between two calls.
        arguments: Key of the arguments.
        blank: White space inside the tags.
    """
    return ToolFormat(
        name,
        (opening, *more),
        partial(_read, _Tags({opening: closing})),
        CallLayout(
            start=opening + blank,
            before='{"name": "',
            middle=f'", "{arguments}": ',
            after="}",
            between=between,
            end=blank + closing if closing else "",
        ),
        markers=_tokens(opening, *more, closing),
    )


COHERE_COMMAND3 = ToolFormat(
    "cohere_command3",
    ("<|START_ACTION|>",),
    partial(_read, _Tags({"<|START_ACTION|>": "<|END_ACTION|>"}, name_key="tool_name")),
    CallLayout(
        start="<|START_ACTION|>[\n    ",
        before='{"tool_call_id": "0", "tool_name": "',
        middle='", "parameters": ',
        after="}",
        between=",\n    ",
        end="\n]<|END_ACTION|>",
        call_id='"0"',
        id_pattern='"[0-9]{1,3}"',
    ),
    markers=("<|START_ACTION|>", "<|END_ACTION|>"),
)
GIGACHAT3 = _tagged_objects(
    "gigachat3", "<|function_call|>", "", "<|message_sep|>\n\nfunction call<|role_sep|>\n", between=None
)
GRANITE = _tagged_list("granite", "<|tool_call|>", "", "<tool_call>", bare="[")
GRANITE_20B_FC = _tagged_objects("granite-20b-fc", "<function_call>", "", between="\n<function_call> ", blank=" ")
INTERNLM = _tagged_objects(
    "internlm", "<|action_start|><|plugin|>", "<|action_end|>", between=None, arguments="parameters"
)
JAMBA = _tagged_list("jamba", "<tool_calls>", "</tool_calls>")
LONGCAT = _tagged_objects(
    "longcat",
    "<longcat_tool_call>",
    "</longcat_tool_call>",
    between="</longcat_tool_call>\n<longcat_tool_call>",
)
MINIMAX = _tagged_objects("minimax", "<tool_calls>", "</tool_calls>", between="\n", blank="\n")
NEMOTRON_JSON = _tagged_list("nemotron_json", "<TOOLCALL>", "</TOOLCALL>")
_PHI4_BEGIN, _PHI4_END = "<|tool_call|>", "<|/tool_call|>"
PHI4_MINI_JSON = replace(
    _tagged_list("phi4_mini_json", "functools", ""),
    openings=("functools", _PHI4_BEGIN),
    read=partial(_read, _Tags({_PHI4_BEGIN: _PHI4_END})),
    markers=(_PHI4_BEGIN, _PHI4_END),
)
PHI4_MINI_TAGS = replace(
    PHI4_MINI_JSON,
    layout=CallLayout(
        start=_PHI4_BEGIN,
        before='{"name": "',
        middle='", "arguments": ',
        after="}",
        between=_PHI4_END + _PHI4_BEGIN,
        end=_PHI4_END,
    ),
)
"""The layout of the templates of Phi-4-mini that use the tags of its vocabulary."""
XLAM = ToolFormat(
    "xlam",
    ("```json", "[TOOL_CALLS]", "<tool_call>"),
    partial(_read, _Tags({"```json": "```", "<tool_call>": "</tool_call>"})),
    CallLayout(start="[", before='{"name": "', middle='", "arguments": ', after="}", between=", ", end="]"),
    bare="[",
)
