"""A server whose engine guesses answers what one without does, streamed or not, and counts what it guessed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ridgeline.backends.cpu.library import library
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine
from ridgeline.engine.speculation.config import Speculation
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.engine_metrics import EngineMetrics
from server.conftest import Running, running

pytestmark = pytest.mark.skipif(library() is None, reason="torch rounds otherwise with other rows")

REPEATS = "The cat sat. The cat sat. The cat sat. The"
BODIES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": REPEATS, "max_tokens": 40, "temperature": 0},
    "sampled": {"prompt": REPEATS, "max_tokens": 40, "temperature": 0.8, "seed": 5, "n": 2},
    "stop strings": {"prompt": REPEATS, "max_tokens": 60, "temperature": 0, "stop": ["dog", " and"]},
    "log-probabilities": {"prompt": REPEATS, "max_tokens": 20, "temperature": 0, "logprobs": 3},
    "penalties": {"prompt": REPEATS, "max_tokens": 30, "temperature": 0, "frequency_penalty": 1.0},
}


@pytest.fixture(scope="module")
def guessing() -> Iterator[tuple[Running, EngineMetrics]]:
    settings = EngineSettings(kv_bytes=2**24, speculation=Speculation("ngram", 4, shortest=1))
    llm = AsyncLLM(load_engine("tales", settings))
    try:
        server = ServerSettings(models=("tales",))
        service = build_service(llm, RequestQueue(llm.info, server), server)
        metrics = EngineMetrics(llm, "tales")
        service.observers.append(metrics)
        service.step_observers.append(metrics.stepped)
        with running(service, server) as up:
            yield up, metrics
    finally:
        llm.close()


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    """What does not differ from one request to the next."""
    return {name: answer[name] for name in ("choices", "usage")}


@pytest.mark.parametrize("name", BODIES)
def test_answers_are_those_without_guesses(guessing: tuple[Running, EngineMetrics], server: Running, name: str) -> None:
    up, _ = guessing
    before = up.service.llm.stats
    expected, found = (each.post("/v1/completions", BODIES[name]) for each in (server, up))
    assert found.status == 200, found.data
    assert without_names(found.json()) == without_names(expected.json())
    up.idle()
    assert up.service.llm.stats.drafts > before.drafts
    server.idle()


@pytest.mark.parametrize("name", ["sampled", "stop strings"])
def test_streams_end_where_they_do_without(guessing: tuple[Running, EngineMetrics], server: Running, name: str) -> None:
    """Several tokens of a step, a stop string among them: the pieces of each choice are the same text."""

    def streamed(each: Running) -> dict[int, tuple[str, str | None]]:
        body = BODIES[name] | {"stream": True}
        lines = each.post("/v1/completions", body).data.decode().split("\n\n")
        texts: dict[int, tuple[str, str | None]] = {}
        for line in lines:
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    text, finish = texts.get(choice["index"], ("", None))
                    texts[choice["index"]] = text + choice["text"], choice["finish_reason"] or finish
        return texts

    up, _ = guessing
    assert streamed(up) == streamed(server)
    up.idle()
    server.idle()


def test_what_was_guessed_is_counted(guessing: tuple[Running, EngineMetrics]) -> None:
    """By vLLM's names, as the engine counts it."""
    up, metrics = guessing
    up.post("/v1/completions", BODIES["greedy"])
    up.idle()
    stats, lines = up.service.llm.stats, metrics.exposition().decode().splitlines()

    def read(name: str, label: str = "") -> float:
        (line,) = [one for one in lines if one.startswith(f"ridgeline:spec_decode_num_{name}_total{{") and label in one]
        return float(line.rpartition(" ")[2])

    assert read("drafts") == stats.drafts > 0
    assert read("draft_tokens") == stats.draft_tokens
    assert read("accepted_tokens") == stats.accepted_tokens > 0
    for place, count in enumerate(stats.accepted_at):
        assert read("accepted_tokens_per_pos", f'position="{place}"') == count
