"""What `serve --record` writes: lengths, moments and names of pages, in order of arrival, and no text."""

import asyncio
import json
import stat
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ridgeline.engine.request import Timing
from ridgeline.engine.worker.engine_messages import first_of
from ridgeline.insight.traffic.slo import MAX_CLASSES
from ridgeline.insight.traffic.workload_trace import read_trace
from ridgeline.server.errors import ApiError
from ridgeline.server.service import Service
from ridgeline.server.telemetry.traffic_recorder import TrafficRecorder, _Lines, _Names
from server.scripted import INFO, Gate, Scripted, consume, live, turn


def record(path: Path, run: Callable[[Scripted, Service], Coroutine[Any, Any, None]]) -> list[dict[str, Any]]:
    llm, recorder = Scripted(), TrafficRecorder(path, INFO, "tales", 0)
    service = Service(llm, Gate(), [recorder])  # type: ignore[arg-type]
    service.step_observers.append(recorder.stepped)
    asyncio.run(run(llm, service))
    recorder.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


async def _three_prompts(llm: Scripted, service: Service) -> None:
    """Prompts are 1, 2, 3, ...: the second is the first and more, the third the first under another root."""
    tasks = [
        asyncio.create_task(consume(service, request))
        for request in (live("a", 40), live("b", 64, max_tokens=7), live("c", 40, cache_salt=b"salt"))
    ]
    await turn()
    llm.step([(1, 0, 0, 40), (2, 0, 0, 64)], 1, 0.5, 0.25, running=2, waiting=1, held_pages=7)
    llm.token(2, 1.5, Timing(800_000_000), end=1)  # the second ends before the first
    await turn()
    llm.token(1, 1.6, Timing(700_000_000), cached=16)
    llm.token(1, 1.7, Timing(700_000_000, 900_000_000), end=2)
    await turn()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_requests_are_in_order_of_arrival_with_lengths_and_names(tmp_path: Path) -> None:
    lines = record(tmp_path / "traffic.jsonl", _three_prompts)
    head = lines[0]
    assert (head["kind"], head["format"], head["page_size"], head["model"]) == ("ridgeline-record", 1, 16, "tales")
    first, second, third = of_kind(lines, "request")
    assert [(line["input"], line["output"], line["finish"]) for line in (first, second, third)] == [
        (40, 2, "length"),
        (64, 1, "length"),
        (40, 0, "abort"),
    ]
    assert first["cached"] == 16
    assert (first["queued"], second["queued"], third["queued"]) == (0.7, 0.8, None), "when the engine had it"
    assert second["max_tokens"] == 7
    assert [len(line["pages"]) for line in (first, second, third)] == [2, 4, 2]  # full ones
    assert second["pages"][:2] == first["pages"]
    assert len({*second["pages"], *third["pages"]}) == 6
    (step,) = of_kind(lines, "step")
    assert (step["at"], step["seconds"], step["predicted"]) == (1, 0.5, 0.25)
    assert (step["sequences"], step["positions"], step["held_pages"]) == (2, 104, 7)


def test_a_step_says_which_replica_ran_it(tmp_path: Path) -> None:
    """Replicas come while the file is written: there may be one when it begins."""

    async def two(llm: Scripted, service: Service) -> None:
        for replica in (0, 1):
            llm.step([(first_of(replica), 0, 0, 4)], replica, 0.5, None, running=1)

    steps = of_kind(record(tmp_path / "traffic.jsonl", two), "step")
    assert [step.get("replica", 0) for step in steps] == [0, 1]


def test_the_recording_is_a_trace_to_be_replayed(tmp_path: Path) -> None:
    record(tmp_path / "traffic.jsonl", _three_prompts)
    requests = list(read_trace(tmp_path / "traffic.jsonl"))
    assert [(one.at, one.input, one.output, len(one.blocks), one.block) for one in requests] == [
        (0, 40, 2, 2, 16),
        (0, 64, 1, 4, 16),
        (0, 40, 1, 2, 16),  # given up before its first token: what is replayed has one
    ]
    assert requests[1].blocks[:2] == requests[0].blocks


