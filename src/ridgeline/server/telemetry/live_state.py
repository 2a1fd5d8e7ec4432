"""The live state of an engine: /v1/engine/state, and its changes on /v1/engine/events, with lengths but no text.

A listener gets a snapshot, then at most ten frames per second, each of which merges the steps since the last one. While
there are no listeners, only the latest steps and the sums of step times are collected. docs/serving.md describes the
columns.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.worker.engine_messages import EngineSnapshot, StepReport, replica_of
from ridgeline.engine.worker.feed import Feed
from ridgeline.server.errors import ApiError
from ridgeline.server.http.event_stream import EventStreamResponse, StreamOutbox, frame
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.routes.generation import ENGINE_DIED
from ridgeline.server.service import Service

STATE, EVENTS = "/v1/engine/state", "/v1/engine/events"
FRAME_SECONDS = 0.1
LAG_BYTES = 256 << 10
"""The most unread bytes of a slow listener, who gets a new snapshot instead of further frames."""
_LISTENERS = 32


@dataclass(eq=False, slots=True)
class _Listener:
    """A client of the engine's event stream."""

    outbox: StreamOutbox
    over: "asyncio.Future[None]"
    lags: bool = True
    """Whether the client needs a new snapshot: at the start, and after frames that it read too slowly to receive."""

    @property
    def is_due(self) -> bool:
        """Whether the client should get a snapshot next."""
        return self.lags and not self.outbox.waiting

    def put(self, data: bytes) -> None:
        """Send a frame unless too much is unread; after a dropped frame, drop the later ones too.

        Later frames are useless without the dropped one; a snapshot follows.
        """
        self.lags = self.lags or self.outbox.waiting + len(data) > LAG_BYTES
        if not self.lags:
            self.outbox.put(data)

    def begin(self, snapshot: bytes) -> None:
        """Send a snapshot to the listener, which covers all frames that it missed."""
        self.lags = False
        self.outbox.put(snapshot)


