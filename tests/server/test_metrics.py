"""What /metrics says, against a tally of a scripted run; and its names, which are frozen."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.worker.engine_messages import PeerChanged, Transferred
from ridgeline.server.admission import RequestQueue
from ridgeline.server.errors import ApiError
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.server.telemetry.engine_metrics import EngineMetrics, observe_often
from ridgeline.server.telemetry.metric_families import (
    FAMILIES,
    HTTP_FAMILIES,
    MODEL_LABELS,
    PREFIX,
    REASONS,
    lengths_up_to,
)
from ridgeline.server.telemetry.transfers import TransferLog
from server.scripted import INFO, SECOND, Gate, Scripted, consume, live, turn

FROZEN = Path(__file__).parent / "metrics.json"
ENGINE = {"model_name": "tales", "engine": "0"}


def served(alias: str | None = None) -> tuple[Scripted, Service, EngineMetrics]:
    llm = Scripted()
    metrics = EngineMetrics(llm, "tales", alias=alias)
    service = Service(llm, Gate(), [metrics])  # type: ignore[arg-type]
    service.step_observers.append(metrics.stepped)
    return llm, service, metrics


def samples(metrics: EngineMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and those labels that are not the model's; the latter are looked at here."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            if ":" in sample.name:
                assert sample.labels.items() >= ENGINE.items()
            key = sample.name, frozenset(sample.labels.items() - ENGINE.items())
            assert key not in found
            found[key] = sample.value
    return found


class Reading:
    """Samples under our own prefix."""

    def __init__(self, metrics: EngineMetrics, prefix: str = PREFIX) -> None:
        self.samples, self.prefix = samples(metrics), prefix

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((self.prefix + name, frozenset(labels.items())))

    def histogram(self, name: str, **labels: str) -> tuple[float, float]:
        count, total = self(name + "_count", **labels), self(name + "_sum", **labels)
        assert count is not None
        assert total is not None
        return count, total


def test_names_kinds_labels_and_buckets_are_frozen() -> None:
    """Dashboards are built on them. A change here breaks somebody's: add, do not rename."""
    now = [
        {
            "name": prefix + family.name,
            "kind": family.kind,
            "labels": [*common, *family.labels],
            "buckets": "1, 2, 5, 10, ... to the context" if family.buckets is None else list(family.buckets),
            "shared": family.shared,
        }
        for families, prefix, common in ((FAMILIES, PREFIX, MODEL_LABELS), (HTTP_FAMILIES, "", ()))
        for family in families
    ]
    assert now == json.loads(FROZEN.read_text())


def test_buckets_of_lengths_end_with_the_context() -> None:
    assert lengths_up_to(100) == (1, 2, 5, 10, 20, 50, 100)
    assert lengths_up_to(99) == (1, 2, 5, 10, 20, 50)
    assert lengths_up_to(1) == (1,)


async def two_requests(llm: Scripted, service: Service) -> None:
    """Request 1: 40 tokens, 16 of them cached; queued 1 s, prefilled 2 s, then tokens after 0.02 and 0.25 s.
    Request 2: 30 tokens, two choices of one and two tokens."""
    first = asyncio.create_task(consume(service, live("a", 40, max_tokens=3)))
    second = asyncio.create_task(consume(service, live("b", 30, n=2, max_tokens=2)))
    await turn()
    llm.step([(1, 0, 16, 24), (2, 0, 0, 30)], 1, 2, 1.5, output_tokens=2, running=2, held_pages=5, cached_pages=10)
    llm.token(1, 3, Timing(0, SECOND, 3 * SECOND), cached=16)
    llm.token(2, 3, Timing(0, SECOND, 3 * SECOND), end=1)
    llm.step([(1, 0, 40, 1), (2, 1, 29, 1)], 3, 0.02, 0.01, output_tokens=4, preemptions=1)
    llm.token(1, 3.02, Timing(0, SECOND, 3 * SECOND))
    llm.token(2, 3.02, Timing(0, 3 * SECOND, round(3.02 * SECOND)), choice=1, cached=29)
    llm.step([(1, 0, 41, 1), (2, 1, 30, 1)], 3.02, 0.25, 0.2, output_tokens=6, running=0)
    llm.token(1, 3.27, Timing(0, SECOND, 3 * SECOND), end=3)
    llm.token(2, 3.27, Timing(0, 3 * SECOND, round(3.02 * SECOND)), choice=1, end=2)
    await asyncio.gather(first, second)


