"""The forms in which a chat template takes tool calls, found by transformers' renderer: the reference of the probe."""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

Message = dict[str, Any]
ABSENT = object()
ASK: Message = {"role": "user", "content": "sentinel_question"}
CALLED, KEY, VALUE = "sentinel_function", "sentinel_key", "sentinel_value"
OFFERED = [
    {
        "type": "function",
        "function": {
            "name": "offered",
            "description": "Offered.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}},
        },
    }
]


@dataclass(frozen=True)
class Form:
    """One form of the messages with tool calls."""

    as_text: bool
    """Whether arguments are JSON text."""
    content: Any
    """The content next to calls without text."""
    apart: bool = False
    """Whether text next to calls becomes a message of its own before them."""
    joined: bool = False
    """Whether the texts of one turn become a single one, in the place of the last."""

    def written(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Give the messages in this form."""
        for message in _one_text_a_turn(messages) if self.joined else messages:
            if not message.get("tool_calls"):
                yield message
                continue
            kept = {key: value for key, value in message.items() if key not in ("content", "tool_calls")}
            calls = [self._call(call) for call in message["tool_calls"]]
            text = message.get("content")
            is_apart = self.apart or self.joined
            if text and is_apart:
                yield {**kept, "content": text}
            content = text if text and not is_apart else self.content
            yield {**kept, **({} if content is ABSENT else {"content": content}), "tool_calls": calls}

    def _call(self, call: Message) -> Message:
        arguments = call["function"]["arguments"]
        as_object = json.loads(arguments) if isinstance(arguments, str) else arguments
        given = json.dumps(as_object, ensure_ascii=False) if self.as_text else as_object
        return {**call, "function": {**call["function"], "arguments": given}}


def rendered(source: str, messages: Sequence[Message], tools: Any = None) -> str | None:
    """Give transformers' text, or None where the template refuses the messages."""
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "")
    try:
        return str(render_jinja_template([list(messages)], chat_template=source, tools=tools, **names)[0][0])
    except (jinja2.TemplateError, TypeError, KeyError):
        return None


@functools.cache
def call_forms(source: str) -> tuple[Form, ...]:
    """Give the forms in which a call is written exactly once, its arguments quoted once and no null in words."""
    found = []
    for as_text, content in itertools.product((False, True), ("", None, ABSENT)):
        form = Form(as_text, content)
        if _writes_once(source, form):
            ways = (form, Form(as_text, content, True), Form(as_text, content, joined=True))
            found.append(next((way for way in ways if _keeps_text(source, way)), form))
    return tuple(form for form in found if form.as_text == found[0].as_text)


def _one_text_a_turn(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the assistant's texts of each turn joined in the last message that has one."""
    written = [dict(message) for message in messages]
    earlier: Message | None = None
    for message in written:
        if message["role"] == "user":
            earlier = None
        elif message["role"] == "assistant" and message.get("content"):
            if earlier is not None:
                message["content"] = f"{earlier['content']}\n\n{message['content']}"
                earlier["content"] = None
            earlier = message
    return [m for m in written if m["role"] != "assistant" or m.get("content") or m.get("tool_calls")]


def _calling(text: str | None) -> Message:
    function = {"name": CALLED, "arguments": {KEY: VALUE}}
    call = {"id": "sentinel1", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def _keeps_text(source: str, form: Form) -> bool:
    """Whether a call and the text before it are both written, in a conversation that goes on."""
    result = {"role": "tool", "name": CALLED, "tool_call_id": "sentinel1", "content": "sentinel_result"}
    loop = [ASK, _calling("sentinel_text"), result, {"role": "assistant", "content": "sentinel_end"}, ASK]
    messages = list(form.written(loop))
    whole = rendered(source, messages, OFFERED) or rendered(source, messages) or ""
    return all(word in whole for word in ("sentinel_text", CALLED, VALUE))


def _writes_once(source: str, form: Form) -> bool:
    messages = list(form.written([ASK, _calling(None)]))
    whole = rendered(source, messages, OFFERED) or rendered(source, messages) or ""
    said = whole.partition(ASK["content"])[2]
    clean = not any(each in said for each in (f'\\"{KEY}', f"{{'{KEY}'", "None"))
    return clean and all(said.count(word) == 1 for word in (CALLED, KEY, VALUE))


def in_forms(messages: Sequence[Message], forms: Sequence[Form]) -> list[list[Message]]:
    """Give a conversation in each form of a template; as it is if it has no calls, [] if the template takes none."""
    if not any(message.get("tool_calls") for message in messages):
        return [list(messages)]
    return [list(form.written(messages)) for form in forms]
