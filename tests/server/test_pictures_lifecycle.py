"""How a server of pictures begins and ends: in this process, on real sockets and real signals."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.devices import load_device
from ridgeline.server.images.diffusion_engine import DiffusionEngine
from ridgeline.server.images.served_images import ServedImages
from ridgeline.server.lifecycle import serve
from ridgeline.server.server_settings import ServerSettings
from server.pictures import ROUTE

SETTINGS = ServerSettings(port=0, drain_seconds=20.0)
LONG = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 40, "guidance_scale": 0.0, "seed": 1}
SHORT = {**LONG, "num_inference_steps": 1}


@pytest.fixture(scope="module")
def folder(z_image_folder: Path) -> Path:
    return z_image_folder


@dataclass
class Up:
    """A server that serves, and a client's session with it."""

    session: aiohttp.ClientSession
    url: str
    drawer: DiffusionEngine

    async def health(self) -> tuple[int, str]:
        async with self.session.get(self.url + "/health/ready") as response:
            return response.status, (await response.json())["status"]

    async def post(self, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.session.post(self.url + ROUTE, json=body) as response:
            return response.status, await response.json()


def served(folder: Path) -> ServedImages:
    return ServedImages({"tiny": str(folder)}, lambda _: load_device("h100-sxm"), threads=1)


def lives(
    pictures: ServedImages,
    scenario: Callable[[Up], Coroutine[Any, Any, None]],
    settings: ServerSettings = SETTINGS,
) -> int:
    """Run a server through a scenario, which ends it; the exit code."""

    async def run() -> int:
        is_up: asyncio.Future[tuple[str, DiffusionEngine]] = asyncio.get_running_loop().create_future()
        ended = asyncio.create_task(serve(pictures, settings, lambda url, drawer: is_up.set_result((url, drawer))))
        await asyncio.wait((is_up, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        async with aiohttp.ClientSession() as session:
            await scenario(Up(session, *is_up.result()))
            return await asyncio.wait_for(ended, 30)

    return asyncio.run(run())


async def _under_way(up: Up) -> "asyncio.Task[tuple[int, Any]]":
    """A long request of which steps have run."""
    task, heard = asyncio.create_task(up.post(LONG)), up.drawer.messages_received
    while up.drawer.messages_received < heard + 3:
        await asyncio.sleep(0.001)
    return task


def test_a_signal_lets_what_runs_finish_and_nothing_new_begin(folder: Path) -> None:
    async def scenario(up: Up) -> None:
        assert await up.health() == (200, "ready")
        task = await _under_way(up)
        os.kill(os.getpid(), signal.SIGTERM)
        while (await up.health())[1] == "ready":
            pass
        if not task.done():  # else the machine was too fast to see it
            assert await up.health() == (503, "draining")
            status, error = await up.post(SHORT)
            assert (status, error["error"]["code"]) == (503, "shutting_down")
        status, answer = await task
        assert (status, len(answer["data"])) == (200, 1)

    assert lives(served(folder), scenario) == 0


def test_the_second_signal_ends_what_runs(folder: Path) -> None:
    async def scenario(up: Up) -> None:
        task = await _under_way(up)
        up.drawer.pipelines["tiny"].denoiser.register_forward_pre_hook(lambda *_: time.sleep(0.05))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        status, answer = await task
        assert (status, answer["error"]["code"]) == (503, "shutting_down")

    assert lives(served(folder), scenario) == 130


def test_a_thread_that_dies_ends_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits hears of it, and the exit code says so."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    async def scenario(up: Up) -> None:
        task = await _under_way(up)
        monkeypatch.setattr(up.drawer, "_step", lambda _: 1 / 0)
        status, answer = await task
        assert (status, answer["error"]["code"]) in ((503, "engine_died"), (500, "failed"))

    assert lives(served(folder), scenario) == 1


def test_a_signal_while_the_model_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that loads sees it at the next tensor."""
    reached: list[int] = []

    def load(model: str, progress: Callable[[int, int], None], **more: Any) -> Any:
        def told(done: int, total: int) -> None:
            reached.append(done)
            if len(reached) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)
            progress(done, total)

        return load_pipeline(model, progress=told, **more)

    monkeypatch.setattr("ridgeline.server.images.served_images.load_pipeline", load)

    async def scenario(up: Up) -> None:
        raise AssertionError("it was not to be ready")

    assert lives(served(folder), scenario) == 0
    assert len(reached) == 1


def test_a_folder_that_cannot_be_served(folder: Path, tmp_path: Path) -> None:
    async def scenario(up: Up) -> None:
        raise AssertionError("it was not to be ready")

    with pytest.raises(ModelRefused, match="no such folder"):
        lives(served(tmp_path / "none"), scenario)
