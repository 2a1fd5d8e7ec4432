"""Tools (functions) of a chat request: the calls that the model may or must make, and their form in responses."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.core.text import ChatTemplate, Tokenizer
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.tools import (
    CallDelta,
    Function,
    ToolDelta,
    ToolFormat,
    ToolParser,
    forced_calls,
    format_named,
)
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.errors import invalid
from ridgeline.server.routes.closed_schema import closed
from ridgeline.server.routes.request_fields import ChatFields
from ridgeline.server.routes.response_format import check_schema
from ridgeline.server.server_settings import ServerSettings
from ridgeline.util.untrusted import MAX_VALUES, crowded

ANY_MODEL = "hermes"
"""The tool-call format for forced calls of a model that has no format of its own."""

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a function without `parameters`, which according to OpenAI's reference takes no arguments."""
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_SHOWN = 64  # characters of an unknown name quoted in an error
_MAX_SCHEMAS = 8  # the bound of all schemas of a grammar, as a multiple of the bound of one


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and the rules for calling them."""

    format: ToolFormat
    """The format in which the model writes calls."""
    functions: tuple[Function, ...]
    """The functions that a call may name: all tools, or those that tool_choice allows."""
    called: tuple[Function, ...]
    """The functions of which the response must call one; () if it need not call any."""
    several: bool
    """Whether the response may have several calls."""

    def shows_special(self, tokenizer: Tokenizer) -> bool:
        """Return whether call markers are special tokens, which must stay in the text for the parser to see them."""
        return any(tokenizer.control.get(marker) in tokenizer.special_ids for marker in self.format.markers)

    def parser(self, tokenizer: Tokenizer) -> ToolParser:
        """Return a new parser that separates the tool calls from the text of one choice."""
        return ToolParser(
            self.format, self.called or self.functions, tokenizer, several=self.several, forced=bool(self.called)
        )

    def outputs(self, tokenizer: Tokenizer, answer: StructuredOutputs | None) -> StructuredOutputs | None:
        """Return the output constraint that the tools and `answer` require together; None for no constraint.

        It enforces calls if they are required; otherwise it permits calls, or a text that satisfies `answer`.

        Args:
            tokenizer: The tokenizer of the model.
            answer: The constraint of a response without calls; None for no constraint.

        Raises:
            ApiError: If a call is required and `answer` is set, or `answer` is neither a JSON schema nor any JSON
                object, or the model's format cannot enforce the parameters of a function.
        """
        or_schema: str | None = None
        if self.called:
            if answer is not None:
                raise invalid(
                    "tool_choice: it requires a call, but the request also has a structured output: give only one "
                    "of them",
                    "tool_choice",
                )
        elif answer is None:
            return None
        else:
            schema = '{"type": "object"}' if answer.json_object else answer.json
            if not isinstance(schema, str):
                raise invalid("tools: together with tools, the structured output can only be a JSON schema", "tools")
            or_schema = schema
        functions = self.called or self.functions
        try:
            grammar = forced_calls(self.format, functions, tokenizer, several=self.several, or_schema=or_schema)
        except ValueError as error:
            raise invalid(f"tools: {error}", "tools", code="invalid_grammar") from None
        return StructuredOutputs(grammar=grammar)

    def trial(self, answer: StructuredOutputs | None) -> StructuredOutputs | None:
        """Return the same constraint as `outputs` for a vocabulary without control tokens, for the grammar check."""
        return self.outputs(ByteTokenizer(), answer)


def read_tools(
    fields: ChatFields, template: ChatTemplate, settings: ServerSettings, *, shaped: bool = False
) -> ToolUse | None:
    """Return the tools of a request, or None if it allows no calls.

    Args:
        fields: The fields of the request.
        template: The chat template, which reveals the model's tool-call format.
        settings: The settings of the server.
        shaped: Whether the request also sets a structured-output constraint.

    Raises:
        ApiError: If the tools or tool_choice are invalid, or the tool-call format of the model is unknown.
    """
    choice = fields.tool_choice
    if choice == "none" or not fields.tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice: it requires a call, but the request has no tools: give tools", "tool_choice")
        return None
    functions = tuple(_function(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools))
    if len({function.name for function in functions}) < len(functions):
        raise invalid("tools: two functions have the same name", "tools")
    functions, called = _chosen(choice, functions)
    tool_format = format_for(template, settings)
    if tool_format is None and called:
        tool_format = format_named(ANY_MODEL)
    if tool_format is None:
        raise invalid(
            "tools: the tool-call format of this model is unknown: start the server with --tool-call-parser NAME, "
            "force a call with tool_choice, or leave tools out",
            "tools",
            code="no_tool_format",
        )
    if called or shaped:
        _check_parameters(called or functions, settings)
        if not settings.open_objects:
            strict = {tool["function"]["name"] for tool in fields.tools if tool["function"].get("strict") is True}
            functions, called = (_with_closed_objects(each, strict) for each in (functions, called))
    # A named function is called once, as in OpenAI and vLLM.
    named = isinstance(choice, Mapping) and choice["type"] == "function"
    several = fields.parallel_tool_calls and not named
    return ToolUse(tool_format, functions, called, several)


def _with_closed_objects(functions: Sequence[Function], strict: Collection[str]) -> tuple[Function, ...]:
    """Return functions with closed objects in their parameters; `strict` names those that ask for it."""
    return tuple(replace(each, parameters=closed(each.parameters, strict=each.name in strict)) for each in functions)


def _check_parameters(functions: Sequence[Function], settings: ServerSettings) -> None:
    """Raise ApiError if the parameter schemas are unsuitable for a grammar."""
    for function in functions:
        check_schema(function.parameters, "tools", settings, settings.schema_bytes)
        if function.parameters["type"] != "object":
            raise invalid("tools: parameters that are enforced must be of type object", "tools")
    size = sum(len(str(function.parameters)) for function in functions)
    if size > _MAX_SCHEMAS * settings.schema_bytes:
        raise invalid("tools: their parameters together are too long for one grammar: give fewer tools", "tools")


def format_for(template: ChatTemplate, settings: ServerSettings) -> ToolFormat | None:
    """Return the tool-call format of a model: the server's setting, or else the format that its template reveals."""
    written = template.probe.calls.tool_format
    if settings.tool_parser is None or (written is not None and written.name == settings.tool_parser):
        return written
    return format_named(settings.tool_parser)