def test_counts_and_times_of_a_scripted_run() -> None:
    llm, service, metrics = served()
    asyncio.run(two_requests(llm, service))
    read = Reading(metrics)
    assert read("prompt_tokens_total") == 70  # the second choice has no prompt of its own
    assert read("generation_tokens_total") == 6
    assert (read("prefix_cache_queries_total"), read("prefix_cache_hits_total")) == (70, 16)
    assert read("request_success_total", finished_reason="length") == 3
    assert read("request_success_total", finished_reason="stop") == 0
    assert read("num_preemptions_total") == 1
    assert read("num_requests_running") == 0
    assert read("kv_cache_usage_perc") == pytest.approx(0.05)
    assert [read("kv_blocks", state=state) for state in ("free", "cached", "used")] == [85, 10, 5]
    assert read.histogram("time_to_first_token_seconds") == (2, pytest.approx(6))
    assert read.histogram("inter_token_latency_seconds") == (3, pytest.approx(0.02 + 0.25 + 0.25))
    assert read.histogram("request_time_per_output_token_seconds") == (2, pytest.approx(0.135 + 0.25))
    assert read.histogram("e2e_request_latency_seconds") == (2, pytest.approx(6.54))
    assert read.histogram("request_queue_time_seconds") == (2, pytest.approx(2))
    assert read.histogram("request_prefill_time_seconds") == (2, pytest.approx(4))
    assert read.histogram("request_decode_time_seconds") == (2, pytest.approx(0.54))
    assert read.histogram("request_inference_time_seconds") == (2, pytest.approx(4.54))
    assert read.histogram("request_prompt_tokens") == (2, 70)
    assert read.histogram("request_generation_tokens") == (3, 6)
    assert read.histogram("request_max_num_generation_tokens") == (2, 5)
    assert read.histogram("request_params_n") == (2, 3)
    assert read.histogram("request_params_max_tokens") == (2, 5)
    assert read.histogram("iteration_tokens_total") == (3, 54 + 2 + 2)
    assert read("inter_token_latency_seconds_bucket", le="0.025") == 1
    assert read("inter_token_latency_seconds_bucket", le="0.3") == 3


def test_a_prompt_without_a_token_after_it_is_counted() -> None:
    """A request that has its prompt scored waits for no first token, and yet took its time."""

    async def run(llm: Scripted, service: Service) -> None:
        task = asyncio.create_task(consume(service, live("a", 40, n=2, max_tokens=0)))
        await turn()
        timing = Timing(0, SECOND, 3 * SECOND)
        for choice in range(2):
            event = Event(
                1, choice, at=3 * SECOND, cached=16, timing=timing, finish=FinishReason.LENGTH, output_tokens=0
            )
            llm.queues[1].put_nowait(event)
        await task

    llm, service, metrics = served()
    asyncio.run(run(llm, service))
    read = Reading(metrics)
    assert read("prompt_tokens_total") == 40
    assert (read("prefix_cache_queries_total"), read("prefix_cache_hits_total")) == (40, 16)
    assert read.histogram("time_to_first_token_seconds") == (0, 0)
    assert read.histogram("request_generation_tokens") == (2, 0)
    assert read.histogram("request_prefill_time_seconds") == (1, 2)
    assert read.histogram("e2e_request_latency_seconds") == (1, 3)


