"""The table of fields: what is taken, what changes nothing, what is refused by name, what nobody knows."""

import inspect
from typing import Any

import openai
import pytest
from openai.resources.responses import Responses

from ridgeline.engine.events import Event
from ridgeline.server.errors import ApiError
from ridgeline.server.http.exchanges import IGNORED
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.routes.request_fields import (
    NEUTRAL,
    REFUSED,
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    read_fields,
)
from ridgeline.server.routes.responses_to_chat import ResponseFields
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running

SETTINGS = ServerSettings(models=("m",))
KINDS = (ChatFields, CompletionFields)


def refusal(body: Any, kind: Any = CompletionFields, settings: ServerSettings = SETTINGS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_fields(body, kind, settings)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_null_says_nothing_whatever_the_field(kind: Any) -> None:
    names = {*kind.__struct_fields__, *NEUTRAL, *REFUSED}
    assert read_fields(dict.fromkeys(names), kind, SETTINGS) == (kind(), ())


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_is_in_two_groups(kind: Any) -> None:
    assert not NEUTRAL & REFUSED.keys()
    assert not NEUTRAL & set(kind.__struct_fields__)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_is_named_and_passes_with_what_it_means_anyway(kind: Any) -> None:
    refused = REFUSED.keys() - set(kind.__struct_fields__)
    assert len(refused) > 20
    for name in refused:
        error = refusal({name: {"some": "thing"}}, kind)
        assert (error.param, error.code) == (name, "unsupported_field")
        assert name in error.message
        for harmless in REFUSED[name]:
            assert read_fields({name: harmless}, kind, SETTINGS) == (kind(), ())


def test_what_openai_calls_its_own_fields_is_known_in_each_of_them() -> None:
    """No field of the official client's three methods is unknown: each is taken, neutral or refused."""
    ours = {"extra_headers", "extra_query", "extra_body", "timeout", "self"}
    for create, kind in (
        (openai.resources.chat.Completions.create, ChatFields),
        (openai.resources.Completions.create, CompletionFields),
        (Responses.create, ResponseFields),
    ):
        theirs = set(inspect.signature(create).parameters) - ours
        assert len(theirs) > 15
        assert theirs <= {*kind.__struct_fields__, *NEUTRAL, *REFUSED}, kind


VLLM = (
    "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt", "chat_template",
    "chat_template_kwargs", "continue_final_message", "documents", "ec_transfer_params", "echo", "ignore_eos",
    "include_reasoning", "include_stop_str_in_output", "kv_transfer_params", "length_penalty", "logprob_token_ids",
    "media_io_kwargs", "min_p", "min_tokens", "mm_processor_kwargs", "priority", "prompt_embeds", "prompt_logprobs",
    "repetition_detection", "repetition_penalty", "request_id", "return_mm_kwargs", "return_prompt_text",
    "return_token_ids", "return_token_offsets", "return_tokens_as_token_ids", "routed_experts_prompt_start",
    "session_id", "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "stream_interval",
    "structured_outputs", "thinking_token_budget", "top_k", "truncate_prompt_tokens", "truncation_side",
    "use_beam_search", "vllm_xargs", "watermarking",
)  # fmt: skip
"""Fields of vLLM's chat and completion requests that OpenAI's lack."""


def test_no_field_of_vllms_is_unknown() -> None:
    """Expect each to be supported, neutral or refused, but for two of chat that completions do not know."""
    assert set(VLLM) <= {*ChatFields.__struct_fields__, *NEUTRAL, *REFUSED}
    of_chat = {"add_generation_prompt", "include_reasoning"}
    assert set(VLLM) - of_chat <= {*CompletionFields.__struct_fields__, *NEUTRAL, *REFUSED}


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_detection", {"max_pattern_size": 4, "min_count": 3}),
        ("logprob_token_ids", [1, 2]),
        ("media_io_kwargs", {"video": {"num_frames": 4}}),
        ("return_prompt_text", True),
        ("stream_interval", 8),
    ],
)
def test_a_field_of_vllms_that_would_be_missed_is_refused_by_name(
    server: Running, route: str, name: str, value: Any
) -> None:
    said = {"prompt": "a"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    reply = server.post(route, {**said, "max_tokens": 1, name: value})
    error = reply.json()["error"]
    assert (reply.status, error["param"], error["code"]) == (400, name, "unsupported_field")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids"),
        ({"cache_salt": 3}, "cache_salt"),
        ({"service_tier": 3}, "service_tier"),
        ({"echo": "yes"}, "echo"),
        ({"store": True}, "store"),
    ],
)
def test_types_and_bounds_name_the_field(body: Any, param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"messages": [{}] * 1025}, "messages"),
        ({"tools": [{}] * 129}, "tools"),
        ({"prompt": "a completion's"}, "prompt"),
    ],
)
def test_so_do_those_of_chat(body: Any, param: str) -> None:
    assert refusal(body, ChatFields).param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.0001}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**63}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"logit_bias": {"2048": 1}}, "logit_bias"),
        ({"stop_token_ids": [2048]}, "stop_token_ids"),
        ({"min_tokens": 20}, "min_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"max_tokens": 508}, "max_tokens"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_by_name(server: Running, body: Any, param: str) -> None:
    reply = server.post("/v1/completions", {"prompt": "Once upon a time", **body})
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)
    assert not server.service.live


