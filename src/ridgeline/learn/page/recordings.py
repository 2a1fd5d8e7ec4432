"""Recorded runs of an engine, for a page without a server: the built-in model, frame by frame.

Each run is a snapshot and one frame per step, in the format of /v1/engine/events (engine/worker/feed.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.worker.engine_messages import (
    AddRequest,
    EngineSnapshot,
    FromEngine,
    GetSnapshot,
    Stepped,
    WatchPages,
)
from ridgeline.engine.worker.feed import Feed
from ridgeline.engine.worker.loop import EngineLoop
from ridgeline.price.device import Device

_MODEL = "tales"
RUNS = "runs.json"
"""The file name by which the page requests the recorded engine runs."""


@dataclass(frozen=True)
class Arrival:
    """A request in a recorded engine run."""

    step: int
    """The engine step before which the request arrives."""
    prompt: str
    """The prompt of the request."""
    output: int
    """The number of tokens that the request generates."""


@dataclass(frozen=True)
class Scene:
    """An engine run to record, with its title, text, limits and requests."""

    id: str
    """The identifier of the scene on the page."""
    title: str
    """The title of the scene on the page."""
    words: str
    """The text that explains what the scene shows."""
    pages: int
    """The number of pages of KV memory in the scene."""
    limits: Limits
    """The limits of an engine step in the scene."""
    arrivals: Sequence[Arrival]
    """The requests that arrive in the scene."""


_OPENINGS = (
    "Once upon a time there was a small dragon who",
    "In the morning the girl went to the river and",
    "Tom had a red ball. One day he",
    "The old man looked at the sea and said",
    "There was a little house in the wood where",
    "A cat and a dog lived on a farm. They",
)
_TALE = (
    "There was a boy called Tim. Tim had a big box of toys. He liked his red car best. One day he took it to the park. "
    "A girl saw the car and wanted to play. Tim did not want to share. His mom said that it is good to share with a "
    "friend. So they played with the car until the sun went down. "
)

SCENES = (
    Scene(
        "batching",
        "Batching",
        "Twelve requests arrive one after the other. Each joins the next step and leaves when it is complete, so no "
        "request waits for a batch to fill or to end. A step reads the weights once, whatever the number of requests.",
        256,
        Limits(tokens=256, requests=16),
        [Arrival(4 * i, _OPENINGS[i % 6], 24 + 7 * (i % 5)) for i in range(12)],
    ),
    Scene(
        "chunked",
        "A long prompt in chunks",
        "Six requests are decoding when a prompt of several hundred tokens arrives. It runs in chunks that use the "
        "rest of each step's token budget. The other requests still get a token in every step, but the steps take a "
        "little longer.",
        256,
        Limits(tokens=64, requests=16),
        [*(Arrival(0, opening, 60) for opening in _OPENINGS), Arrival(15, 4 * _TALE, 20)],
    ),
    Scene(
        "preempted",
        "Too few pages",
        "Four requests do not fit into these pages. When no page is free, the engine preempts the newest request: it "
        "loses its pages and returns to the queue with its tokens. Later the engine recomputes the pages that the "
        "prefix cache no longer has.",
        14,
        Limits(tokens=128, requests=8),
        [Arrival(3 * i, _OPENINGS[i], 72) for i in range(4)],
    ),
    Scene(
        "shared",
        "A shared prefix",
        "Five requests begin with the same text. The first request computes it; the later ones find its full pages in "
        "the prefix cache and share them. Pages that no request uses any more stay cached until they are needed.",
        128,
        Limits(tokens=256, requests=8),
        [Arrival(12 * i, _TALE + opening, 30) for i, opening in enumerate(_OPENINGS[:5])],
    ),
)


def recorded_runs(device: Device, scenes: Sequence[Scene] = SCENES) -> dict[str, Any]:
    """Return the block `runs.json` of a single-file page: each scene, run now, with its steps priced on `device`."""
    loaded = load_engine(_MODEL)
    return {"model": _MODEL, "runs": [_Recording(loaded, device, scene).run() for scene in scenes]}


class _Recording:
    """A scene and the engine that runs it."""

    def __init__(self, loaded: LoadedEngine, device: Device, scene: Scene) -> None:
        layout = replace(loaded.layout, pages=scene.pages)
        context = min(loaded.engine.traits.context, layout.capacity(scene.limits.max_request_tokens))
        self.engine = build_engine(loaded.model, layout, scene.limits, context=context, seed=0)
        self._loop = EngineLoop(self.engine, self._on_message, loaded.price, device)
        self._info = replace(loaded, engine=self.engine, layout=layout).info(device)
        self._scene, self._texts = scene, loaded.text_processor
        self._feed, self._frames = Feed(), list[dict[str, Any]]()
        # By request: the tokens of its prompt, those found in the cache, and those generated.
        self._lengths: dict[int, list[int]] = {}

    def run(self) -> dict[str, Any]:
        """Run the scene and return its recording for the page."""
        self._warm_up()
        self._feed.begin()
        self._loop.take(WatchPages(True))
        self._loop.take(GetSnapshot())
        waiting, step = sorted(self._scene.arrivals, key=lambda arrival: arrival.step), 0
        while waiting or self.engine.has_work:
            while waiting and (waiting[0].step <= step or not self.engine.has_work):
                self._add(waiting.pop(0))
            self._loop.step()
            self._loop.take(GetSnapshot(pages=False))
            step += 1
        self._loop.take(WatchPages(False))
        snapshot, *frames = self._frames
        scene = self._scene
        return {"id": scene.id, "title": scene.title, "words": scene.words, "snapshot": snapshot, "frames": frames}

    def _warm_up(self) -> None:
        """Run batches of every size before the recording, because the first of a size takes longer.

        No request fills a page, because a full page would stay in the prefix cache.
        """
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        for count in range(1, self._scene.limits.requests + 1):
            for _ in range(count):
                self.engine.add(GenerationRequest([1, 2, 3], params))
            while self.engine.has_work:
                self.engine.step()

    def _add(self, arrival: Arrival) -> None:
        prompt = self._texts.encode(arrival.prompt, self.engine.traits.context)
        params = SamplingParams(temperature=0.8, seed=arrival.step, max_tokens=arrival.output, ignore_eos=True)
        self._loop.take(AddRequest(0, GenerationRequest(prompt, params)))
        self._lengths[max(self.engine.requests)] = [len(prompt), 0, 0]

    def _on_message(self, message: FromEngine) -> None:
        if isinstance(message, Stepped):
            if message.report is not None:
                self._feed.stepped(message.report)
            self._feed.paged(message.pages)
            for event in message.events:
                lengths = self._lengths[event.request]
                lengths[1], lengths[2] = event.cached, lengths[2] + (event.token is not None)
                if event.finish is not None:
                    prompt, cached, output = lengths
                    self._feed.ended(event.request, prompt, cached, output, str(event.finish), None)
        elif isinstance(message, EngineSnapshot):
            frame = self._feed.frame(message, _unnamed) if self._frames else self._first(message)
            self._frames.append(_rounded(msgspec.to_builtins(frame)))

    def _first(self, message: EngineSnapshot) -> dict[str, Any]:
        return self._feed.snapshot(self._info, message, _unnamed)


def _unnamed(request: int) -> None:
    """Return None: without a server, requests have no id."""


def _rounded(content: Any) -> Any:
    """Return data with all floats, such as times, rounded to nine decimals.

    Further digits are noise and would be most of the file.
    """
    if isinstance(content, float):
        return round(content, 9)
    if isinstance(content, Mapping):
        return {name: _rounded(value) for name, value in content.items()}
    return [_rounded(value) for value in content] if isinstance(content, list) else content
