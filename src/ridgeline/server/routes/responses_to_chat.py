"""The conversion of a /v1/responses request into a chat request.

Responses are stateless: the server stores none, and each request contains the whole conversation.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.routes.request_fields import ChatFields, read_fields
from ridgeline.server.server_settings import ServerSettings


class ResponseFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a /v1/responses request."""

    model: str = ""
    input: str | list[dict[str, Any]] = ""
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    store: bool = False
    """Accepted as true or false, although responses are never stored; the response states false."""
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    cache_salt: str | None = None
    service_tier: str | None = None


def as_chat(fields: ResponseFields, settings: ServerSettings) -> ChatFields:
    """Convert a /v1/responses request into the equivalent chat request.

    Raises:
        ApiError: If the request is invalid; the error names the field of this route.
    """
    _check_parts(fields)
    body = {
        "model": fields.model,
        "messages": _messages(fields),
        "max_completion_tokens": fields.max_output_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "stream": fields.stream,
        "stream_options": fields.stream_options,
        "reasoning_effort": (fields.reasoning or {}).get("effort"),
        "response_format": _response_format(fields.text or {}),
        "tools": [_tool(tool) for tool in fields.tools] if fields.tools else None,
        "tool_choice": _tool_choice(fields.tool_choice),
        "parallel_tool_calls": fields.parallel_tool_calls,
        "cache_salt": fields.cache_salt,
        "service_tier": fields.service_tier,
    }
    try:
        return read_fields(body, ChatFields, settings)[0]
    except ApiError as error:
        raise named_as_here(error) from None


_REFUSED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "reasoning": {"summary": (), "generate_summary": ()},
    "stream_options": {"continuous_usage_stats": (False,)},
    "text": {"verbosity": ("medium",)},
}
"""The unsupported parts of fields, with the values that request nothing special (null always does)."""


def _check_parts(fields: ResponseFields) -> None:
    """Raise ApiError if an unsupported part of a field would change the response."""
    for name, parts in _REFUSED.items():
        for part, value in (getattr(fields, name) or {}).items():
            if part in parts and value is not None and value not in parts[part]:
                raise invalid(f"{name}.{part} is not supported here; leave it out", name, code="unsupported_field")


_HERE = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
    "response_format": "text",
}


def named_as_here(error: ApiError) -> ApiError:
    """Return an error of the chat route with the field renamed as in /v1/responses."""
    name = _HERE.get(error.param or "")
    if name is None or error.param is None:
        return error
    message = error.message.replace(error.param, name, 1)
    return ApiError(error.status, message, param=name, code=error.code, headers=error.headers)


def _messages(fields: ResponseFields) -> list[dict[str, Any]]:
    """Return the chat messages; calls join the assistant message before them, reasoning the one after it."""
    messages: list[dict[str, Any]] = []
    if fields.instructions is not None:
        messages.append({"role": "system", "content": fields.instructions})
    if isinstance(fields.input, str):
        return [*messages, {"role": "user", "content": fields.input}] if fields.input else messages
    reasoning = ""
    for index, item in enumerate(fields.input):
        where, kind = f"input[{index}]", item.get("type", "message")
        if kind == "reasoning":
            reasoning += _reasoning(item, where)
            continue
        if reasoning and not _is_assistants(item):
            raise _without_answer(f"input[{index - 1}]")
        if kind == "function_call":
            _join_call(messages, _call(item, where), reasoning)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content"), "reasoning": reasoning or None})
        else:
            raise invalid(f"{where}: items of this type are not supported", "input", code="unsupported_item")
        reasoning = ""
    if reasoning:
        raise _without_answer(f"input[{len(fields.input) - 1}]")
    return messages


def _is_assistants(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "function_call" or item.get("role") == "assistant"


def _without_answer(where: str) -> ApiError:
    """Return the error for reasoning without a following assistant message, which OpenAI rejects too.

    Chat templates have reasoning as part of the message that it led to.
    """
    return invalid(
        f"{where}: reasoning must be followed by the assistant's message or call: give both or neither", "input"
    )


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    if item.get("encrypted_content") is not None:
        raise invalid(
            f"{where}: this server cannot read encrypted reasoning: leave encrypted_content out",
            "input",
            code="unsupported_item",
        )
    parts = item.get("content") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise invalid(f"{where}.content: give parts with text", "input")
    return "".join(map(str, texts))


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    named = {name: item.get(name) for name in ("call_id", "name", "arguments")}
    if not all(isinstance(value, str) for value in named.values()):
        raise invalid(f"{where}: a call needs call_id, name and arguments", "input")
    function = {"name": named["name"], "arguments": named["arguments"]}
    return {"id": named["call_id"], "type": "function", "function": function}


def _join_call(messages: list[dict[str, Any]], call: dict[str, Any], reasoning: str) -> None:
    if reasoning or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None, "reasoning": reasoning or None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _response_format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    given = text.get("format")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise invalid("text.format: give an object with a type", "text")
    if given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise invalid("tools: only tools of type function are supported", "tools", code="unsupported_tool")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: str | dict[str, Any] | None) -> object:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        tools = [_as_in_chat(tool) for tool in tools] if isinstance(tools, list) else tools
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    if choice.get("type") != "function":
        raise invalid("tool_choice: give auto, none, required, a function or allowed_tools", "tool_choice")
    return _as_in_chat(choice)


def _as_in_chat(tool: object) -> object:
    """Return a function choice in chat format, and any other value unchanged.

    The check of the tools rejects those other values later.
    """
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {"name": tool.get("name")}}