def test_an_answer_goes_on_with_the_pages_and_several_do_not(tmp_path: Path) -> None:
    """40 tokens and an answer of 9 fill three pages; the next prompt, which begins with both, has their names. Of two
    choices nobody knows which is gone on with."""

    async def conversation(llm: Scripted, service: Service) -> None:
        for number, request in ((1, live("a", 40)), (2, live("b", 40, n=2))):
            task = asyncio.create_task(consume(service, request))
            await turn()
            for token in range(9):
                llm.token(number, 1.0, Timing(0), end=9 * (token == 8))
            if number == 2:
                llm.token(2, 1.0, Timing(0), choice=1, end=1)
            await task
        names = _Names(b"key", 16, b"")
        names.extend([*range(1, 41), *[7] * 9])
        whole = _Names(b"key", 16, b"")
        for token in [*range(1, 41), *[7] * 9]:
            whole.extend([token])
        assert names.pages == whole.pages

    one, two = of_kind(record(tmp_path / "traffic.jsonl", conversation), "request")
    assert (len(one["pages"]), len(two["pages"])) == (3, 2)
    assert one["pages"][:2] == two["pages"]
    assert len(next(read_trace(tmp_path / "traffic.jsonl")).blocks) == 3


def test_names_are_another_recordings_secret(tmp_path: Path) -> None:
    """Who has a file and guesses a prompt cannot find out whether it came."""
    names = [
        {name for line in of_kind(record(tmp_path / path, _three_prompts), "request") for name in line["pages"]}
        for path in ("a", "b")
    ]
    assert len(names[0]) == len(names[1]) == 6
    assert not names[0] & names[1]


def test_what_was_refused_is_recorded_as_that(tmp_path: Path) -> None:
    async def run(llm: Scripted, service: Service) -> None:
        service.admission.refusal = ApiError(429, "full", code="queue_full")  # type: ignore[attr-defined]
        with pytest.raises(ApiError):
            await consume(service, live("a", 5))

    lines = record(tmp_path / "traffic.jsonl", run)
    assert of_kind(lines, "request") == []
    assert [line["input"] for line in of_kind(lines, "refused")] == [5]


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    TrafficRecorder(path, INFO, "tales", 0).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (path, tmp_path / "link"):
        with pytest.raises(ValueError, match="exists already, and a recording does not overwrite files"):
            TrafficRecorder(taken, INFO, "tales", 0)
    assert path.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ValueError, match="cannot write"):
        TrafficRecorder(tmp_path / "no" / "folder", INFO, "tales", 0)


def test_a_full_disk_ends_the_recording_and_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    lines = _Lines(open("/dev/full", "wb"), Path("traffic.jsonl"))  # noqa: SIM115
    for number in range(10):
        lines.write({"number": number})
        time.sleep(0)
    lines.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "traffic.jsonl cannot be written any more: No space left on device" in caplog.messages[0]


def test_the_tier_that_is_asked_for_is_the_class(tmp_path: Path) -> None:
    """A tier that asks for nothing in particular is none; nor is one that could be a text, or too many."""
    ordinary = ["", "auto", "default", "to my lawyer", "x" * 41, "a\nb"]
    named = ["batch", "flex", "priority", "batch", *(f"tier-{n}" for n in range(96))]

    async def tiers(llm: Scripted, service: Service) -> None:
        for number, tier in enumerate([*ordinary, *named, "one-more", "flex"], 1):
            task = asyncio.create_task(consume(service, live(str(number), 4, service_tier=tier)))
            await turn()
            llm.token(number, 1.0, Timing(0), end=1)
            await task

    lines = of_kind(record(tmp_path / "traffic.jsonl", tiers), "request")
    assert [line.get("class") for line in lines] == [*[None] * len(ordinary), *named, None, "flex"]
    classes = {request.slo_class for request in read_trace(tmp_path / "traffic.jsonl")}
    assert classes == {"", *named}
    assert len(classes) == MAX_CLASSES
