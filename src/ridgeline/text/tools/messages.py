"""Calls and their results on their way back into a conversation, as the model's template takes them."""

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.text.tools.formats import ToolFormat
from ridgeline.untrusted import without_collecting

_LETTERS = string.ascii_letters + string.digits


def with_calls(messages: Sequence[Mapping[str, Any]], tool_format: ToolFormat | None) -> list[dict[str, Any]]:
    """The messages, with the arguments of their calls and the ids of calls and results in the template's form.

    OpenAI's interface has arguments as text; most templates write them as JSON themselves, and would quote a text.
    Raises ValueError for arguments that are no JSON object.
    """
    return [_message(message, tool_format) for message in messages]


def _message(message: Mapping[str, Any], tool_format: ToolFormat | None) -> dict[str, Any]:
    changed = dict(message)
    short = tool_format is not None and tool_format.short_ids
    if short and isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _short(message["tool_call_id"])
    calls = message.get("tool_calls")
    if not calls:
        changed.pop("tool_calls", None)
        return changed
    as_text = tool_format is not None and tool_format.arguments_as_text
    changed["tool_calls"] = [_call(call, as_text, short) for call in calls]
    return changed


def _call(call: Mapping[str, Any], as_text: bool, short: bool) -> dict[str, Any]:
    function = call["function"]
    arguments = _arguments(function.get("arguments"))
    changed = {"name": function["name"], "arguments": _written(arguments) if as_text else arguments}
    identity = call.get("id")
    return {
        **call,
        "type": "function",
        "function": changed,
        **({"id": _short(identity)} if short and isinstance(identity, str) else {}),
    }


def _arguments(given: object) -> Mapping[str, Any]:
    try:
        value = _read(given) if isinstance(given, str) and given.strip() else {} if given in (None, "") else given
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, Mapping):
        raise ValueError("the arguments of a tool call are no JSON object")
    return value


def _read(text: str) -> Any:
    with without_collecting():
        return json.loads(text)


def _written(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _short(identity: str) -> str:
    """An id of nine letters and digits: itself, or one that follows from it, so that calls and results still agree."""
    if len(identity) == 9 and identity.isascii() and identity.isalnum():
        return identity
    number = int.from_bytes(hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()[:8])
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))
