"""A language model and a pipeline in one server: what either gives alone, in turns, behind one door."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.cli.serve import say_multi_model_ready
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.image_file import to_bytes
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.devices import load_device
from ridgeline.server import multi_model as serving
from ridgeline.server.images.diffusion_engine import DiffusionEngine
from ridgeline.server.images.served_images import ServedImages, weight_bytes
from ridgeline.server.lifecycle import ServedLLM, serve
from ridgeline.server.model_loop import ModelLoop
from ridgeline.server.multi_model import LoopedEngine, MultiModelEngine, ServedMultiModel
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running
from server.pictures import ROUTE as IMAGES
from server.pictures import pixels

CHAT = "/v1/chat/completions"
SETTINGS = ServerSettings(port=0, drain_seconds=20.0)
STORY: dict[str, Any] = {
    "model": "tales",
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "max_tokens": 250,
    "ignore_eos": True,
    "temperature": 0,
    "logprobs": True,
    "return_token_ids": True,
}
SEVEN: dict[str, Any] = {
    "model": "digits",
    "prompt": "a handwritten seven",
    "num_inference_steps": 12,
    "guidance_scale": 2.0,
    "seed": 3,
}
SHORT = {**STORY, "max_tokens": 2}


@dataclass(frozen=True, slots=True)
class Kept(ServedMultiModel):
    """Of models that are loaded already."""

    loaded: LoadedEngine | None = None
    pipeline: Pipeline | None = None

    async def start(self) -> MultiModelEngine:
        assert self.loaded is not None
        assert self.pipeline is not None
        device, loop = load_device("h100-sxm"), ModelLoop(1)
        llm = AsyncLLM(LoopedEngine(self.loaded, device, loop))
        return MultiModelEngine(llm, DiffusionEngine({"digits": self.pipeline}, device, float(1 << 30), loop))


def together(settings: EngineSettings | None = None) -> ServedMultiModel:
    """`tales` beside `digits`, to be loaded."""
    pictures = ServedImages({"digits": "digits"}, lambda _: load_device("h100-sxm"), threads=1)
    return ServedMultiModel(ServedLLM("tales", "tales", settings), pictures)


@pytest.fixture(scope="module")
def kept() -> Kept:
    unloaded = together()
    return Kept(unloaded.language, unloaded.pipelines, load_engine("tales"), load_pipeline("digits", threads=1))


@dataclass
class Up:
    """A server that serves, and a client's session with it. ends: by itself, or it was told to."""

    session: aiohttp.ClientSession
    url: str
    models: MultiModelEngine
    ends: bool = False

    def interrupt(self) -> None:
        self.ends = True
        os.kill(os.getpid(), signal.SIGTERM)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def refusal(self, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
        status, answer = await self.post(path, body)
        return status, answer["error"]["code"], answer["error"]["message"]

    async def story(self) -> list[Any]:
        """The chunks of a streamed chat."""
        found = []
        async with self.session.post(f"{self.url}{CHAT}", json={**STORY, "stream": True}) as response:
            if response.status != 200:  # before its first token
                return [await response.json()]
            async for line in response.content:
                if line.startswith(b"data: {"):
                    found.append(json.loads(line[6:]))
        return found

    def hold(self) -> threading.Event:
        """Nothing runs until this is set."""
        go = threading.Event()

        def wait() -> None:
            assert go.wait(30)

        self.models.diffusion_engine.loop.call_soon(wait)
        return go

    async def both(self) -> tuple["asyncio.Task[list[Any]]", "asyncio.Task[tuple[int, Any]]"]:
        """A story and a picture under way, both of which begin at the same time."""
        go = self.hold()
        story, seven = asyncio.create_task(self.story()), asyncio.create_task(self.post(IMAGES, SEVEN))
        while not (self.models.llm.num_awaited and self.models.diffusion_engine._runs):
            await asyncio.sleep(0.001)
        go.set()
        return story, seven


def lives(
    served: ServedMultiModel,
    scenario: Callable[[Up], Coroutine[Any, Any, None]],
    settings: ServerSettings = SETTINGS,
    told: Callable[..., None] = lambda *_: None,
) -> int:
    """Run a server through a scenario, and end it if that does not; the exit code."""

    async def run() -> int:
        is_up: asyncio.Future[tuple[str, MultiModelEngine]] = asyncio.get_running_loop().create_future()

        def ready(url: str, models: MultiModelEngine) -> None:
            told(url, models)
            is_up.set_result((url, models))

        ended = asyncio.create_task(serve(served, settings, ready))
        await asyncio.wait((is_up, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        headers = {"Authorization": f"Bearer {settings.keys[0]}"} if settings.keys else {}
        async with aiohttp.ClientSession(headers=headers) as session:
            up = Up(session, *is_up.result())
            await scenario(up)
            if not up.ends:
                up.interrupt()
            return await asyncio.wait_for(ended, 30)

    return asyncio.run(run())


# -- in turns ---------------------------------------------------------------------------------------------------------


def test_both_give_what_they_give_alone(kept: Kept, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and their log-probabilities, and pixels, bit for bit; steps of the two in the order of priced seconds, of
    which either has as many while both are busy, so that the picture takes twice its price."""
    log: list[tuple[str, float]] = []
    for name, party in (("t", LoopedEngine), ("p", DiffusionEngine)):
        step: Callable[[Any], float] = party.step

        def noted(self: Any, name: str = name, step: Callable[[Any], float] = step) -> float:
            seconds = step(self)
            log.append((name, seconds))
            return seconds

        monkeypatch.setattr(party, "step", noted)

    async def scenario(up: Up) -> None:
        story, seven = await up.both()
        chunks, (status, picture) = await asyncio.gather(story, seven)
        deltas = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        alone = server.post(CHAT, STORY).json()["choices"][0]
        assert "".join(delta["delta"].get("content", "") for delta in deltas) == alone["message"]["content"]
        scores = [score for delta in deltas if delta["logprobs"] for score in delta["logprobs"]["content"]]
        assert scores == alone["logprobs"]["content"]
        assert [token for delta in deltas for token in delta["token_ids"]] == alone["token_ids"]
        assert len(scores) == 250
        assert status == 200
        assert kept.pipeline is not None
        (wanted,) = kept.pipeline.draw(DiffusionRequest("a handwritten seven", None, Size(32, 32), 12, 2.0, 3))
        found = pixels(picture["data"][0]["b64_json"])
        assert np.array_equal(found, to_bytes(wanted).numpy().reshape(found.shape))

    assert lives(kept, scenario) == 0
    names = "".join(name for name, _ in log)
    assert (names.count("t"), names.count("p")) == (250, 1 + 12 + 1)
    had, longest = {"t": 0.0, "p": 0.0}, max(seconds for _, seconds in log)
    for at, (name, seconds) in enumerate(log):
        busy = min(names.rindex("t"), names.rindex("p"))
        if at <= busy:
            other = "p" if name == "t" else "t"
            assert had[name] <= had[other], f"step {at}: {name} had {had[name]}, {other} {had[other]}"
            had[name] += seconds
            assert abs(had["t"] - had["p"]) <= longest
    assert names.rindex("p") < names.rindex("t"), "the story is to be the longer"
    price = sum(seconds for name, seconds in log if name == "p")
    until = sum(seconds for _, seconds in log[: names.rindex("p") + 1])
    assert price < until <= 2 * price + longest


# -- one server -------------------------------------------------------------------------------------------------------


def test_every_model_has_its_routes(kept: Kept) -> None:
    async def scenario(up: Up) -> None:
        _, listed = await up.get("/v1/models")
        assert [card["id"] for card in listed["data"]] == ["tales", "digits"]
        assert (listed["data"][0]["max_model_len"], listed["data"][1]["sizes"]) == (512, ["32x32"])
        for card in listed["data"]:
            assert await up.get(f"/v1/models/{card['id']}") == (200, card)
        _, answer = await up.post(CHAT, SHORT)
        assert answer["model"] == "tales"
        unnamed = {key: value for key, value in SHORT.items() if key != "model"}
        assert (await up.post(CHAT, unnamed))[1]["model"] == "tales"
        _, answer = await up.post(IMAGES, {"prompt": "a one", "num_inference_steps": 1})
        assert answer["model"] == "digits"
        status, code, said = await up.refusal(CHAT, {**SHORT, "model": "digits"})
        assert (status, code) == (400, "unsupported_model")
        assert said == "digits generates images, not text: use /v1/images/generations"
        assert await up.refusal(IMAGES, {**SEVEN, "model": "tales"}) == (
            *(400, "unsupported_model"),
            "tales generates text only: use /v1/chat/completions",
        )
        clip = {"prompt": "a cat"}
        for name, says in (("tales", "tales generates text only"), ("digits", "the model generates images")):
            status, code, said = await up.refusal("/v1/videos", {**clip, "model": name})
            assert (status, code) == (400, "unsupported_model")
            assert said.startswith(says)
        for path, body in ((CHAT, SHORT), (IMAGES, SEVEN), ("/v1/completions", {"prompt": "x"}), ("/v1/videos", clip)):
            status, code, said = await up.refusal(path, {**body, "model": "other"})
            assert (status, code) == (404, "model_not_found")
            assert "tales" in said
            assert "digits" in said
        assert (await up.get("/v1/models/other"))[0] == 404
        assert (await up.get("/v1/models/digits"))[1]["routes"] == [IMAGES]
        assert CHAT in (await up.get("/v1/models/tales"))[1]["routes"]
        served = [each["name"] for each in (await up.get("/page/models.json"))[1]["models"] if each["served"]]
        assert served == ["tales"]
        assert (await up.get("/health"))[1] == {"status": "ready"}
        state = (await up.get("/v1/engine/state"))[1]
        assert (state["limits"]["context"], state["device"]) == (512, load_device("h100-sxm").title)
        async with up.session.get(up.url + "/v1/models", headers={"Authorization": "Bearer other"}) as response:
            assert response.status == 401

    assert lives(kept, scenario, replace(SETTINGS, keys=("secret",))) == 0


def test_metrics_of_both(kept: Kept) -> None:
    """Each name once, each model under its own label."""

    async def scenario(up: Up) -> None:
        await up.post(CHAT, SHORT)
        await up.post(IMAGES, SEVEN)
        async with up.session.get(up.url + "/metrics") as response:
            families = list(text_string_to_metric_families(await response.text()))
        names = [family.name for family in families]
        assert len(set(names)) == len(names)
        found = {
            (sample.name.removeprefix("ridgeline:"), *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

        def value(name: str, model: str, **labels: str) -> float:
            return found[(name, *sorted({**labels, "engine": "0", "model_name": model}.items()))]

        assert value("generation_tokens_total", "tales") >= 2
        assert value("images_total", "digits") == 1
        for model in ("tales", "digits"):
            assert value("num_requests_running", model) == 0
            assert value("e2e_request_latency_seconds_count", model) == 1
        assert value("step_seconds_count", "digits", phase="denoise") == 12
        assert value("step_seconds_count", "tales", phase="decode") >= 1
        assert value("step_predicted_seconds_sum", "tales", phase="decode") > 0
        for handler in (CHAT, IMAGES):
            labels = sorted({"handler": handler, "method": "POST", "status": "2xx"}.items())
            assert found[("http_requests_total", *labels)] == 1

    assert lives(kept, scenario) == 0


def test_a_token_that_waits_for_a_stride_does_not_hang(kept: Kept) -> None:
    async def scenario(up: Up) -> None:
        models, go = up.models, up.hold()
        story = asyncio.create_task(up.post(CHAT, SHORT))
        while not models.llm.num_awaited:
            await asyncio.sleep(0.001)
        assert models.num_awaited == 1
        models.diffusion_engine._expected_by = float("inf")
        assert models.num_awaited == 0
        go.set()
        await story

    assert lives(kept, scenario) == 0


def test_limits_of_time_hold_both(kept: Kept) -> None:
    async def scenario(up: Up) -> None:
        go = up.hold()
        both = await asyncio.gather(up.refusal(CHAT, SHORT), up.refusal(IMAGES, SEVEN))
        assert [each[:2] for each in both] == [(504, "total_timeout")] * 2
        go.set()

    assert lives(kept, scenario, replace(SETTINGS, total_seconds=0.3)) == 0


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_signal_lets_both_finish(kept: Kept) -> None:
    async def scenario(up: Up) -> None:
        story, seven = await up.both()
        up.interrupt()
        while (await up.get("/health/ready"))[1]["status"] == "ready":
            pass
        if not (story.done() and seven.done()):  # else the machine was too fast to see it
            assert (await up.get("/health/ready"))[0] == 503
            for path, body in ((CHAT, SHORT), (IMAGES, SEVEN)):
                assert (await up.refusal(path, body))[:2] == (503, "shutting_down")
        assert (await story)[-1]["choices"][0]["finish_reason"] == "length"
        assert len((await seven)[1]["data"]) == 1

    assert lives(kept, scenario) == 0


def test_what_does_not_finish_in_time_is_told_why(kept: Kept) -> None:
    async def scenario(up: Up) -> None:
        story, seven = await up.both()
        up.interrupt()
        up.interrupt()
        assert (await story)[-1]["error"]["code"] == "shutting_down"
        assert (await seven)[1]["error"]["code"] == "shutting_down"

    assert lives(kept, scenario) == 130


def test_a_loop_that_dies_ends_the_server(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever's fault it was, both sorts hear of it."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    async def scenario(up: Up) -> None:
        story, seven = await up.both()
        up.ends = True
        monkeypatch.setattr(up.models.diffusion_engine, "_step", lambda _: 1 / 0)
        assert (await story)[-1]["error"]["code"] == "engine_died"
        assert (await seven)[0] in (500, 503)

    assert lives(kept, scenario) == 1


# -- loading ----------------------------------------------------------------------------------------------------------


def test_memory_is_divided(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The engine has what the pipeline's weights leave; KV memory has half of what is free beside all weights and a
    step at most, and pictures the rest. What is served is said."""
    free = float(64 << 20)
    monkeypatch.setattr(serving, "available_memory", lambda: free)
    engines: list[LoadedEngine] = []

    def load(*given: Any, **more: Any) -> LoadedEngine:
        engines.append(load_engine(*given, **more))
        return engines[-1]

    monkeypatch.setattr(serving, "load_engine", load)
    served = together()

    async def scenario(up: Up) -> None:
        drawn = weight_bytes(up.models.diffusion_engine.pipelines["digits"])
        (loaded,) = engines
        room = up.models.diffusion_engine._prices["digits"]._room
        assert room == free - drawn - loaded.resident_bytes
        assert loaded.layout.nbytes <= (free - drawn - loaded.weight_bytes) / 2
        assert (await up.post(CHAT, SHORT))[0] == 200
        assert (await up.post(IMAGES, {**SEVEN, "num_inference_steps": 1}))[0] == 200

    with caplog.at_level(logging.INFO):
        assert (
            lives(served, scenario, told=lambda url, models: say_multi_model_ready(url, served, models, SETTINGS)) == 0
        )
    said = "\n".join(caplog.messages)
    assert "serving tales, digits for this machine at http://127.0.0.1:" in said
    assert "limits of tales: 256 running requests" in said
    assert "limits of digits: 16 requests" in said


@pytest.mark.parametrize(("memory", "kv", "says"), [(40, 30, "lower --kv-memory"), (4, 1, "memory is available")])
def test_too_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch, memory: int, kv: int, says: str) -> None:
    monkeypatch.setattr(serving, "available_memory", lambda: float(memory << 20))

    async def scenario(up: Up) -> None:
        raise AssertionError("it was not to be ready")

    with pytest.raises(ValueError, match=says):
        lives(together(EngineSettings(kv_bytes=kv << 20)), scenario)


def test_a_language_models_server_imports_nothing_that_draws() -> None:
    """Neither the command nor the application."""
    script = """
import sys
import ridgeline.cli.serve
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.server.admission import RequestQueue
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.app import build_app
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
settings = ServerSettings(models=("tales",))
llm = AsyncLLM("tales")
build_app(build_service(llm, RequestQueue(llm.info, settings), settings), settings, GrammarCheck(settings))
llm.close()
print(sorted(name for name in sys.modules if name.startswith(("ridgeline.media.diffusion", "ridgeline.server.images"))))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "[]\n", ended.stderr
