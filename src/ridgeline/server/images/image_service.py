"""ImageService: the one way from a route to the pipelines. A queue before it, observers beside, always an end."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from ridgeline.server.admission import RetryAfter, shutting_down
from ridgeline.server.deadlines import Deadlines
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.event_stream import SlowReader
from ridgeline.server.images.diffusion_engine import DiffusionEngine, DiffusionSubmission, WorkUnitReport
from ridgeline.server.server_settings import ServerSettings
from ridgeline.util.host import out_of_memory

logger = logging.getLogger(__name__)

QUEUED_REQUESTS = 16
"""Requests in the server where the settings do not say it: they take turns, and with more each waits for all."""

Phase = Literal["queue", "encode", "denoise", "decode"]


@dataclass(eq=False, slots=True)
class InFlightImageRequest:
    """A request while it is in the server, without any of its text. id: what the client sees. model: its name in
    answers. images: how many it asks for. nbytes: most that their files can have. kept: bytes that its step
    cache holds between its steps, while others are stepped. clip: whether it asks for a clip.
    arrived: nanoseconds of time.perf_counter_ns. phase: of its latest stride. begun: whether its
    first stride runs or has run. fail: ends it with an error.
    """

    id: str
    model: str
    images: int
    nbytes: int
    kept: int = 0
    clip: bool = False
    arrived: int = field(default_factory=time.perf_counter_ns)
    phase: Phase = "queue"
    begun: bool = False
    fail: Callable[[Exception], None] | None = None


class ImageObserver(Protocol):
    """Who is told of every request."""

    def refused(self, live: InFlightImageRequest, error: ApiError) -> None:
        """There is no room for it. Nothing else is told of it."""

    def told(self, live: InFlightImageRequest, told: WorkUnitReport) -> None:
        """A stride has run; `live.phase` is still the one before it."""

    def ended(self, live: InFlightImageRequest, error: BaseException | None) -> None:
        """It is over; told once. error: what ended it (CancelledError: the client left)."""


class ImageQueue:
    """Counts requests in and out, and the bytes of their files, which wait here for the last of them to be drawn."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        queued = settings.queued_requests
        self.places = QUEUED_REQUESTS if queued is None else max(1, queued)
        self.nbytes = settings.picture_bytes
        self.draining = False
        self._inside: set[InFlightImageRequest] = set()
        self._retry = RetryAfter(clock)

    def admit(self, live: InFlightImageRequest) -> None:
        """Count a request in. Raises ApiError: 400 where its pictures, or what its step cache keeps, are more than is
        held at all, 429 where there is no room, 503 where the server is to end.
        """
        if self.draining:
            raise shutting_down()
        if live.nbytes > self.nbytes:
            raise invalid(
                f"n: {live.images} pictures of this size may have {live.nbytes >> 20} MiB, and {self.nbytes >> 20} are "
                "held for an answer (--max-image-memory): ask for fewer at a time",
                "n",
            )
        if live.nbytes + live.kept > self.nbytes:
            raise invalid(
                f"step_cache: it keeps {live.kept >> 20} MiB between steps at this size, and {self.nbytes >> 20} may "
                "be held (--max-image-memory): leave it out, or ask for a smaller size",
                "step_cache",
            )
        if len(self._inside) >= self.places:
            raise self._retry.full("requests", "queue_full")
        if sum(each.nbytes + each.kept for each in (*self._inside, live)) > self.nbytes:
            raise self._retry.full("pictures", "queue_pictures")
        self._inside.add(live)

    def leave(self, live: InFlightImageRequest) -> None:
        """Count it out."""
        self._inside.discard(live)
        self._retry.left()


class ImageService:
    """Pipelines that are served. live: requests under way by their id; held: those whose client waits for the
    answer.
    """

    def __init__(
        self,
        drawer: DiffusionEngine,
        queue: ImageQueue,
        observers: Iterable[ImageObserver] = (),
        *,
        queue_seconds: float = math.inf,
        total_seconds: float = math.inf,
    ) -> None:
        """Limit a request's time. queue_seconds: until its first stride begins; total_seconds: until its end."""
        self.drawer, self.queue, self.observers = drawer, queue, list(observers)
        self.deadlines = Deadlines(queue_seconds, total_seconds)
        self.live: dict[str, InFlightImageRequest] = {}
        self.held: dict[str, InFlightImageRequest] = {}

    async def run(
        self, live: InFlightImageRequest, order: DiffusionSubmission, take: Callable[[WorkUnitReport], None]
    ) -> None:
        """As `admit` and `draw`, for a client that waits, within the limits of time. Raises ApiError."""
        self.admit(live)
        self.held[live.id] = live
        try:
            with self.deadlines.held(lambda: not live.begun, partial(self.end, live)):
                await self.draw(live, order, take)
        finally:
            del self.held[live.id]

    def admit(self, live: InFlightImageRequest) -> None:
        """Count a request in; `draw` is to follow. Raises ApiError where there is no room."""
        try:
            self.queue.admit(live)
        except ApiError as error:
            for observer in self.observers:
                observer.refused(live, error)
            raise
        self.live[live.id] = live

    async def draw(
        self, live: InFlightImageRequest, order: DiffusionSubmission, take: Callable[[WorkUnitReport], None]
    ) -> None:
        """Have a request drawn that was admitted; `take` is told of each stride as it ends. Cancelling drops the rest.
        Raises ApiError for what `end` ended, what does not fit into memory and what cannot be drawn.
        """
        ended: BaseException | None = None
        try:
            await self._strides(live, order, take)
        except BaseException as error:
            ended = error
            if isinstance(error, Exception) and not isinstance(error, ApiError | SlowReader):
                raise _failure(live, error) from None
            raise
        finally:
            del self.live[live.id]
            live.fail = None
            self.queue.leave(live)
            for observer in self.observers:
                observer.ended(live, ended)

    async def _strides(
        self, live: InFlightImageRequest, order: DiffusionSubmission, take: Callable[[WorkUnitReport], None]
    ) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(stride: WorkUnitReport | Exception) -> None:
            if done.done():
                return
            try:
                if isinstance(stride, Exception):
                    raise stride
                for observer in self.observers:
                    observer.told(live, stride)
                live.phase = stride.stage
                take(stride)
            except Exception as error:  # of whoever takes it, who has then taken the last
                done.set_exception(error)
            else:
                if stride.number == stride.of:
                    done.set_result(None)

        def begun() -> None:
            live.begun = True

        live.fail = told
        leave = self.drawer.submit(order, told, begun)
        try:
            await done
        finally:
            leave()

    def end(self, live: InFlightImageRequest, error: ApiError) -> None:
        """Have a request under way end with an error."""
        if live.fail is not None:
            live.fail(error)

    def end_all(self, error: ApiError) -> None:
        """Have all that are under way end with an error."""
        for live in list(self.live.values()):
            self.end(live, error)


def _failure(live: InFlightImageRequest, error: Exception) -> ApiError:
    """What the client is told of a request that failed while it was drawn: an exception's own words only where the
    request was refused before its first stride.
    """
    if isinstance(error, ValueError) and live.phase == "queue":
        return invalid(str(error), "size", code="too_large")
    logger.error("request %s failed: %s", live.id, type(error).__name__, exc_info=error)
    if out_of_memory(error) is not None:
        return ApiError(503, "there was no memory for this request", kind="server_error", code="out_of_memory")
    return ApiError(500, "the model failed on this request", kind="server_error", code="failed", retry=False)
