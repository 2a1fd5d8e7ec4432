"""The service between routes and pipelines: it admits requests, informs observers, and ensures that each ends."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from ridgeline.server.admission import RetryAfter, shutting_down
from ridgeline.server.deadlines import Deadlines
from ridgeline.server.errors import ApiError, invalid, model_failed
from ridgeline.server.http.event_stream import SlowReader
from ridgeline.server.images.diffusion_engine import DiffusionEngine, DiffusionSubmission, WorkUnitReport
from ridgeline.server.server_settings import ServerSettings
from ridgeline.util.host import out_of_memory

logger = logging.getLogger(__name__)

QUEUED_REQUESTS = 16
"""The default limit of image and video requests in the server at once; each one slows down the others."""

Phase = Literal["queue", "encode", "denoise", "decode"]


@dataclass(eq=False, slots=True)
class InFlightImageRequest:
    """An image or video request while the server processes it, without any of its text."""

    id: str
    """The request id that the client sees."""
    model: str
    """The model name in responses."""
    images: int
    """The number of images requested."""
    nbytes: int
    """The most bytes of the request's image files, or of the video frames that it holds in memory."""
    step_cache_bytes: int = 0
    """The bytes that the request's step cache holds between its denoising steps, while other requests run."""
    is_video: bool = False
    """Whether the request is for a video."""
    arrived: int = field(default_factory=time.perf_counter_ns)
    """The time at which the request arrived, in nanoseconds of `time.perf_counter_ns`."""
    phase: Phase = "queue"
    """The stage of the request's latest work unit, or "queue" before the first."""
    begun: bool = False
    """Whether the request's first work unit has begun."""
    fail: Callable[[Exception], None] | None = None
    """The callback that ends the request with an error."""


class ImageObserver(Protocol):
    """The interface of an observer of all image and video requests."""

    def refused(self, live: InFlightImageRequest, error: ApiError) -> None:
        """Handle a request that was not admitted; no other method is called for it."""

    def on_work_unit(self, live: InFlightImageRequest, report: WorkUnitReport) -> None:
        """Handle a finished work unit; `live.phase` is still the stage of the one before."""

    def ended(self, live: InFlightImageRequest, error: BaseException | None) -> None:
        """Handle the end of a request; called once per request.

        Args:
            live: The request.
            error: The exception that ended it early (CancelledError: the client left), or None.
        """


class ImageQueue:
    """The counter of requests in the server and of the bytes of their files.

    The files are held until the last image of a request is complete.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Create an empty admission queue for image and video requests, with the bounds of the settings."""
        queued = settings.queued_requests
        self.places = QUEUED_REQUESTS if queued is None else max(1, queued)
        self.nbytes = settings.image_bytes
        self.draining = False
        self._inside: set[InFlightImageRequest] = set()
        self._retry = RetryAfter(time.monotonic)

    def admit(self, live: InFlightImageRequest) -> None:
        """Admit an image or video request to the server, or reject it with an error.

        Raises:
            ApiError: If its images or its step cache exceed the memory limit by themselves (400), there is no room now
                (429), or the server is shutting down (503).
        """
        if self.draining:
            raise shutting_down()
        if live.nbytes > self.nbytes:
            raise invalid(
                f"n: {live.images} images of this size may need {live.nbytes >> 20} MiB, but the limit for responses "
                f"is {self.nbytes >> 20} MiB (--max-image-memory): request fewer images at once",
                "n",
            )
        if live.nbytes + live.step_cache_bytes > self.nbytes:
            raise invalid(
                f"step_cache: it needs {live.step_cache_bytes >> 20} MiB between steps at this size, but the limit is "
                f"{self.nbytes >> 20} MiB (--max-image-memory): leave step_cache out, or request a smaller size",
                "step_cache",
            )
        if len(self._inside) >= self.places:
            raise self._retry.full("requests", "queue_full")
        if sum(each.nbytes + each.step_cache_bytes for each in (*self._inside, live)) > self.nbytes:
            raise self._retry.full("pictures", "queue_pictures")
        self._inside.add(live)

    def leave(self, live: InFlightImageRequest) -> None:
        """Remove an image or video request that has ended."""
        self._inside.discard(live)
        self._retry.left()


