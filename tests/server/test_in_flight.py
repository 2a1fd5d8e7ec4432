"""InFlightRequest and the record that a route makes: one object from the route to the engine."""

import hashlib
import time
from typing import Any

import pytest

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.worker.engine_messages import AddRequest
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import Generation, InFlightRequest
from server.conftest import Running

MESSAGES = [{"role": "user", "content": "Once"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["Once", "Twice"], "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "Once", "max_output_tokens": 2},
}


class Seen:
    """An observer that keeps the requests that it is told of."""

    def __init__(self) -> None:
        self.live: list[InFlightRequest] = []

    def arrived(self, live: InFlightRequest) -> None:
        self.live.append(live)

    def refused(self, live: InFlightRequest, error: ApiError) -> None: ...
    def event(self, live: InFlightRequest, event: Any) -> None: ...
    def ended(self, live: InFlightRequest, error: BaseException | None) -> None: ...


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_makes_a_record_that_all_others_hold(
    server: Running, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked is in the record, and the record that goes to the engine is the server's own object."""
    llm, seen, sent = server.service.llm, Seen(), list[AddRequest]()
    assert isinstance(llm, AsyncLLM)
    send = llm.host.send
    monkeypatch.setattr(
        llm.host,
        "send",
        lambda message: (sent.append(message) if isinstance(message, AddRequest) else None, send(message)),
    )
    monkeypatch.setattr(server.service, "observers", [seen])
    start = time.perf_counter_ns()
    reply = server.post(route, {**ROUTES[route], "service_tier": "flex", "cache_salt": "mine", "temperature": 0.5})
    assert reply.status == 200, reply.data
    specs = [live.spec for live in seen.live]
    assert len(specs) == (2 if route == "/v1/completions" else 1)
    assert [add.spec is spec for add, spec in zip(sent, specs, strict=True)] == [True] * len(specs)
    assert len({spec.arrived for spec in specs}) == 1, "an HTTP request arrives once"
    for spec in specs:
        assert start < spec.arrived < time.perf_counter_ns()
        assert (spec.service_tier, spec.params.temperature, spec.params.max_tokens) == ("flex", 0.5, 2)
        assert spec.cache_salt == hashlib.sha256(b"saltmine").digest()
        assert spec.separate_reasoning == (route != "/v1/completions")
    assert {live.generation.route for live in seen.live} == {route}


def test_prompts_of_a_generation_are_told_apart() -> None:
    params = SamplingParams(n=3)
    specs = [GenerationRequest([1] * length, params, arrived=5) for length in (4, 7)]
    generation = Generation("cmpl-1", "tales", "/v1/completions", specs)
    first, second = (InFlightRequest(generation, place) for place in range(2))
    assert (first.id, second.id) == ("cmpl-1", "cmpl-1-1")
    assert (first.spec, second.spec) == tuple(specs)
    assert (first.prompt_tokens, second.prompt_tokens, generation.prompt_tokens) == (4, 7, 11)
    assert (generation.choices, generation.arrived, generation.params) == (6, 5, params)
    assert [generation.index(prompt, choice) for prompt in range(2) for choice in range(3)] == list(range(6))
