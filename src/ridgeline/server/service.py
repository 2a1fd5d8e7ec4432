"""Service: the one way from a route to the engine. Admission before it, observers beside it, always an end."""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from ridgeline.engine.async_llm import StepObserver, Take
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_messages import EngineInfo, StepReport
from ridgeline.server.deadlines import Deadlines
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest


class EngineClient(Protocol):
    """What completes prompts: an AsyncLLM, which says what these are, or several as one (replicas/fleet.py)."""

    observers: list[StepObserver]

    @property
    def texts(self) -> TextProcessor: ...

    @property
    def info(self) -> EngineInfo: ...

    @property
    def stats(self) -> Stats: ...

    @property
    def alive(self) -> bool: ...

    @property
    def restarts(self) -> int: ...

    def submit(
        self,
        spec: GenerationRequest,
        take: Take,
        *,
        added: Callable[[int], None] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Callable[[], None]: ...

    async def inspect(self, question: bytes) -> bytes: ...


class Observer(Protocol):
    """Who is told of every request: metrics, traces, the record."""

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """There is no room for it. Nothing else is told of it."""

    def arrived(self, live: InFlightRequest) -> None:
        """It was admitted and goes to the engine."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """The engine told of it; `live` already counts the event."""

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """It is over; told once. error: what ended it from outside (CancelledError: the client left)."""


class Admission(Protocol):
    """Who says whether there is room."""

    def admit(self, live: InFlightRequest) -> None:
        """Count a request in. Raises ApiError (429 or 503) where there is no room."""

    def leave(self, live: InFlightRequest) -> None:
        """Count it out."""


def failed_by_engine(error: BaseException | None) -> bool:
    """Whether a request ended because the engine could not go on; else it was given up, by its client or a limit."""
    return isinstance(error, RuntimeError)  # EngineDied, and what the engine says is its own fault


class Service:
    """A model that is served: engine, admission and observers.

    live: requests under way by their id; by_request: those that the engine has, by its number. step_observers: told of
    each step, on the event loop. queue_seconds: until a request's first step; total_seconds: until its end.
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
        self.live: dict[str, InFlightRequest] = {}
        self.by_request: dict[int, InFlightRequest] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        llm.observers.append(partial(self.on_loop, self.stepped))

    async def run(self, live: InFlightRequest, take: Callable[[Event], None]) -> None:
        """Have a request completed; `take` is told of each event as it comes, and ends the request by raising.
        Cancelling aborts it.

        Raises ApiError where there is no room, ValueError for what cannot run, EngineDied where the engine is gone.
        """
        self.bind()
        self._admit(live)
        self.live[live.id] = live
        ended: BaseException | None = None
        try:
            with self.deadlines.held(lambda: not (live.begun or live.tokens), partial(self.end, live)):
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
            live.fail = live.progress = None  # these callbacks keep the whole response
            for observer in self.observers:
                observer.ended(live, ended)

    async def _events(self, live: InFlightRequest, take: Callable[[Event], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(event: Event | Exception) -> None:
            if done.done():
                return
            try:
                if isinstance(event, Exception):
                    raise event
                self._count(live, event)
                take(event)
            except Exception as error:  # of whoever takes it, who has then taken the last
                done.set_exception(error)
            else:
                if len(live.finishes) == live.spec.params.n:
                    done.set_result(None)

        live.fail = told
        added, begun = partial(self.on_loop, self._added, live), partial(self.on_loop, self._begun, live)
        leave = self.llm.submit(live.spec, told, added=added, begun=begun)
        try:
            await done
        finally:
            leave()

    def end(self, live: InFlightRequest, error: ApiError) -> None:
        """Have a request under way end with an error, whatever the engine does."""
        if live.fail is not None:
            live.fail(error)

    def end_all(self, error: ApiError) -> None:
        """Have all that are under way end with an error."""
        for live in list(self.live.values()):
            self.end(live, error)

    def _added(self, live: InFlightRequest, request: int) -> None:
        if self.live.get(live.id) is live:  # else it is over already
            if live.request is not None:  # the engine that called it so has died, and another has it
                live.begun = False
                if self.by_request.get(live.request) is live:
                    del self.by_request[live.request]
            live.request, self.by_request[request] = request, live

    def _begun(self, live: InFlightRequest) -> None:
        live.begun = True

    def bind(self) -> asyncio.AbstractEventLoop:
        """The running event loop, which is now the one on which observers are told."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Do what the engine gives cause for. It may run in a thread of this process."""
        if self._loop is None or asyncio._get_running_loop() is self._loop:
            callback(*arguments)
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(callback, *arguments)

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """The engine has run a step."""
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
        if not live.tokens:  # further choices find the whole prompt
            live.cached = event.cached
        live.tokens += event.token is not None
        if event.finish is not None:
            live.finishes.append(event.finish)
        for observer in self.observers:
            observer.event(live, event)