class ImageService:
    """The served pipelines with their queue and the observers of their requests."""

    def __init__(self, engine: DiffusionEngine, settings: ServerSettings) -> None:
        """Create a service without requests, which enforces the limits of the settings."""
        self.engine, self.queue, self.observers = engine, ImageQueue(settings), list[ImageObserver]()
        self.deadlines = Deadlines(settings.queue_seconds, settings.total_seconds)
        self.live: dict[str, InFlightImageRequest] = {}
        """Image and video requests in progress, by id."""
        self.held: dict[str, InFlightImageRequest] = {}
        """Requests in progress whose client waits for the response, by id."""

    async def run(
        self, live: InFlightImageRequest, order: DiffusionSubmission, take: Callable[[WorkUnitReport], None]
    ) -> None:
        """Admit and run a request within the time limits, for a client that waits.

        Args:
            live: The request.
            order: The submission to the diffusion engine.
            take: Called with each finished work unit.

        Raises:
            ApiError: If the request is not admitted, fails, or exceeds a time limit.
            SlowReader: If `take` raises it, because the client of a stream reads too slowly.
        """
        self.admit(live)
        self.held[live.id] = live
        try:
            with self.deadlines.enforced(lambda: not live.begun, partial(self.end, live)):
                await self.run_admitted(live, order, take)
        finally:
            del self.held[live.id]

    def admit(self, live: InFlightImageRequest) -> None:
        """Admit an image or video request, or report it as refused; `run_admitted` runs it afterwards.

        Raises:
            ApiError: If the queue rejects the request.
        """
        try:
            self.queue.admit(live)
        except ApiError as error:
            for observer in self.observers:
                observer.refused(live, error)
            raise
        self.live[live.id] = live

    async def run_admitted(
        self, live: InFlightImageRequest, order: DiffusionSubmission, take: Callable[[WorkUnitReport], None]
    ) -> None:
        """Run an admitted request, and pass each finished work unit to `take`. Cancelling drops the remaining units.

        Args:
            live: The request.
            order: The submission to the diffusion engine.
            take: Called with each finished work unit.

        Raises:
            ApiError: If the request fails, does not fit into memory, or was ended with `end`.
            SlowReader: If `take` raises it, because the client of a stream reads too slowly.
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

        def on_report(stride: WorkUnitReport | Exception) -> None:
            if done.done():
                return
            try:
                if isinstance(stride, Exception):
                    raise stride
                for observer in self.observers:
                    observer.on_work_unit(live, stride)
                live.phase = stride.stage
                take(stride)
            except Exception as error:  # raised by `take`, which gets no further report
                done.set_exception(error)
            else:
                if stride.number == stride.of:
                    done.set_result(None)

        def begun() -> None:
            live.begun = True

        live.fail = on_report
        leave = self.engine.submit(order, on_report, begun)
        try:
            await done
        finally:
            leave()

    def end(self, live: InFlightImageRequest, error: ApiError) -> None:
        """End an image or video request in progress with an error."""
        if live.fail is not None:
            live.fail(error)

    def end_all(self, error: ApiError) -> None:
        """End all image and video requests in progress with an error."""
        for live in list(self.live.values()):
            self.end(live, error)


def _failure(live: InFlightImageRequest, error: Exception) -> ApiError:
    """Return the error for a failed request, and log its cause.

    The client sees the exception's message only if the request was rejected before its first work unit.
    """
    if isinstance(error, ValueError) and live.phase == "queue":
        return invalid(str(error), "size", code="too_large")
    logger.error("request %s failed: %s", live.id, type(error).__name__, exc_info=error)
    return model_failed(out_of_memory=out_of_memory(error) is not None)
