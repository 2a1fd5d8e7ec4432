"""What the engine is doing now: /v1/engine/state, and as it goes on /v1/engine/events. Lengths and numbers, no text.

A listener gets a snapshot, then at most ten frames a second, each the steps since the last one merged. Nothing is
collected when nobody listens. docs/serving.md has the columns.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ridgeline.engine.events import Stats
from ridgeline.engine.request import NANOSECONDS
from ridgeline.engine.worker.messages import PageChange, Snapshot, StepReport
from ridgeline.server.api.generation import ENGINE_DIED
from ridgeline.server.errors import ApiError
from ridgeline.server.http.sse import EventStream, Outbox, frame
from ridgeline.server.service import Service
from ridgeline.server.telemetry.priced import PricedSteps

FRAME_SECONDS = 0.1
LAG_BYTES = 256 << 10
"""What may wait for a listener who reads slowly; then it gets a new snapshot instead."""
_RECENT = 120  # steps that a snapshot tells of
_LISTENERS = 32


@dataclass(slots=True)
class _Merge:
    """Steps as one. items: of each sequence (request, choice) the runs of positions that it ran. pages: by number, as
    they are at the end."""

    step: int = 0
    steps: int = 0
    clock: int = 0
    seconds: float = 0.0
    priced: PricedSteps = field(default_factory=PricedSteps)
    items: dict[tuple[int, int], list[list[int]]] = field(default_factory=dict)
    pages: dict[int, PageChange] = field(default_factory=dict)

    def add(self, report: StepReport) -> None:
        seconds = report.seconds
        self.step, self.clock = report.step, report.finished
        self.steps += 1
        self.seconds += seconds
        self.priced.add(seconds, report.predicted, report.floor)
        for request, choice, start, count in report.items:
            runs = self.items.setdefault((request, choice), [])
            if runs and runs[-1][0] + runs[-1][1] == start:
                runs[-1][1] += count
            else:
                runs.append([start, count])

    def told(self, stats: Stats) -> dict[str, Any]:
        return {
            "type": "steps",
            "step": self.step,
            "steps": self.steps,
            "clock": self.clock * NANOSECONDS,
            "items": [[request, *run, choice] for (request, choice), runs in self.items.items() for run in runs],
            "pages": list(self.pages.values()),
            "counters": asdict(stats),
            "seconds": self.seconds,
            "predicted": self.priced.predicted if self.priced.measured else None,
            "priced_seconds": self.priced.measured,
        }


@dataclass(eq=False, slots=True)
class _Listener:
    """A client. lags: frames were left out, or it has none yet: a snapshot is due as soon as it has read what waits.
    asked: the snapshot is under way."""

    outbox: Outbox
    over: "asyncio.Future[None]"
    lags: bool = True
    asked: bool = False

    def put(self, data: bytes) -> None:
        """A frame, unless too much waits. One that is left out makes those after it useless."""
        self.lags = self.lags or self.outbox.waiting + len(data) > LAG_BYTES
        if not self.lags:
            self.outbox.put(data)

    def begin(self, snapshot: bytes) -> None:
        """All that was left out is in it."""
        self.lags = self.asked = False
        self.outbox.put(snapshot)


class LiveState:
    """The engine of a service as others see it. Told of steps by `stepped`."""

    def __init__(self, service: Service) -> None:
        self._service, self._llm = service, service.llm
        self._recent: deque[tuple[int, float, float | None, int, int]] = deque(maxlen=_RECENT)
        self._listeners: set[_Listener] = set()
        self._merge = _Merge()
        self._told = Stats()
        self._ticking: asyncio.Task[None] | None = None
        self._last_step = -1
        self._picture: asyncio.Future[bytes | None] | None = None
        self._taken = 0.0
        self._llm.page_observers.append(partial(service.on_loop, self._paged))

    def routes(self) -> list[Route]:
        """/v1/engine/state and /v1/engine/events."""
        return [
            Route("/v1/engine/state", self._state, methods=["GET"]),
            Route("/v1/engine/events", self._events, methods=["GET"]),
        ]

    def close(self) -> None:
        """The server ends: so do the streams."""
        for listener in self._listeners:
            if not listener.over.done():
                listener.over.set_result(None)

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Remember the step, and merge it for those who listen."""
        self._recent.append((report.step, report.seconds, report.predicted, len(report.items), report.positions))
        if not self._listeners:
            return
        if report.step <= self._last_step:  # another engine has taken its place: pages and requests are new
            self._merge = _Merge()
            for listener in self._listeners:
                listener.lags = True
        self._last_step = report.step
        self._merge.add(report)

    def _paged(self, pages: Sequence[PageChange]) -> None:
        if self._listeners:
            self._merge.pages.update({change.page: change for change in pages})

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def _state(self, request: Request) -> Response:
        """A snapshot, of now or of a tenth of a second ago: an engine stops for it, however many ask."""
        loop = asyncio.get_running_loop()
        if self._picture is None or (self._picture.done() and loop.time() - self._taken > FRAME_SECONDS):
            self._picture, self._taken = loop.create_future(), loop.time()
            self._look(partial(self._show, self._picture))
        data = await asyncio.shield(self._picture)
        if data is None:
            raise gone()
        return Response(data, media_type="application/json")

    def _show(self, picture: "asyncio.Future[bytes | None]", snapshot: Snapshot | None) -> None:
        picture.set_result(None if snapshot is None else msgspec.json.encode(self._snapshot(snapshot)))

    def _look(self, tell: Callable[[Snapshot | None], None]) -> None:
        self._service.bind()
        self._llm.look(partial(self._service.on_loop, tell))

    def _snapshot(self, snapshot: Snapshot) -> dict[str, Any]:
        info, ids = self._llm.info, self._service.by_request
        return {
            "type": "snapshot",
            "step": snapshot.stats.steps,
            "clock": snapshot.at * NANOSECONDS,
            "limits": {
                "context": info.context,
                "requests": info.requests,
                "step_tokens": info.step_tokens,
                "page_size": info.page_size,
                "pages": info.pages,
                "groups": snapshot.groups,
            },
            "device": info.device,
            "calibrated": info.calibrated,
            "counters": asdict(snapshot.stats),
            "pages": snapshot.pages,
            "requests": [
                {"id": ids[each.request].id if each.request in ids else None, **each._asdict()}
                | {"arrived": each.arrived * NANOSECONDS}
                for each in snapshot.sequences
            ],
            "recent": [
                {"step": step, "seconds": seconds, "predicted": predicted, "sequences": count, "positions": positions}
                for step, seconds, predicted, count, positions in self._recent
            ],
        }

    # -- events --------------------------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> EventStream:
        if len(self._listeners) == _LISTENERS:
            raise ApiError(429, f"{_LISTENERS} clients listen already", kind="rate_limit_error", code="listeners")
        return EventStream(self._listen, sys.maxsize)  # LAG_BYTES and a snapshot are its bound

    async def _listen(self, outbox: Outbox) -> None:
        """Put frames into an outbox until its client leaves. The engine notes pages while anybody listens."""
        if not self._llm.alive:
            raise gone()
        listener = _Listener(outbox, asyncio.get_running_loop().create_future())
        self._listeners.add(listener)
        if self._ticking is None:
            self._service.bind()
            self._llm.watch(True)
            self._ticking = asyncio.create_task(self._tick())
        self._snapshot_for(listener)
        try:
            await listener.over
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._ticking is not None:
                self._ticking.cancel()
                self._ticking, self._merge = None, _Merge()
                self._llm.watch(False)

    def _snapshot_for(self, listener: _Listener) -> None:
        """Give a listener a snapshot. It goes on from where the snapshot was heard of, so that no step is missing in
        between: a frame that had begun before says some things again, and ends after it."""

        def tell(snapshot: Snapshot | None) -> None:
            if snapshot is not None:
                listener.begin(frame(self._snapshot(snapshot)))
            elif not listener.over.done():
                listener.over.set_exception(gone())

        listener.asked = True
        self._look(tell)

    async def _tick(self) -> None:
        """At most ten times a second, tell what has happened, if anything has."""
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            merge, stats = self._merge, self._llm.stats
            if merge.steps or merge.pages or stats != self._told:
                self._merge, self._told = _Merge(merge.step, clock=merge.clock), stats
                data = frame(merge.told(stats))
                for listener in self._listeners:
                    listener.put(data)
            for listener in self._listeners:
                if listener.lags and not listener.asked and not listener.outbox.waiting and self._llm.alive:
                    self._snapshot_for(listener)


def gone() -> ApiError:
    """There is no engine to look at."""
    return ApiError(503, "the engine is gone or being started again", kind="server_error", code=ENGINE_DIED)