def test_guesses_are_counted_by_their_place() -> None:
    """As the engine's counters grow; an engine that was started again counts from nothing."""
    llm, _, metrics = served()
    counts = [(2, 6, 3, (2, 1, 0)), (5, 14, 6, (4, 2, 0)), (1, 3, 3, (1, 1, 1))]
    for step, (drafts, guessed, right, places) in enumerate(counts):
        if step == 2:
            llm.stats = replace(llm.stats, steps=0)
        llm.step(
            [(1, 0, 16, 4)], step, 0.1, drafts=drafts, draft_tokens=guessed, accepted_tokens=right, accepted_at=places
        )
    read = Reading(metrics)
    assert read("spec_decode_num_drafts_total") == 6
    assert read("spec_decode_num_draft_tokens_total") == 17
    assert read("spec_decode_num_accepted_tokens_total") == 9
    each = [read("spec_decode_num_accepted_tokens_per_pos_total", position=str(place)) for place in range(3)]
    assert each == [5, 3, 1]


def test_steps_measured_and_predicted_by_phase() -> None:
    async def run(llm: Scripted, service: Service) -> None:
        await two_requests(llm, service)
        llm.step([(1, 0, 16, 24), (2, 0, 50, 1)], 4, 0.5, 0.25)

    llm, service, metrics = served()
    asyncio.run(run(llm, service))
    read = Reading(metrics)
    assert read.histogram("step_seconds", phase="prefill") == (1, pytest.approx(2))
    assert read.histogram("step_predicted_seconds", phase="prefill") == (1, pytest.approx(1.5))
    assert read.histogram("step_seconds", phase="decode") == (2, pytest.approx(0.27))
    assert read.histogram("step_predicted_seconds", phase="decode") == (2, pytest.approx(0.21))
    assert read.histogram("step_seconds", phase="mixed") == (1, pytest.approx(0.5))


def test_the_band_around_predicted_steps() -> None:
    """Check the factors that the engine tells, and that there are none if it predicts nothing."""
    llm = Scripted()
    llm.info = msgspec.structs.replace(llm.info, predicted_intervals={"prefill": (0.7, 1.4), "decode": (0.9, 1.2)})
    read = Reading(EngineMetrics(llm, "tales"))
    for phase, (low, high) in llm.info.predicted_intervals.items():
        assert read("predicted_interval_ratio", phase=phase, bound="low") == low
        assert read("predicted_interval_ratio", phase=phase, bound="high") == high
    silent = Reading(EngineMetrics(Scripted(), "tales"))
    assert not [name for name, _ in silent.samples if name.endswith("predicted_interval_ratio")]


def test_achieved_rates_are_of_the_last_seconds_while_steps_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, _, metrics = served()
    llm.step([(1, 0, 0, 24)], 1, 2, 1.5)  # the script's work is 1 GFLOP and 2 GB for each second
    llm.step([(1, 0, 0, 24)], 8, 1, 1.5)
    for now, expected in ((9.5, (1e9, 2e9)), (30, (0, 0))):
        monkeypatch.setattr("time.perf_counter_ns", lambda now=now: round(now * SECOND))
        read = Reading(metrics)
        assert (read("achieved_flops"), read("achieved_bytes")) == pytest.approx(expected)


def test_what_is_not_predicted_is_absent() -> None:
    llm, _, metrics = served()
    llm.step([(1, 0, 0, 24)], 1, 2)
    read = Reading(metrics)
    assert read.histogram("step_seconds", phase="prefill") == (1, 2)
    assert not [name for name, _ in read.samples if "step_predicted" in name or "achieved" in name]


def test_an_abort_is_counted_by_where_it_stood() -> None:
    async def run(llm: Scripted, service: Service) -> None:
        tasks = [asyncio.create_task(consume(service, live(id, 40, n=2))) for id in "abc"]
        await turn()
        llm.token(1, 1, None)  # the first decodes, the second prefills, the third waits
        llm.step([(1, 0, 40, 1), (3, 0, 0, 20)], 1, 1)
        await turn()
        llm.queues[5].put_nowait(ApiError(503, "it waited too long", code="queue_timeout"))
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    llm, service, metrics = served()
    asyncio.run(run(llm, service))
    read = Reading(metrics)
    assert [read("aborted_total", phase=phase) for phase in ("queue", "prefill", "decode")] == [1, 1, 1]
    assert read("request_success_total", finished_reason="abort") == 6
    assert read.histogram("e2e_request_latency_seconds") == (0, 0)
    assert not service.by_request


