"""What watches a service, over HTTP: a server of `tales` with /metrics, traces and a record."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import LoadedEngine
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.server.telemetry.observability import Observability, observe_one_engine
from server.conftest import Everybody, Running, running

SECRET = "Sesame-Opens"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("record") / "traffic.jsonl"


@pytest.fixture(scope="module")
def watched(record: Path) -> Iterator[tuple[Running, Observability]]:
    llm = AsyncLLM("tales")  # an engine of its own: what it has done is counted
    settings = ServerSettings(models=("tales",), metrics_alias="vllm", record=str(record))
    service = Service(llm, Everybody())
    watching = observe_one_engine(service, service.llm, settings, "tales")
    try:
        with running(service, settings, routes=watching.routes(), observers=[watching.metrics.exchanged]) as up:
            yield up, watching
    finally:
        llm.close()
        if watching.recorder is not None:
            watching.recorder.close()


def scrape(server: Running) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples, without the labels that all of the engine's have."""
    reply = server.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    common = {("model_name", "tales"), ("engine", "0")}
    return {
        (sample.name, frozenset(sample.labels.items() - common)): sample.value
        for family in text_string_to_metric_families(reply.data.decode())
        for sample in family.samples
    }


def test_the_version_names_what_watches_too(watched: tuple[Running, Observability]) -> None:
    routes = watched[0].get("/version").json()["routes"]
    assert {"/metrics", "/v1/trace/{id}", "/v1/engine/state", "/v1/engine/events"} < set(routes)


def test_a_scrape_counts_what_went_through_http(watched: tuple[Running, Observability]) -> None:
    server, _ = watched
    before = scrape(server)
    answers = [
        server.post("/v1/completions", {"prompt": SECRET, "max_tokens": count, "temperature": 0, "ignore_eos": True})
        for count in (3, 5)
    ]
    assert server.post("/v1/completions", {"prompt": "x", SECRET: 1, "more": 2, "max_tokens": 1}).status == 200
    assert server.post("/v1/completions", {"prompt": "x", "suffix": SECRET}).status == 400
    assert server.get(f"/v1/{SECRET}").status == 404
    assert server.request("BREW", "/v1/models").status == 405
    server.idle()
    after = scrape(server)

    def rise(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return after[key] - before.get(key, 0)

    usages = [reply.json()["usage"] for reply in answers]
    for prefix in ("ridgeline:", "vllm:"):
        assert rise(prefix + "generation_tokens_total") == 3 + 5 + 1
        assert rise(prefix + "request_success_total", finished_reason="length") == 3
        assert rise(prefix + "time_to_first_token_seconds_count") == 3
        assert rise(prefix + "inter_token_latency_seconds_count") == 2 + 4
    assert rise("ridgeline:prompt_tokens_total") >= sum(usage["prompt_tokens"] for usage in usages)
    assert rise("ridgeline:ignored_fields_total") == 2
    assert rise("ridgeline:request_errors_total", code="not_found") == 1
    assert rise("ridgeline:request_errors_total", code="method_not_allowed") == 1
    assert rise("ridgeline:request_errors_total", code="unsupported_field") == 1
    assert rise("http_requests_total", handler="/v1/completions", method="POST", status="2xx") == 3
    assert rise("http_requests_total", handler="none", method="GET", status="4xx") == 1
    assert rise("http_requests_total", handler="/v1/models", method="other", status="4xx") == 1
    steps = sum(rise("ridgeline:step_seconds_count", phase=phase) for phase in ("prefill", "decode", "mixed"))
    assert steps >= 3 + 5 + 1
    assert after["ridgeline:kv_blocks", frozenset({("state", "used")})] == 0
    assert SECRET not in server.get("/metrics").data.decode()


def test_what_the_protocol_refuses_is_counted(watched: tuple[Running, Observability]) -> None:
    server, _ = watched
    refusals = "http_requests_total", frozenset({("handler", "none"), ("method", "other"), ("status", "4xx")})
    too_large = "ridgeline:request_errors_total", frozenset({("code", "headers_too_large")})
    before = scrape(server)
    assert server.get("/v1/models", headers={"x": SECRET * 10_000}).status == 431
    after = scrape(server)
    for name in (refusals, too_large):
        assert after[name] - before.get(name, 0) == 1, name


def test_the_trace_of_an_answer_is_found_by_its_id(watched: tuple[Running, Observability]) -> None:
    server, _ = watched
    answer = server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 4, "ignore_eos": True}).json()
    server.idle()
    reply = server.get(f"/v1/trace/{answer['id']}")
    assert reply.status == 200
    told = reply.json()
    assert told["state"] == "finished"
    assert told["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["output_tokens"] == 4
    run = sum(row["count"] for row in told["ledger"])
    assert run == told["prompt_tokens"] - told["cached_tokens"] + 4 - 1  # of the last token nothing is computed
    assert told["steps"] == len(told["ledger"])
    assert 0 < told["step_seconds"] <= told["total_seconds"]
    assert SECRET not in reply.data.decode()
    missing = server.get("/v1/trace/cmpl-0")
    assert missing.status == 404
    assert missing.json()["error"]["code"] == "not_found"


def test_the_record_of_all_that_has_no_text(watched: tuple[Running, Observability], record: Path) -> None:
    server, watching = watched
    server.post("/v1/completions", {"prompt": SECRET * 10, "max_tokens": 2, "ignore_eos": True})
    server.idle()
    assert watching.recorder is not None
    watching.recorder.close()
    text = record.read_text()
    assert SECRET not in text
    lines = [json.loads(line) for line in text.splitlines()]
    requests = [line for line in lines if line["kind"] == "request"]
    assert requests[-1]["output"] == 2
    assert len(requests[-1]["pages"]) == requests[-1]["input"] // lines[0]["page_size"] > 0
    assert sum(line["positions"] for line in lines if line["kind"] == "step") > 0


def test_the_event_loops_lag_is_measured(monkeypatch: pytest.MonkeyPatch, tales: LoadedEngine) -> None:
    monkeypatch.setattr("ridgeline.server.telemetry.metrics_registry._LAG_SECONDS", 0.001)
    llm = AsyncLLM(tales)
    try:
        watching = observe_one_engine(Service(llm, Everybody()), llm, ServerSettings(), "tales")

        async def run() -> None:
            async with watching.running():
                while b'loop_lag_seconds_count{engine="0",model_name="tales"} 0' in watching.metrics.exposition():
                    await asyncio.sleep(0.001)

        asyncio.run(asyncio.wait_for(run(), 30))
    finally:
        llm.close()