class Tiers:
    """An observer that writes down which tier each request asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def arrived(self, live: InFlightRequest) -> None:
        self.asked.append(live.spec.service_tier)

    def refused(self, live: InFlightRequest, error: ApiError) -> None: ...
    def event(self, live: InFlightRequest, event: Event) -> None: ...
    def ended(self, live: InFlightRequest, error: BaseException | None) -> None: ...


def test_whoever_observes_a_request_hears_of_its_tier(server: Running) -> None:
    tiers = Tiers()
    server.service.observers.append(tiers)
    chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1}
    bodies = {
        "/v1/completions": {"prompt": ["Once", "Twice"], "max_tokens": 1},
        "/v1/chat/completions": chat,
        "/v1/responses": {"input": "Once", "max_output_tokens": 1},
    }
    try:
        for path, body in bodies.items():
            for tier in ("flex", None):
                reply = server.post(path, {**body, "service_tier": tier})
                assert (reply.status, reply.headers.get(IGNORED)) == (200, None), reply.data
    finally:
        server.service.observers.remove(tiers)
    assert tiers.asked == ["flex", "flex", "", "", "flex", "", "flex", ""]


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [""], [["a"]], [1, "a"], ["a", 1], [True], [None], {"a": 1}, 3, [-1], [2048], [2**40], ["x"] * 33],
)
def test_what_is_no_prompt_is_refused(server: Running, prompt: Any) -> None:
    reply = server.post("/v1/completions", {"prompt": prompt})
    assert (reply.status, reply.json()["error"]["param"]) == (400, "prompt")


def test_a_prompt_is_one_position_shorter_than_the_context_or_refused_with_the_three_numbers(server: Running) -> None:
    fits = server.post("/v1/completions", {"prompt": [5] * 511})
    assert fits.json()["usage"]["completion_tokens"] == 1
    for length, most in ((512, {}), (513, {}), (500, {"max_tokens": 13})):
        reply = server.post("/v1/completions", {"prompt": [5] * length, **most})
        error = reply.json()["error"]
        assert (reply.status, error["code"]) == (400, "context_length_exceeded")
        assert "512" in error["message"]
        assert str(length) in error["message"]
        assert str(most.get("max_tokens", 1)) in error["message"]
    server.check()


def test_unknown_fields_are_told_in_a_header_or_refused_where_the_server_is_strict(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 1, "user": "someone", "metadata": {"a": "b"}, "store": False}
    assert IGNORED not in server.post("/v1/completions", body).headers
    odd = {"mood": "happy", "x-Y_z.1": 1, "bad\r\nname: x": 1, "é": 1, "y" * 100: 1}
    for stream in (False, True):
        told = server.post("/v1/completions", {**body, **odd, "stream": stream}).headers[IGNORED]
        assert told == f"mood,x-Y_z.1,bad??name??x,?,{'y' * 64}"
    strict = ServerSettings(models=("m",), strict=True)
    assert refusal({**body, "mood": "happy"}, settings=strict).param == "mood"
    assert read_fields({"user": "someone"}, ChatFields, strict) == (ChatFields(), ())
    assert refusal({"texts": []}, DetokenizeFields, strict).param == "texts"