def test_what_was_refused_and_what_died_is_no_abort() -> None:
    async def run(llm: Scripted, service: Service, gate: Gate) -> None:
        gate.refusal = ApiError(429, "full", code="queue_full")
        with pytest.raises(ApiError):
            await consume(service, live("a", 4))
        gate.refusal = None
        for error in (RuntimeError("died"), ValueError("too long")):
            task = asyncio.create_task(consume(service, live("b", 4)))
            await turn()
            llm.queues[llm.next - 1].put_nowait(error)
            with pytest.raises(type(error)):
                await task

    llm, service, metrics = served()
    asyncio.run(run(llm, service, service.admission))  # type: ignore[arg-type]
    read = Reading(metrics)
    assert read("admission_rejected_total", reason="queue_full") == 1
    assert read("request_success_total", finished_reason="error") == 1
    assert read("request_success_total", finished_reason="abort") == 0
    assert sum(read("aborted_total", phase=phase) or 0 for phase in ("queue", "prefill", "decode")) == 0


def test_counters_go_on_when_the_engine_begins_anew() -> None:
    llm, _, metrics = served()
    llm.step([(1, 0, 0, 24)], 1, 2, output_tokens=10)
    llm.step([(1, 0, 0, 24)], 1, 2, output_tokens=11)
    llm.stats = type(llm.stats)()
    llm.step([(1, 0, 0, 24)], 1, 2, output_tokens=5)
    assert Reading(metrics)("generation_tokens_total") == 16


def test_the_alias_tells_what_vllm_has_under_its_names() -> None:
    llm, service, metrics = served("vllm")
    asyncio.run(two_requests(llm, service))
    read, theirs = Reading(metrics), Reading(metrics, "vllm:")
    shared = {family.name for family in FAMILIES if family.shared}
    assert len(shared) > 20
    for (name, labels), value in read.samples.items():
        if name.startswith(PREFIX):
            suffix = name.removeprefix(PREFIX)
            told = next((True for family in shared if suffix.startswith(family)), False)
            assert theirs(suffix, **dict(labels)) == (value if told else None), name
    plain = served()[2].exposition().decode()
    assert "vllm" not in plain


def test_what_others_count() -> None:
    llm, _, metrics = served()
    llm.restarts, llm.stats = 1, replace(llm.stats, grammar_bytes=4321)
    metrics.exposition()
    metrics.ignored(3)
    llm.step([(1, 0, 0, 24)], 1, 2, grammars=2, grammar_seconds=0.04)
    llm.step([(1, 0, 0, 24)], 1, 2, grammars=3, grammar_seconds=0.08)
    metrics.failed("unknown_field")
    metrics.failed(None)
    metrics.lagged(0.001)
    metrics.answered("/v1/models", "GET", 404, 0.01)
    read = Reading(metrics)
    assert read("ignored_fields_total") == 3
    assert read("engine_restarts_total") == 1
    assert read.histogram("grammar_compile_seconds") == (3, pytest.approx(0.08))
    assert read("grammar_compile_seconds_bucket", le="0.02") == 2
    assert [read("request_errors_total", code=code) for code in ("unknown_field", "other")] == [1, 1]
    assert read.histogram("loop_lag_seconds") == (1, pytest.approx(0.001))
    assert read("grammar_cache_bytes") == 4321
    http = Reading(metrics, "")
    assert http("http_requests_total", handler="/v1/models", method="GET", status="4xx") == 1
    assert http.histogram("http_request_duration_seconds", handler="/v1/models", method="GET") == (
        1,
        pytest.approx(0.01),
    )


