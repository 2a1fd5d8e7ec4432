"""The messages of a conversation as a template takes them: roles checked, parts of text joined."""

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.server.errors import invalid
from ridgeline.text.template import ROLES

_NEED_CONTENT = frozenset({"system", "developer", "user"})


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Raises ApiError naming the message. Nothing that a part points to is fetched."""
    if not messages:
        raise invalid("messages: give at least one message", "messages", code="missing_field")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role: give one of system, developer, user, assistant, tool", "messages")
    content = _content(message.get("content"), f"{where}.content")
    if content is None and role in _NEED_CONTENT:
        raise invalid(f"{where}.content: a message of the role {role} has text", "messages")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise invalid(f"{where}.tool_call_id: a tool's answer names the call that it answers", "messages")
    return {**message, "content": content}


def _content(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where}: give a text or a list of parts", "messages")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "input_text", "output_text"):
        what = f"a part of the type {kind}" if isinstance(kind, str) and kind.isidentifier() else "such a part"
        raise invalid(f"{where}: this model reads text; {what} is not supported", "messages", code="unsupported_part")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text: give the part's text", "messages")
    return text
