"""An AsyncLLM of which a test writes every event and step: what the observers of a service are told, on a clock of its
own."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.sampling.sample_row import Sampled
from ridgeline.engine.worker.engine_messages import (
    EngineInfo,
    EngineSnapshot,
    PageChange,
    PeerChanged,
    SequenceState,
    StepReport,
    Transferred,
)
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import Generation, InFlightRequest
from ridgeline.server.service import Service

SECOND = 1_000_000_000
INFO = EngineInfo(
    1000, 300, 1600, 16, 100, 8, 256, 1, 1 << 20, 1 << 18, "scripted card", True, held="1,600 tokens", concurrency=1.6
)


class Line:
    """To whoever takes a request's events."""

    def __init__(self, take: Callable[[Event | Exception], None]) -> None:
        self._take, self._loop = take, asyncio.get_running_loop()

    def put_nowait(self, event: Any) -> None:
        self._loop.call_soon(self._take, event)


@dataclass
class Scripted:
    """Requests get the events that the test puts into their queues."""

    info: EngineInfo = INFO
    stats: Stats = field(default_factory=Stats)
    alive: bool = True
    restarts: int = 0
    observers: list[Callable[[StepReport, Stats], None]] = field(default_factory=list)
    page_observers: list[Callable[[Sequence[PageChange]], None]] = field(default_factory=list)
    transfer_observers: list[Callable[[Transferred | PeerChanged], None]] = field(default_factory=list)
    peers: dict[str, PeerChanged] = field(default_factory=dict)
    watched: list[bool] = field(default_factory=list)
    looks: int = 0
    sequences: list[SequenceState] = field(default_factory=list)
    queues: dict[int, Line] = field(default_factory=dict)
    next: int = 1
    added: Callable[[int], None] = print
    begun: dict[int, Callable[[], None]] = field(default_factory=dict)

    def watch(self, on: bool) -> None:
        self.watched.append(on)

    def look(self, told: Callable[[EngineSnapshot | None], None], *, pages: bool = True) -> None:
        self.looks += pages
        held = [PageChange(0, 7, "held", 1, 16, 1)] if pages else []
        told(EngineSnapshot(5 * SECOND, self.stats, [2], held, self.sequences) if self.alive else None)

    def submit(
        self,
        spec: GenerationRequest,
        take: Callable[[Event | Exception], None],
        *,
        added: Callable[[int], None] = lambda request: None,
        begun: Callable[[], None] = lambda: None,
    ) -> Callable[[], None]:
        request, self.next = self.next, self.next + spec.params.n
        self.queues[request] = Line(take)
        added(request)
        self.added = added
        self.begun[request] = begun
        return lambda: None

    def token(
        self, request: int, at: float, timing: Timing | None, choice: int = 0, cached: int = 0, end: int = 0
    ) -> None:
        """A token at so many seconds; end: with it the choice ends by its length, after so many tokens."""
        finish = FinishReason.LENGTH if end else None
        told = {"at": round(at * SECOND), "cached": cached, "timing": timing, "finish": finish}
        event = Event(request, choice, Sampled(7))._replace(**told, output_tokens=end or None)
        self.queues[request].put_nowait(event)

    def step(
        self,
        items: list[tuple[int, int, int, int]],
        started: float,
        seconds: float,
        predicted: float | None = None,
        **counted: Any,
    ) -> None:
        """A step; counted: what it adds to the counters, and what the gauges are after it."""
        self.stats = replace(self.stats, steps=self.stats.steps + 1, **counted)
        decodes_only = all(item[3] == 1 for item in items)
        start, end = round(started * SECOND), round((started + seconds) * SECOND)
        work = (predicted, None if predicted is None else predicted / 2, 1e9 * seconds, 2e9 * seconds)
        report = StepReport(self.stats.steps, start, end, items, len(items), decodes_only, *work)
        for request, *_ in items:  # one that nobody asked for is the last again, under another engine's number
            self.begun.get(request, self.begun.get(self.next - 1, lambda: None))()
        for observer in self.observers:
            observer(report, self.stats)


class Gate:
    """Admission that refuses when told to."""

    def __init__(self) -> None:
        self.refusal: ApiError | None = None

    def admit(self, live: InFlightRequest) -> None:
        if self.refusal is not None:
            raise self.refusal

    def leave(self, live: InFlightRequest) -> None: ...


def live(
    id: str, length: int, prompts: int = 1, cache_salt: bytes = b"", service_tier: str = "", **params: Any
) -> InFlightRequest:
    """A request that arrived at second 0: the first of so many prompts."""
    ids, sampling = list(range(1, length + 1)), SamplingParams(**params)
    spec = GenerationRequest(ids, sampling, cache_salt=cache_salt, service_tier=service_tier)
    return InFlightRequest(Generation(id, "scripted", "/v1/completions", [spec] * prompts, stream=True))


async def consume(service: Service, request: InFlightRequest) -> None:
    """Run a request to its end."""
    await service.run(request, lambda event: None)


async def turn() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)
