"""The service between the routes and the engine: it admits requests, informs observers, and ensures that each ends."""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from ridgeline.engine.async_llm import EventCallback, StepObserver
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_messages import EngineInfo, StepReport
from ridgeline.server.deadlines import Deadlines
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest


class EngineClient(Protocol):
    """The interface of an engine that completes prompts: an `AsyncLLM`, or several replicas as one (`EngineFleet`).

    Its members are documented in `AsyncLLM`.
    """

    observers: list[StepObserver]

    @property
    def texts(self) -> TextProcessor:
        """The tokenizer and the chat templates of the model."""

    @property
    def info(self) -> EngineInfo:
        """The description of the engine."""

    @property
    def stats(self) -> Stats:
        """The statistics of the engine."""

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests."""

    @property
    def restarts(self) -> int:
        """The number of times the engine has come back after its process died."""

    def submit(
        self,
        spec: GenerationRequest,
        take: EventCallback,
        *,
        added: Callable[[int], None] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Submit a request, pass its events to `take`, and return a function that aborts it."""

    async def inspect(self, question: bytes) -> bytes:
        """Return the answer of the engine's inspector to a question about the model."""


class Observer(Protocol):
    """The interface of an observer of all requests: metrics, traces and the traffic recorder."""

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Handle a request that was not admitted; no other method is called for it."""

    def arrived(self, live: InFlightRequest) -> None:
        """Handle a request that was admitted and goes to the engine next."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Handle an engine event of a request; `live` already counts the event."""

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Handle the end of a request; called once per request.

        Args:
            live: The request.
            error: The exception that ended it early (CancelledError: the client left), or None.
        """


class Admission(Protocol):
    """The interface of an admission policy, which decides whether a request may enter the server."""

    def admit(self, live: InFlightRequest) -> None:
        """Admit a request to the server, or reject it with an error.

        Raises:
            ApiError: If there is no room for it (429), or the server is shutting down (503).
        """

    def leave(self, live: InFlightRequest) -> None:
        """Remove a request that has ended, so that another may be admitted."""


def failed_by_engine(error: BaseException | None) -> bool:
    """Return whether a request ended because the engine failed, rather than by its client or a time limit."""
    return isinstance(error, RuntimeError)  # EngineDied, and internal errors of the engine


class Service:
    """A served model: its engine, its admission policy and the observers of its requests.

    Args:
        llm: The engine that completes prompts.
        admission: The policy that admits requests.
        observers: Observers of every request.
        queue_seconds: The most seconds until a request's first step.
        total_seconds: The most seconds until a request's end.
    """

    def __init__(
        self,
        llm: EngineClient,
        admission: Admission,
        observers: Iterable[Observer] = (),
        *,
        queue_seconds: float = math.inf,
        total_seconds: float = math.inf,
    ) -> None:
        self.llm, self.admission, self.observers = llm, admission, list(observers)
        self.deadlines = Deadlines(queue_seconds, total_seconds)
        self.step_observers: list[StepObserver] = []
        """Callbacks for each engine step, called on the event loop."""
        self.live: dict[str, InFlightRequest] = {}
        """Requests in progress, by id."""
        self.by_request: dict[int, InFlightRequest] = {}
        """Requests that the engine has accepted, by the engine's number."""
        self._loop: asyncio.AbstractEventLoop | None = None
        llm.observers.append(partial(self.on_loop, self.stepped))

    async def run(self, live: InFlightRequest, take: Callable[[Event], None]) -> None:
        """Have the engine complete a request and pass each event to `take`, which may end the request by raising.

        Cancelling this coroutine aborts the request in the engine.

        Args:
            live: The request, which is not admitted yet.
            take: Called with each event as it arrives.

        Raises:
            ApiError: If the request is not admitted, exceeds a time limit, or is ended with `end`.
            ValueError: If the engine cannot run the request.
            EngineDied: If the engine is gone.
        """
        self.bind()
        self._admit(live)
        self.live[live.id] = live
        ended: BaseException | None = None
        try:
            with self.deadlines.enforced(lambda: not (live.begun or live.tokens), partial(self.end, live)):
                for observer in self.observers:
                    observer.arrived(live)
                await self._events(live, take)
        except BaseException as error:
            ended = error
            raise
        finally:
            del self.live[live.id]
            if live.request is not None and self.by_request.get(live.request) is live:
                del self.by_request[live.request]
            self.admission.leave(live)
            live.fail = live.progress = None  # these callbacks hold references to the whole response
            for observer in self.observers:
                observer.ended(live, ended)

    async def _events(self, live: InFlightRequest, take: Callable[[Event], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_event(event: Event | Exception) -> None:
            if done.done():
                return
            try:
                if isinstance(event, Exception):
                    raise event
                self._count(live, event)
                take(event)
            except Exception as error:  # raised by `take`, which gets no further event
                done.set_exception(error)
            else:
                if len(live.finishes) == live.spec.params.n:
                    done.set_result(None)

        live.fail = on_event
        added, begun = partial(self.on_loop, self._added, live), partial(self.on_loop, self._begun, live)
        leave = self.llm.submit(live.spec, on_event, added=added, begun=begun)
        try:
            await done
        finally:
            leave()

    def end(self, live: InFlightRequest, error: ApiError) -> None:
        """End a request in progress with an error, whatever the engine does."""
        if live.fail is not None:
            live.fail(error)

    def end_all(self, error: ApiError) -> None:
        """End all requests in progress with an error."""
        for live in list(self.live.values()):
            self.end(live, error)

    def _added(self, live: InFlightRequest, request: int) -> None:
        if self.live.get(live.id) is live:  # otherwise it has ended already
            if live.request is not None:  # that engine has died, and another runs the request
                live.begun = False
                if self.by_request.get(live.request) is live:
                    del self.by_request[live.request]
            live.request, self.by_request[request] = request, live

    def _begun(self, live: InFlightRequest) -> None:
        live.begun = True

    def bind(self) -> asyncio.AbstractEventLoop:
        """Store and return the running event loop, on which observers are called from now on."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call a function on the service's event loop, because the engine may run in another thread of this process."""
        if self._loop is None or asyncio._get_running_loop() is self._loop:
            callback(*arguments)
        else:
            with suppress(RuntimeError):  # the loop is closed, so no observer is left
                self._loop.call_soon_threadsafe(callback, *arguments)

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Handle the report of an engine step: update the progress of prefilled prompts and call the step observers."""
        if not report.decodes_only:
            for request, _, start, count in report.items:
                live = self.by_request.get(request) if count > 1 else None
                if live is not None and live.progress is not None:
                    live.progress(start, start + count)
        for observer in self.step_observers:
            observer(report, stats)

    def _admit(self, live: InFlightRequest) -> None:
        try:
            self.admission.admit(live)
        except ApiError as error:
            for observer in self.observers:
                observer.refused(live, error)
            raise

    def _count(self, live: InFlightRequest, event: Event) -> None:
        if not live.tokens:  # further choices find the whole prompt in the cache
            live.cached = event.cached
        live.tokens += event.token is not None
        if event.finish is not None:
            live.finishes.append(event.finish)
        for observer in self.observers:
            observer.event(live, event)
