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
    """Whether arguments are text, the content beside calls without text, and whether calls stand apart from text.

    joined: whether the texts of one turn are a single text, where the last of them is.
    """

    as_text: bool
    content: Any
    apart: bool = False
    joined: bool = False

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
    """Give the messages with all the assistant's texts since the user spoke where the last of them is."""
    written: list[Message] = []
    for message in reversed(messages):
        text = message.get("content")
        if message["role"] == "assistant" and text:
            later = next(
                (
                    m
                    for m in itertools.takewhile(lambda m: m["role"] != "user", reversed(written))
                    if m["role"] == "assistant" and m.get("content")
                ),
                None,
            )
            if later is not None:
                later["content"] = f"{text}\n\n{later['content']}"
                if message.get("tool_calls"):
                    written.append({**message, "content": None})
                continue
        written.append(dict(message))
    return written[::-1]


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
