"""What the engine is doing now: /v1/engine/state, and as it goes on /v1/engine/events. Lengths and numbers, no text.

A listener gets a snapshot, then at most ten frames a second, each the steps since the last one merged. Nothing is
collected when nobody listens. docs/serving.md has the columns.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.worker.engine_messages import EngineSnapshot, PageChange, StepReport, replica_of
from ridgeline.engine.worker.feed import Feed
from ridgeline.server.errors import ApiError
from ridgeline.server.http.event_stream import EventStreamResponse, StreamOutbox, frame
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.routes.generation import ENGINE_DIED
from ridgeline.server.service import Service

STATE, EVENTS = "/v1/engine/state", "/v1/engine/events"
FRAME_SECONDS = 0.1
LAG_BYTES = 256 << 10
"""What may wait for a listener who reads slowly; then it gets a new snapshot instead."""
_LISTENERS = 32


@dataclass(eq=False, slots=True)
class _Listener:
    """A client. lags: frames were left out, or it has none yet: a snapshot is due as soon as it has read what waits."""

    outbox: StreamOutbox
    over: "asyncio.Future[None]"
    lags: bool = True

    @property
    def is_due(self) -> bool:
        """Whether a snapshot is to be sent next."""
        return self.lags and not self.outbox.waiting

    def put(self, data: bytes) -> None:
        """A frame, unless too much waits. One that is left out makes those after it useless."""
        self.lags = self.lags or self.outbox.waiting + len(data) > LAG_BYTES
        if not self.lags:
            self.outbox.put(data)

    def begin(self, snapshot: bytes) -> None:
        """All that was left out is in it."""
        self.lags = False
        self.outbox.put(snapshot)


class LiveState:
    """The engine of a service as others see it. Told of steps by `stepped`."""

    def __init__(self, service: Service, llm: AsyncLLM, replica: int = 0) -> None:
        """llm: one of the service's engines, or the only one. replica: which."""
        self._service, self._llm = service, llm
        self._feed = Feed()
        self._ends = _EndObserver(self._feed, replica)
        self._listeners: set[_Listener] = set()
        self._told = Stats()
        self._framing = False
        self._renewing: object | None = None  # stands for the snapshot that is under way for listeners
        self._renewed = -FRAME_SECONDS
        self._ticking: asyncio.Task[None] | None = None
        self._last_step = -1
        self._picture: asyncio.Future[bytes | None] | None = None
        self._taken = 0.0
        self._llm.page_observers.append(partial(service.on_loop, self._paged))

    def routes(self) -> list[Route]:
        """/v1/engine/state and /v1/engine/events."""
        return [
            Route(STATE, self.state, methods=["GET"]),
            Route(EVENTS, self.events, methods=["GET"]),
        ]

    def close(self) -> None:
        """The server ends: so do the streams."""
        for listener in self._listeners:
            if not listener.over.done():
                listener.over.set_result(None)

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Tell the feed. Where another engine has taken the place of the one before, everybody begins anew."""
        if report.step <= self._last_step:
            self._feed.restart()
            for listener in self._listeners:
                listener.lags = True
        self._last_step = report.step
        self._feed.stepped(report)

    def _paged(self, pages: Sequence[PageChange]) -> None:
        self._feed.paged(pages)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """A snapshot, of now or of a tenth of a second ago: an engine stops for it, however many ask."""
        loop = asyncio.get_running_loop()
        if self._picture is None or (self._picture.done() and loop.time() - self._taken > FRAME_SECONDS):
            self._picture, self._taken = loop.create_future(), loop.time()
            self._look(partial(self._show, self._picture), pages=True)
        data = await asyncio.shield(self._picture)
        if data is None:
            raise gone()
        return Response(data, media_type="application/json")

    def _show(self, picture: "asyncio.Future[bytes | None]", snapshot: EngineSnapshot | None) -> None:
        picture.set_result(None if snapshot is None else msgspec.json.encode(self._snapshot(snapshot)))

    def _look(self, tell: Callable[[EngineSnapshot | None], None], *, pages: bool) -> None:
        self._service.bind()
        self._llm.look(partial(self._service.on_loop, tell), pages=pages)

    def _snapshot(self, snapshot: EngineSnapshot) -> dict[str, object]:
        return self._feed.snapshot(self._llm.info, snapshot, self._name_of)

    def _name_of(self, request: int) -> str | None:
        live = self._service.by_request.get(request)
        return None if live is None else live.id

    # -- events --------------------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> EventStreamResponse:
        """Frames for as long as the client reads. Raises ApiError."""
        self._check_room()
        return EventStreamResponse(self._listen, sys.maxsize)  # LAG_BYTES and a snapshot are its bound

    def _check_room(self) -> None:
        if len(self._listeners) >= _LISTENERS:
            raise ApiError(429, f"{_LISTENERS} clients listen already", kind="rate_limit_error", code="listeners")

    async def _listen(self, outbox: StreamOutbox) -> None:
        """Put frames into an outbox until its client leaves. The engine notes pages while anybody listens.

        Raises ApiError. Listeners are counted again, because several clients may pass the check in `events` before any
        of them is added. Nothing is awaited between this check and the addition.
        """
        if not self._llm.alive:
            raise gone()
        self._check_room()
        listener = _Listener(outbox, asyncio.get_running_loop().create_future())
        self._listeners.add(listener)
        if self._ticking is None:
            self._begin()
        self._renew()
        try:
            await listener.over
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._end()

    def _begin(self) -> None:
        """There is somebody who listens."""
        self._service.bind()
        self._feed.begin()
        self._service.observers.append(self._ends)
        self._llm.watch(True)
        self._ticking = asyncio.create_task(self._tick())

    def _end(self) -> None:
        """Nobody listens any more."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
            self._llm.watch(False)
            self._service.observers.remove(self._ends)
            self._feed.end()
            # Changes of pages are missing between a snapshot that is under way and the next listener.
            self._renewing, self._renewed = None, -FRAME_SECONDS

    def _renew(self) -> None:
        """Ask for one snapshot for all listeners that are due, unless one is under way or was just told.

        The engine stops for a snapshot and the server encodes it, which takes longer the more pages are in use. So
        listeners that come together share one. A listener that comes right after it waits for the next tick.
        """
        now = asyncio.get_running_loop().time()
        if self._renewing is not None or now - self._renewed < FRAME_SECONDS or not self._llm.alive:
            return
        self._renewing, self._renewed = object(), now
        self._look(partial(self._tell_anew, self._renewing), pages=True)

    def _tell_anew(self, asked: object, snapshot: EngineSnapshot | None) -> None:
        """Give a snapshot to the listeners that are due, unless all who listened when it was asked for have left.

        They go on from where the snapshot was heard of, so that no step is missing in between: a frame that had begun
        before says some things again, and ends after it.
        """
        if asked is not self._renewing:
            return
        self._renewing = None
        due = [listener for listener in self._listeners if listener.is_due]
        if snapshot is None:
            for listener in due:
                if not listener.over.done():
                    listener.over.set_exception(gone())
        elif due:
            data = frame(self._snapshot(snapshot))
            for listener in due:
                listener.begin(data)

    async def _tick(self) -> None:
        """At most ten times a second, tell what has happened, if anything has."""
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            if (self._feed.due or self._llm.stats != self._told) and self._llm.alive and not self._framing:
                self._framing = True
                self._look(self._tell, pages=False)
            if any(listener.is_due for listener in self._listeners):
                self._renew()

    def _tell(self, snapshot: EngineSnapshot | None) -> None:
        """Tell the steps up to here: all of them have been heard of, and the snapshot is of after the last."""
        self._framing = False
        if snapshot is None or not self._listeners:
            return
        self._told = snapshot.stats
        data = frame(self._feed.frame(snapshot, self._name_of))
        for listener in self._listeners:
            listener.put(data)


@dataclass(eq=False, slots=True)
class _EndObserver:
    """Tells a feed which requests of a replica end, as an Observer, while anybody listens."""

    feed: Feed
    replica: int

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """It never came to the engine."""

    def arrived(self, live: InFlightRequest) -> None:
        """The engine's own state says so."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """So it does of tokens."""

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Choices that have no end of their own were given up, or the engine failed."""
        if live.request is None or replica_of(live.request) != self.replica:
            return
        unfinished = len(live.finishes) < live.spec.params.n
        ends = {str(finish) for finish in live.finishes} | ({"abort"} if unfinished else set())
        lengths = (live.prompt_tokens, live.cached, live.tokens)
        self.feed.ended(live.request, *lengths, " ".join(sorted(ends)), live.id)


def gone() -> ApiError:
    """There is no engine to look at."""
    return ApiError(503, "the engine is gone or being started again", kind="server_error", code=ENGINE_DIED)
