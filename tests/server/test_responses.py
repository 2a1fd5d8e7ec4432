"""/v1/responses through the official client: the same words as the chat route's, as items and events."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from server.conftest import Running
from server.test_chat import saying

PROMPT = "Once upon a time"


def create(client: openai.OpenAI, input: Any = PROMPT, **fields: Any) -> Response:
    """A response that is not streamed."""
    response = client.responses.create(model="tales", input=input, **fields)
    assert isinstance(response, Response)
    return response


def test_a_response_is_what_chat_says(client: openai.OpenAI) -> None:
    response = create(client, temperature=0, max_output_tokens=12)
    chat = client.chat.completions.create(
        model="tales", messages=[{"role": "user", "content": PROMPT}], temperature=0, max_tokens=12
    )
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.id[:5]) == ("incomplete", "resp_")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens == 12
    assert (response.temperature, response.max_output_tokens) == (0, 12)


@pytest.mark.parametrize("said", ["Once.", "<think>hm, a story</think>Once.", "<think>never ends"])
def test_its_stream_has_every_event_and_ends_with_the_same_response(said: str) -> None:
    with saying(said) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        whole = create(client, max_output_tokens=40)
        events = list(client.responses.create(model="tales", input=PROMPT, max_output_tokens=40, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last: Any = events[-1]
    assert last.type == f"response.{whole.status}"
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        if event.type.endswith("text.delta"):
            key = (event.type.removesuffix(".delta"), event.output_index)
            texts[key] = texts.get(key, "") + event.delta
        if event.type.endswith("text.done"):
            assert texts[event.type.removesuffix(".done"), event.output_index] == event.text
    assert {item.id.split("_")[0] for item in last.response.output} <= {"rs", "msg"}
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert added == done == [item.id for item in last.response.output]
    assert _plain(last.response) == _plain(whole)
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning"] * said.startswith("<think>") + ["message"] * said.endswith("Once.")
    if "Once" in said:
        assert whole.output_text == "Once."


def _plain(response: Response) -> dict[str, Any]:
    """A response without what is drawn anew for each."""
    plain = response.model_dump(exclude={"id", "created_at"})
    del plain["usage"]["input_tokens_details"]  # the second request finds the prompt of the first
    for item in plain["output"]:
        del item["id"]
    return plain


def test_the_conversation_is_what_the_chat_template_gets() -> None:
    """instructions, messages with parts, thoughts, calls and their results."""
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "add"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]
    template = (
        "{% for m in messages %}[{{ m.role }} {{ m.reasoning_content }} {{ m.content }}"
        "{% for c in m.tool_calls %} {{ c.function.name }}{% endfor %}]{% endfor %}"
    )
    with saying("x", template=template) as server:
        prompts: list[Any] = []
        server.service.observers.append(Listener(prompts))
        reply = server.post("/v1/responses", {"input": items, "instructions": "be brief", "max_output_tokens": 1})
        assert reply.status == 200, reply.data
        assert bytes(prompts[0]).decode() == "[system  be brief][user  add][assistant hm yes add][tool  2]"


def test_thoughts_before_a_call_are_not_lost_on_the_message_before_them() -> None:
    items: list[Any] = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "yes"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]
    template = (
        "{% for m in messages %}[{{ m.role }} {{ m.reasoning_content }} {{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}]{% endfor %}"
    )
    with saying("x", template=template) as server:
        prompts: list[Any] = []
        server.service.observers.append(Listener(prompts))
        assert server.post("/v1/responses", {"input": items, "max_output_tokens": 1}).status == 200
        said = bytes(prompts[0]).decode()
        assert said.startswith("[user  add][assistant  yes][assistant hm ")
        assert said.endswith("[tool  2]")


class Listener:
    """An observer that keeps prompts."""

    def __init__(self, prompts: list[Any]) -> None:
        self._prompts = prompts

    def refused(self, live: Any, error: Any) -> None:
        pass

    def event(self, live: Any, event: Any) -> None:
        pass

    def ended(self, live: Any, error: Any) -> None:
        pass

    def arrived(self, live: Any) -> None:
        self._prompts.append(list(live.spec.prompt))


THOUGHTS = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp-1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"input": [{"type": "reasoning", "content": [3]}]}, "input"),
        ({"input": [{"role": "user", "content": "a"}, THOUGHTS]}, "input"),
        ({"input": [THOUGHTS, {"role": "user", "content": "a"}]}, "input"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "input"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"text": {"format": "json"}}, "text"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"reasoning": {"summary": "auto"}}, "reasoning"),
        ({"max_output_tokens": 1000}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_it_has_here(server: Running, body: Any, param: str) -> None:
    reply = server.post("/v1/responses", {"input": PROMPT, **body})
    assert (reply.status, reply.json()["error"]["param"]) == (400, param), reply.data
    server.idle()


def test_nothing_is_stored_and_the_answer_says_so(server: Running) -> None:
    reply = server.post(
        "/v1/responses", {"input": PROMPT, "store": True, "max_output_tokens": 1, "metadata": {"a": "b"}}
    )
    assert reply.json()["store"] is False
    assert reply.json()["metadata"] == {"a": "b"}
    server.check()


def test_an_answer_may_be_held_to_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": {**schema, "additionalProperties": False}}}
    assert json.loads(create(client, text=text, max_output_tokens=100).output_text) in ({"a": True}, {"a": False})


TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{# <tool_call> arguments #}{% for m in messages %}"
    "{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}"
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def test_a_call_is_an_item_and_its_result_goes_back() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools: list[Any] = [{"type": "function", "name": "add", "description": "Adds.", "parameters": parameters}]
    with saying(CALL, template=TEMPLATE, most_tokens=80) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            (call,) = create(client, "add", tools=tools).output
            events: list[Any] = list(client.responses.create(model="tales", input="add", tools=tools, stream=True))
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments), call.status) == ("add", {"a": 1, "b": 2}, "completed")
        assert call.call_id
        told = [event for event in events if event.type.startswith("response.function_call_arguments")]
        assert "".join(event.delta for event in told[:-1]) == told[-1].arguments == call.arguments
        assert events[-1].response.output[0].arguments == call.arguments
        prompts: list[Any] = []
        server.service.observers.append(Listener(prompts))
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        reply = server.post("/v1/responses", {"input": [{"role": "user", "content": "add"}, call.to_dict(), result]})
        assert reply.status == 200, reply.data
        assert bytes(prompts[0]).decode() == f"user: addassistant: {CALL}tool: 3"
