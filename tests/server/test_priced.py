"""A server on which no model runs: every answer says so, all that a client may ask is answered, forms are refused."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ridgeline.cli.engine_flags import TextFlags
from ridgeline.cli.serve_priced import PricedFlags, served_priced
from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.worker.engine_messages import StepReport
from ridgeline.engine.worker.engine_process import EngineStart
from ridgeline.insight.simulate.priced_engine import FILLER, priced_engine
from ridgeline.server.admission import RequestQueue
from ridgeline.server.http.http_server import PRICED
from ridgeline.server.lifecycle import ServedLLM, build_service
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.observability import observe_one_engine
from server.conftest import Running, running

CARD = "NVIDIA H100 SXM 80GB"
NAME = "qwen3-0.6b"


@pytest.fixture(scope="module")
def priced() -> Iterator[Running]:
    """A name of the catalogue, with what the command makes of it, in a thread of this process."""
    source = open_source(NAME)
    served = served_priced(source, ServedLLM(NAME, NAME, EngineSettings(context=2048)), PricedFlags("h100-sxm"))
    assert served.device is not None
    assert served.settings is not None
    llm = AsyncLLM(
        priced_engine(EngineStart(NAME, served.settings, device=served.device(), maker=served.engine_factory))
    )
    settings = ServerSettings(models=(NAME,), priced=CARD)
    service = build_service(llm, RequestQueue(llm.info, settings), settings)
    observability = observe_one_engine(service, llm, settings, NAME)
    try:
        with running(service, settings, routes=observability.routes()) as up:
            yield up
    finally:
        llm.host.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "Once", "max_tokens": 3}, 200),
        ("/v1/completions", {"prompt": "Once", "max_tokens": 3, "stream": True}, 200),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}, 200),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 3}, 200),
        ("/v1/completions", {"prompt": 7.5}, 400),
        ("/nowhere", {}, 404),
        ("/tokenize", {"prompt": "Hello"}, 200),
        ("/v1/models", None, 200),
        ("/metrics", None, 200),
        ("/health", None, 200),
    ],
)
def test_every_answer_says_that_no_model_runs(
    priced: Running, path: str, body: dict[str, object] | None, status: int
) -> None:
    reply = priced.get(path) if body is None else priced.post(path, body)
    assert reply.status == status, reply.data
    assert reply.headers[PRICED] == CARD


def test_an_answer_is_filler_of_the_length_that_was_asked_for(priced: Running) -> None:
    said = priced.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 100}
    ).json()
    (choice,) = said["choices"]
    assert (said["usage"]["completion_tokens"], choice["finish_reason"]) == (100, "length")
    assert choice["message"]["content"].startswith(FILLER)
    assert priced.get("/v1/models").json()["data"][0]["priced"] == CARD


def test_streams_choices_and_probabilities(priced: Running) -> None:
    frames = [
        json.loads(line[6:])
        for line in priced.post(
            "/v1/completions", {"prompt": "Once", "max_tokens": 20, "n": 2, "stream": True, "logprobs": 1}
        )
        .data.decode()
        .splitlines()
        if line.startswith("data: {")
    ]
    for index in (0, 1):
        own = [choice for frame in frames for choice in frame["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == FILLER[:20]
        assert {p for choice in own if choice["logprobs"] for p in choice["logprobs"]["token_logprobs"]} == {0.0}
    assert priced.post("/v1/completions", {"prompt": "Once", "max_tokens": 9, "stop": "is"}).json()["choices"][0][
        "text"
    ] in (" Th", " This ")


def test_equal_beginnings_are_found(priced: Running) -> None:
    prompt = list(range(200))
    for _ in range(2):
        assert priced.post("/v1/completions", {"prompt": prompt, "max_tokens": 4}).status == 200
    assert priced.service.llm.stats.reused_tokens >= 192
    priced.idle()


def test_in_a_process_of_its_own() -> None:
    """As the command has it: the process makes the engine by the name that it is told, and predicts each step."""
    served = served_priced(
        open_source(NAME), ServedLLM(NAME, NAME, EngineSettings(context=512)), PricedFlags("h100-sxm")
    )

    async def asked() -> tuple[str, list[float | None]]:
        reports: list[StepReport] = []
        async with await served.start() as llm:
            llm.observers.append(lambda report, stats: reports.append(report))
            said = await llm.generate("Once", SamplingParams(max_tokens=20))
        return said.text, [report.predicted for report in reports]

    text, predicted = asyncio.run(asked())
    assert text == FILLER[:20]
    assert len(predicted) == 20
    assert all(each is not None and each > 0 for each in predicted)


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "required",
        },
    ],
)
def test_filler_keeps_to_no_form(priced: Running, more: dict[str, object]) -> None:
    asked = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    reply = priced.post("/v1/chat/completions", {**asked, **more})
    assert reply.status == 400, reply.data
    assert "this server runs no model" in reply.json()["error"]["message"]


def test_a_template_of_ones_own_is_kept() -> None:
    source, flags = open_source("tales"), PricedFlags("h100-sxm")
    served = served_priced(source, ServedLLM("tales", "tales", TextFlags().settings(source)), flags)
    assert served.settings == replace(TextFlags().settings(source))  # tales has a tokenizer, and no chat template