def test_reasons_are_those_that_admission_gives() -> None:
    settings, small = ServerSettings(queued_requests=0, queued_tokens=1), msgspec.structs.replace(INFO, requests=1)
    queue, reasons = RequestQueue(small, settings), set()
    queue.admit(live("a", 5))
    for place, attempt in ((0, live("a", 5)), (1, live("b", 5)), (8, live("c", 5)), (8, live("d", 5))):
        queue.capacity = place
        queue.draining = attempt.id == "d"
        with pytest.raises(ApiError) as refused:
            queue.admit(attempt)
        reasons.add(refused.value.code)
    assert reasons == set(REASONS)


def test_what_is_observed_often_is_what_is_observed_each_time() -> None:
    """On the edges of buckets too, and beyond the last."""
    one, often = (Histogram("seconds", "", registry=CollectorRegistry(), buckets=(0.1, 0.5, 2.0)) for _ in range(2))
    for value, count in ((0.1, 3), (0.0, 2), (0.3, 5), (2.0, 1), (7.5, 4)):
        for _ in range(count):
            one.observe(value)
        observe_often(often, value, count)
    told = [
        {
            (sample.name, *sample.labels.values()): sample.value
            for family in histogram.collect()
            for sample in family.samples
        }
        for histogram in (one, often)
    ]
    names = [name for name in told[0] if not name[0].endswith("_created")]
    assert len(names) == 6
    assert [told[0][name] for name in names] == pytest.approx([told[1][name] for name in names])


def test_what_another_engine_computes_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """By the engine that asks; why nothing came, and whom it may not ask, the log says."""
    llm, _, metrics = served()
    llm.peers["a:1"] = PeerChanged("a:1", False, "it closed the connection")
    caplog.set_level("INFO")
    TransferLog(metrics).follow(llm)  # type: ignore[arg-type]
    for message in (
        PeerChanged("a:1", True, "2 GB/s"),
        Transferred("a:1", 32, 5000, 0.003, 0.002, 0.1),
        Transferred("a:1", 16, 2500, 0.3, None, 0.4),
        Transferred("a:1", reason="no pages came within 3 s"),
    ):
        for told in llm.transfer_observers:
            told(message)
    read = Reading(metrics)
    assert [read(f"kv_transfer{name}_total") for name in ("s", "_failures", "_bytes")] == [2, 1, 7500]
    assert read.histogram("kv_transfer_seconds") == (2, pytest.approx(0.303))
    assert read.histogram("kv_transfer_predicted_seconds") == (1, pytest.approx(0.002))
    assert [record.message for record in caplog.records] == [
        "the prefill engine at a:1 is not available: it closed the connection; this engine computes the prompts",
        "the prefill engine at a:1 is connected; its KV pages arrive at 2 GB/s",
        "no KV pages came from a:1: no pages came within 3 s; this engine computes the prompt",
    ]


def test_an_engine_that_has_gone_holds_nothing() -> None:
    """The first replica's gauges stayed as they were when it went, as its metrics tell of HTTP too."""
    llm, _, metrics = served()
    llm.stats = Stats(running=3, waiting=2, held_pages=40, cached_pages=10)
    gauges = [("num_requests_running", {}), ("num_requests_waiting", {}), ("kv_cache_usage_perc", {})]
    gauges += [("kv_blocks", {"state": state}) for state in ("free", "cached", "used")]

    def told() -> list[float | None]:
        read = Reading(metrics)
        return [read(name, **labels) for name, labels in gauges]

    there = told()
    assert there == [3, 2, 0.4, 50, 10, 40]
    metrics.leave()
    assert told() == [0] * 6
    metrics.follow(llm)
    assert told() == there


def test_a_request_that_another_engine_runs_again_has_not_begun() -> None:
    """It was counted as a prompt that runs, and its time in the queue had no end."""

    async def run() -> None:
        llm, service, _ = served()
        request = live("a", 20, max_tokens=2)
        task = asyncio.create_task(consume(service, request))
        await turn()
        llm.step([(1, 0, 0, 16)], 1, 0.1)
        assert request.begun
        llm.added(7)
        assert (request.begun, request.request) == (False, 7)
        llm.step([(7, 0, 0, 16)], 2, 0.1)
        assert request.begun
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
