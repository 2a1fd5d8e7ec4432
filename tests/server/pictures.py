"""Servers of small random pipelines."""

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import openai
from PIL import Image

from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.price.devices import load_device
from ridgeline.server.images.diffusion_engine import DiffusionEngine
from ridgeline.server.images.image_app import build_image_app
from ridgeline.server.images.image_service import ImageService
from ridgeline.server.images.served_images import build_image_service, names_of
from ridgeline.server.images.video_job_store import VideoJobStore
from ridgeline.server.model_loop import ModelLoop
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Listening, listening
from server.wire import eventually

ROUTE = "/v1/images/generations"
ROOM = float(1 << 30)


@dataclass(frozen=True)
class Drawing(Listening):
    """A server of pipelines, and what is behind it."""

    service: ImageService
    jobs: VideoJobStore

    def draw(self, **fields: Any) -> Any:
        """The answer to a request that succeeds."""
        reply = self.post(ROUTE, fields)
        assert reply.status == 200, reply.data
        return reply.json()

    def refusal(self, body: Any, status: int = 400) -> Any:
        """The error of one that does not."""
        reply = self.post(ROUTE, body)
        assert reply.status == status, reply.data
        return reply.json()["error"]

    @contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        """OpenAI's client of the server, which is idle when it is done."""
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0) as client:
            yield client
        self.idle()

    def idle(self) -> None:
        """Nothing is under way, at once or soon."""
        assert eventually(lambda: not self.service.live), self.service.live


@contextmanager
def drawing(
    pipelines: Mapping[str, Pipeline], settings: ServerSettings | None = None, room: float = ROOM
) -> Iterator[Drawing]:
    """A server of pipelines that are loaded."""
    settings = settings or ServerSettings(models=("tiny",))
    drawer = DiffusionEngine(pipelines, load_device("h100-sxm"), room, ModelLoop(1))
    names = names_of(dict.fromkeys(pipelines, ""), settings)
    service, metrics = build_image_service(drawer, names, settings)
    jobs = VideoJobStore(service, settings)
    app = build_image_app(service, jobs, settings, names, routes=[metrics.route()])
    try:
        with listening(app, drawer, settings, [metrics.exchanged], jobs.aclose) as port:
            yield Drawing(port, service, jobs)
    finally:
        drawer.close()


def pixels(data: str) -> "np.ndarray[Any, Any]":
    """Of a file in base64."""
    with Image.open(BytesIO(base64.b64decode(data))) as opened:
        return np.asarray(opened)


@dataclass
class Held:
    """Holds the denoiser before its first call until `go` is set, and notes the pictures' size of each call."""

    pipeline: Pipeline
    begun: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    calls: list[int] = field(default_factory=list)

    def __enter__(self) -> "Held":
        self._handle = self.pipeline.denoiser.register_forward_pre_hook(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        self.go.set()
        self._handle.remove()

    def _called(self, _: Any, given: Any) -> None:
        if given[0].is_meta:  # a price looks
            return
        self.calls.append(int(given[0].shape[-1]))
        self.begun.set()
        assert self.go.wait(30)
