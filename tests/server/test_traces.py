"""The ledger of one request, against a script of steps."""

import asyncio
import gc
import tracemalloc
import weakref

import msgspec
import pytest

from ridgeline.engine.events import Event
from ridgeline.engine.request import Timing
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.service import Service
from ridgeline.server.telemetry.traces import Traces
from server.scripted import SECOND, Gate, Scripted, consume, live, turn


def served(nbytes: int = 1 << 20) -> tuple[Scripted, Service, Traces]:
    llm = Scripted()
    service = Service(llm, Gate())  # type: ignore[arg-type]
    traces = Traces(service, nbytes)
    service.observers.append(traces)
    service.step_observers.append(traces.stepped)
    return llm, service, traces


def test_a_ledger_has_the_queue_the_prompt_and_every_step() -> None:
    async def run(llm: Scripted, service: Service, traces: Traces) -> None:
        mine = asyncio.create_task(consume(service, live("mine", 40, max_tokens=2)))
        await turn()
        assert traces.find("mine")["state"] == "queue"  # type: ignore[index]
        llm.step([(9, 0, 0, 64)], 0.5, 0.5)  # somebody else's
        llm.step([(9, 0, 64, 1), (1, 0, 16, 23)], 1, 0.5, 0.4)
        assert traces.find("mine")["state"] == "prefill"  # type: ignore[index]
        llm.step([(9, 0, 65, 1), (8, 0, 3, 1), (1, 0, 39, 1)], 1.5, 0.1, 0.09)
        llm.token(1, 1.6, Timing(0, SECOND, round(1.6 * SECOND)), cached=16)
        await turn()
        assert traces.find("mine")["state"] == "decode"  # type: ignore[index]
        llm.step([(1, 0, 40, 1)], 2, 0.05)
        llm.token(1, 2.05, Timing(0, SECOND, round(1.6 * SECOND)), end=2)
        await mine

    llm, service, traces = served()
    asyncio.run(run(llm, service, traces))
    told = traces.find("mine")
    assert told is not None
    assert told["state"] == "finished"
    assert told["finish_reasons"] == ["length"]
    assert (told["prompt_tokens"], told["cached_tokens"], told["output_tokens"]) == (40, 16, 2)
    times = [told[name] for name in ("queue_seconds", "prefill_seconds", "decode_seconds", "total_seconds")]
    assert times == pytest.approx([1, 0.6, 0.45, 2.05])
    assert told["step_seconds"] == pytest.approx(0.65)
    assert told["predicted_seconds"] == pytest.approx(0.49)
    assert told["floor_seconds"] == pytest.approx(0.245)
    assert told["predicted_share"] == pytest.approx(0.49 / 0.6)  # the last step has no prediction
    assert told["predicted_intervals"] == {}
    llm.info = msgspec.structs.replace(llm.info, predicted_intervals={"decode": (0.9, 1.2)})
    assert traces.find("mine")["predicted_intervals"] == {"decode": (0.9, 1.2)}  # type: ignore[index]
    ledger = told["ledger"]
    assert [row["step"] for row in ledger] == [2, 3, 4]
    assert [(row["start"], row["count"]) for row in ledger] == [(16, 23), (39, 1), (40, 1)]
    assert [row["neighbours"] for row in ledger] == [1, 2, 0]
    assert [row["positions"] for row in ledger] == [24, 3, 1]
    assert [row["predicted"] for row in ledger] == [0.4, 0.09, None]
    assert [row["at"] for row in ledger] == pytest.approx([1, 1.5, 2])
    assert told["ledger_complete"]


def test_a_ledger_keeps_nothing_of_the_answer_whose_request_has_ended() -> None:
    """Its own bytes are counted; those of an answer with log-probabilities are a hundred times as many."""

    class Answer:
        def take(self, event: Event) -> None: ...

    async def run(llm: Scripted, service: Service) -> "weakref.ref[Answer]":
        answer = Answer()
        request = live("a", 4)
        request.progress = lambda before, after: answer.take(Event(1, 0))
        task = asyncio.create_task(service.run(request, answer.take))
        await turn()
        llm.token(1, 1.5, None, end=1)
        await task
        llm.queues.clear()
        return weakref.ref(answer)

    llm, service, traces = served()
    kept = asyncio.run(run(llm, service))
    assert traces.find("a") is not None
    gc.collect()
    assert kept() is None


def test_a_ledger_keeps_nothing_of_the_request_but_lengths() -> None:
    """A tier may be as long as a body, and stop ids as many as the vocabulary; the bytes of a trace count neither."""

    async def run(service: Service, llm: Scripted) -> None:
        for number in range(20):
            ids = tuple(range(1000 * number, 1000 * number + 5000))
            choices = tuple(f"{number}-{choice}" for choice in range(1000))
            form = StructuredOutputs(choice=choices)
            bias = {token + number: 1.0 for token in range(1000, 1300)}
            long = {"stop_token_ids": ids, "structured_outputs": form, "logit_bias": bias}
            request = live(str(number), 4, service_tier="tier" * 25_000 + str(number), n=2, **long)
            task = asyncio.create_task(consume(service, request))
            await turn()
            for choice in range(2):
                llm.token(2 * number + 1, 1.5, None, choice=choice, end=1)
            await task
            llm.queues.clear()
            llm.begun.clear()
            llm.added = print

    llm, service, traces = served()
    tracemalloc.start()
    try:
        asyncio.run(run(service, llm))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    told = [traces.find(str(number)) for number in range(20)]
    assert [each and (each["choices"], each["finish_reasons"]) for each in told] == [(2, ["length"] * 2)] * 20
    assert held < 100_000, "20 traces of 1,000 bytes"


def test_choices_share_their_request_and_a_step_counts_once() -> None:
    async def run(llm: Scripted, service: Service) -> None:
        task = asyncio.create_task(consume(service, live("a", 4, n=2)))
        await turn()
        llm.step([(1, 0, 4, 1), (1, 1, 4, 1)], 1, 0.5, 0.25)
        llm.token(1, 1.5, None, end=1)
        llm.token(1, 1.5, None, choice=1, end=1)
        await task

    llm, service, traces = served()
    asyncio.run(run(llm, service))
    told = traces.find("a")
    assert told is not None
    assert (told["steps"], told["step_seconds"], told["predicted_seconds"]) == (1, 0.5, 0.25)
    assert [(row["choice"], row["neighbours"]) for row in told["ledger"]] == [(0, 1), (1, 1)]


def test_how_a_request_ended_is_told() -> None:
    async def run(llm: Scripted, service: Service) -> None:
        tasks = {id: asyncio.create_task(consume(service, live(id, 4))) for id in ("gone", "died")}
        await turn()
        tasks["gone"].cancel()
        llm.queues[2].put_nowait(RuntimeError("died"))
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    llm, service, traces = served()
    asyncio.run(run(llm, service))
    assert [traces.find(id)["state"] for id in ("gone", "died")] == ["aborted", "failed"]  # type: ignore[index]
    assert traces.find("nobody") is None


def test_ended_traces_take_no_more_than_their_bytes() -> None:
    async def run(llm: Scripted, service: Service) -> None:
        for number in range(100):
            task = asyncio.create_task(consume(service, live(str(number), 4)))
            await turn()
            for step in range(10):
                llm.step([(number + 1, 0, step, 1)], step, 0.5)
            llm.token(number + 1, 10, None, end=1)
            await task

    llm, service, traces = served(nbytes=25_000)  # five of ten rows each
    asyncio.run(run(llm, service))
    assert [number for number in range(100) if traces.find(str(number))] == [95, 96, 97, 98, 99]