def _function(tool: Mapping[str, Any], where: str) -> Function:
    function, kind = tool.get("function"), tool.get("type", "function")
    if kind != "function":
        raise invalid(f"{where}.type is {str(kind)[:_SHOWN]!r}; give 'function', the only supported type", "tools")
    if not isinstance(function, dict):
        problem = "is missing" if function is None else "is not an object"
        raise invalid(f"{where}.function {problem}: give an object with a name", "tools")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{where}.function.name: give 1 to 64 letters, digits, dots, dashes and underscores", "tools")
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{where}.function.parameters: a JSON schema must be an object", "tools")
    return Function(name, _NO_PARAMETERS if parameters is None else {"type": "object", **parameters})


def _chosen(
    choice: str | Mapping[str, Any] | None, functions: tuple[Function, ...]
) -> tuple[tuple[Function, ...], tuple[Function, ...]]:
    """Return the functions that may be called, and those of which one must be called; raise ApiError if invalid."""
    if choice is None or choice == "auto":
        return functions, ()
    if choice == "required":
        return functions, functions
    by_name = {function.name: function for function in functions}
    match choice:
        case {"type": "function"}:
            return functions, (_found(choice, by_name),)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools},
        }:
            names = {_found(tool, by_name).name for tool in tools}
            allowed = tuple(function for function in functions if function.name in names)
            return allowed, allowed if mode == "required" else ()
        case {"type": "allowed_tools"}:
            raise invalid(
                "tool_choice: give allowed_tools a mode, auto or required, and a list of tools", "tool_choice"
            )
    raise invalid("tool_choice: give none, auto, required, a function with its name, or allowed_tools", "tool_choice")


def _found(tool: object, by_name: Mapping[str, Function]) -> Function:
    """Return the function that `{"type": "function", "function": {"name": ...}}` names, or raise ApiError."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice: give the type function and a name for each tool", "tool_choice")
    if name not in by_name:
        raise invalid(f"tool_choice: tools has no function {name[:_SHOWN]!r}: add it", "tool_choice")
    return by_name[name]


def check_calls(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ApiError if a tool call in the messages lacks a part, has a wrong role, or too many values."""
    arguments: list[object] = []
    for index, message in enumerate(messages):
        legacy = message.get("function_call")
        if legacy is not None and not (_is_function(legacy) and message.get("role") == "assistant"):
            raise invalid(
                f"messages[{index}].function_call: give the assistant's call with name and arguments", "messages"
            )
        arguments.append((legacy or {}).get("arguments"))
        calls = message.get("tool_calls")
        if calls is None:
            continue
        whole = isinstance(calls, list) and all(_is_call(call) for call in calls)
        if not whole or message.get("role") != "assistant":
            raise invalid(
                f"messages[{index}].tool_calls: give the assistant's calls, each with id, function.name and "
                "function.arguments",
                "messages",
            )
        arguments += [call["function"].get("arguments") for call in calls]
    given = [each for each in arguments if isinstance(each, str)]
    # They are counted as one text. After invalid JSON the count is wrong, but parsing fails at that point anyway.
    if given and crowded(",".join(given).encode("utf-8", "surrogatepass")):
        too_many = f"messages: the arguments of their tool calls have more than {MAX_VALUES} values: send fewer"
        raise invalid(too_many, "messages", code="too_large")


def _is_call(call: object) -> bool:
    return isinstance(call, dict) and isinstance(call.get("id"), str) and _is_function(call.get("function"))


def _is_function(function: object) -> bool:
    return isinstance(function, dict) and isinstance(function.get("name"), str)


@dataclass(slots=True)
class ToolCalls:
    """The tool calls of a complete response, and the remaining text as its content."""

    content: str = ""
    by_index: dict[int, CallDelta] = field(default_factory=dict)

    def take(self, deltas: Iterable[ToolDelta]) -> None:
        """Add the parser's output; a call that the parser takes back is removed."""
        for delta in deltas:
            self.content += delta.content
            for call in delta.calls:
                old = self.by_index.get(call.index, CallDelta(call.index))
                self.by_index[call.index] = CallDelta(
                    call.index, old.id or call.id, old.name or call.name, old.arguments + call.arguments
                )
            for index in delta.withdrawn:
                del self.by_index[index]

    def body(self) -> list[dict[str, object]]:
        """Return the calls as `tool_calls` of a chat message."""
        return [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.by_index.values()
        ]


def call_delta(call: CallDelta) -> dict[str, object]:
    """Return a call as an entry of `tool_calls` in the delta of a streamed chunk."""
    if call.id:
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": call.id, "type": "function", "function": function}
    return {"index": call.index, "function": {"arguments": call.arguments}}