class LiveState:
    """The live state of one engine for HTTP clients, updated by `stepped`."""

    def __init__(self, service: Service, llm: AsyncLLM, replica: int = 0) -> None:
        """Prepare the live state of an engine, without listeners.

        Args:
            service: The service of the engine.
            llm: The engine, one of possibly several of the service.
            replica: The number of the engine.
        """
        self._service, self._llm = service, llm
        self._feed = Feed()
        self._ends = _EndObserver(self._feed, replica)
        self._listeners: set[_Listener] = set()
        self._reported = Stats()
        self._framing = False
        self._renewing: object | None = None  # identifies the requested snapshot for listeners
        self._renewed = -FRAME_SECONDS
        self._ticking: asyncio.Task[None] | None = None
        self._last_step = -1
        self._snapshot_future: asyncio.Future[bytes | None] | None = None
        self._taken = 0.0
        self._llm.page_observers.append(partial(service.on_loop, self._feed.paged))

    def routes(self) -> list[Route]:
        """Return the routes /v1/engine/state and /v1/engine/events."""
        return [
            Route(STATE, self.state, methods=["GET"]),
            Route(EVENTS, self.events, methods=["GET"]),
        ]

    def close(self) -> None:
        """End the event streams of all listeners."""
        for listener in self._listeners:
            if not listener.over.done():
                listener.over.set_result(None)

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Record a step; if the engine was restarted, start again with a snapshot for all listeners."""
        if report.step <= self._last_step:
            self._feed.restart()
            for listener in self._listeners:
                listener.lags = True
        self._last_step = report.step
        self._feed.stepped(report)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """Handle GET /v1/engine/state, with a snapshot that is at most a tenth of a second old.

        Concurrent requests share a snapshot, because the engine stops for each.

        Raises:
            ApiError: If the engine is gone or restarting (503).
        """
        loop = asyncio.get_running_loop()
        if self._snapshot_future is None or (
            self._snapshot_future.done() and loop.time() - self._taken > FRAME_SECONDS
        ):
            self._snapshot_future, self._taken = loop.create_future(), loop.time()
            self._look(partial(self._show, self._snapshot_future), pages=True)
        data = await asyncio.shield(self._snapshot_future)
        if data is None:
            raise gone()
        return Response(data, media_type="application/json")

    def _show(self, snapshot_future: "asyncio.Future[bytes | None]", snapshot: EngineSnapshot | None) -> None:
        snapshot_future.set_result(None if snapshot is None else msgspec.json.encode(self._snapshot(snapshot)))

    def _look(self, on_snapshot: Callable[[EngineSnapshot | None], None], *, pages: bool) -> None:
        self._service.bind()
        self._llm.look(partial(self._service.on_loop, on_snapshot), pages=pages)

    def _snapshot(self, snapshot: EngineSnapshot) -> dict[str, object]:
        return self._feed.snapshot(self._llm.info, snapshot, self._name_of)

    def _name_of(self, request: int) -> str | None:
        live = self._service.by_request.get(request)
        return None if live is None else live.id

    # -- events --------------------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> EventStreamResponse:
        """Handle GET /v1/engine/events, which streams frames for as long as the client reads.

        Raises:
            ApiError: If there are too many listeners.
        """
        self._check_room()
        return EventStreamResponse(self._listen, sys.maxsize)  # LAG_BYTES and a snapshot bound it instead

    def _check_room(self) -> None:
        if len(self._listeners) >= _LISTENERS:
            raise ApiError(
                429,
                f"{_LISTENERS} clients receive live events already, which is the limit: close one",
                code="listeners",
            )

    async def _listen(self, outbox: StreamOutbox) -> None:
        """Send frames to a listener until its client leaves; the engine reports page changes while there are listeners.

        Listeners are counted again, because several clients may pass the check in `events` before any of them is added.
        Nothing is awaited between this check and the addition.

        Raises:
            ApiError: If there are too many listeners, or the engine is gone.
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
        """Start collecting step and page changes for the first listener."""
        self._service.bind()
        self._feed.begin()
        self._service.observers.append(self._ends)
        self._llm.watch(True)
        self._ticking = asyncio.create_task(self._tick())

    def _end(self) -> None:
        """Stop collecting step and page changes after the last listener has left."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
            self._llm.watch(False)
            self._service.observers.remove(self._ends)
            self._feed.end()
            # A requested snapshot is useless for the next listener, who would miss the page changes in between.
            self._renewing, self._renewed = None, -FRAME_SECONDS

    def _renew(self) -> None:
        """Request one snapshot for all listeners that are due, unless one is in progress or was just sent.

        The engine stops for a snapshot and the server encodes it, which takes longer the more pages are in use. So
        listeners that arrive together share one. A listener that arrives right after it waits for the next tick.
        """
        now = asyncio.get_running_loop().time()
        if self._renewing is not None or now - self._renewed < FRAME_SECONDS or not self._llm.alive:
            return
        self._renewing, self._renewed = object(), now
        self._look(partial(self._publish_if_current, self._renewing), pages=True)

    def _publish_if_current(self, renewal: object, snapshot: EngineSnapshot | None) -> None:
        """Send a snapshot to the listeners that are due, unless all who listened when it was requested have left.

        They continue from the point where the snapshot arrived, so that no step is missing. A frame that was requested
        earlier may repeat some steps.
        """
        if renewal is not self._renewing:
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
        """Request a frame every tenth of a second if anything has happened, and snapshots that are due."""
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            if (self._feed.due or self._llm.stats != self._reported) and self._llm.alive and not self._framing:
                self._framing = True
                self._look(self._publish, pages=False)
            if any(listener.is_due for listener in self._listeners):
                self._renew()

    def _publish(self, snapshot: EngineSnapshot | None) -> None:
        """Send a frame with the steps so far; all of them have arrived, and the snapshot was taken after the last."""
        self._framing = False
        if snapshot is None or not self._listeners:
            return
        self._reported = snapshot.stats
        data = frame(self._feed.frame(snapshot, self._name_of))
        for listener in self._listeners:
            listener.put(data)


@dataclass(eq=False, slots=True)
class _EndObserver:
    """A request observer that reports the ends of a replica's requests to a feed while there are listeners."""

    feed: Feed
    replica: int

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Report nothing for a rejected request, because it never reached the engine."""

    def arrived(self, live: InFlightRequest) -> None:
        """Report nothing for a new request, because the engine's own state shows it."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Report nothing for a new token, because the engine's own state shows it."""

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Report the end of a request; choices without a finish reason count as aborted."""
        if live.request is None or replica_of(live.request) != self.replica:
            return
        unfinished = len(live.finishes) < live.spec.params.n
        ends = {str(finish) for finish in live.finishes} | ({"abort"} if unfinished else set())
        lengths = (live.prompt_tokens, live.cached, live.tokens)
        self.feed.ended(live.request, *lengths, " ".join(sorted(ends)), live.id)


def gone() -> ApiError:
    """Return the 503 error for an engine that is gone or restarting."""
    return ApiError(503, "the engine has stopped or is restarting", code=ENGINE_DIED)
