"""The engine for a server: many callers await requests while the engine steps in a thread or process of its own."""

import asyncio
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

from msgspec import structs
from typing_extensions import override

from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.engine.encoder_features import EncoderFeatures, EncoderInput
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.generation_request import DEFAULT_PARAMS, GenerationRequest
from ridgeline.engine.output_processor import with_text
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Completion
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.text_processor import Prompt, TextProcessor, checked
from ridgeline.engine.worker.engine_messages import (
    Abort,
    AddRequest,
    Died,
    EngineInfo,
    EngineReady,
    EngineSnapshot,
    FromEngine,
    GetSnapshot,
    Inspect,
    Inspected,
    PageChange,
    PeerChanged,
    Refused,
    RequestAdded,
    RequestsBegun,
    Stepped,
    StepReport,
    StopChoice,
    ToEngine,
    Transferred,
    WatchPages,
)
from ridgeline.engine.worker.engine_process import EngineProcess, EngineStart
from ridgeline.engine.worker.inspector import PendingInspections
from ridgeline.engine.worker.loop import EngineThread

EventCallback = Callable[[Event | Exception], None]
"""A callback that receives the events of a request as they come; after an exception it receives nothing.

It must not raise.
"""


StepObserver = Callable[[StepReport, Stats], None]
PageObserver = Callable[[Sequence[PageChange]], None]
TransferObserver = Callable[[Transferred | PeerChanged], None]


class EngineDied(RuntimeError):
    """The error that the engine is gone, and with it every request that had not ended."""


class EngineRestarting(EngineDied):
    """The error that the engine is gone and a new one is starting: the engine did not take a new request."""


@runtime_checkable
class EngineHost(Protocol):
    """The interface to an engine in a thread or process of its own: connect to it, send it messages, and close it.

    EngineThread and EngineProcess have it, and so does a thread that several models share.
    """

    texts: TextProcessor
    """The text processor of the engine's model."""
    info: EngineInfo
    """The description that the engine gives of itself: its limits, memory and device."""

    def connect(self, send: Callable[[FromEngine], None]) -> None:
        """Pass each message of the engine to the function `send` from now on."""

    def send(self, message: ToEngine) -> None:
        """Send the engine a message, which it handles before its next step."""

    def close(self) -> None:
        """End the engine after its current step, which sends Died."""


@dataclass(eq=False, slots=True)
class _Caller:
    """A caller who awaits a request."""

    ticket: int
    """The number that AsyncLLM gave the request."""
    spec: GenerationRequest
    """The request for a completion that the caller awaits."""
    take: EventCallback
    """The callback that receives the events of the request, on the caller's event loop."""
    loop: asyncio.AbstractEventLoop
    """The event loop of the caller."""
    unfinished: int
    """The number of choices of the request that have not ended."""
    request: int | None = None
    """The engine's id for the request; None until the engine has added it."""
    left: bool = False
    """Whether the caller has stopped waiting for the request."""
    added: Callable[[int], None] | None = None
    """The callback that receives the engine's id for the request."""
    begun: Callable[[], None] | None = None
    """The callback that runs just before the first step of the request."""


class AsyncLLM:
    """A model that serves many callers on event loops. Use `async with`, or call `close`."""

    def __init__(self, model: str | LoadedEngine | EngineHost) -> None:
        """Start serving a model.

        Args:
            model: A checkpoint folder, a built-in name, or a loaded engine, to run in a thread of this process; or the
                host of an engine that runs already.

        Raises:
            ValueError: If `model` is none of these, or cannot be loaded.
        """
        if isinstance(model, str):
            model = load_engine(model)
        elif not isinstance(model, LoadedEngine | EngineHost):
            raise ValueError(
                f"model is a {type(model).__name__}: give a folder, a built-in name, or the result of load_engine"
            )
        self.host: EngineHost = EngineThread(model) if isinstance(model, LoadedEngine) else model
        self.texts, self.info = self.host.texts, self.host.info
        self.stats = Stats()
        self.alive = True
        """Whether the engine accepts requests now."""
        self.restarts = 0
        """The number of times that the engine came back after it had died."""
        self.death_reason = ""
        """The reason why the engine died last; "" before."""
        self.ended: Future[str] = Future()
        """A future that completes, with the reason, when the engine is gone for good."""
        self.observers: list[StepObserver] = []
        """The callbacks that receive the report on each step.

        They run on the event loop if the engine is in a process, and in the engine's thread if it is in a thread.
        """
        self.page_observers: list[PageObserver] = []
        """The callbacks that receive the changed KV pages, while pages are watched; they run where `observers` do."""
        self.transfer_observers: list[TransferObserver] = []
        """The callbacks that receive transfers of KV pages from other engines; they run where `observers` do.

        They also receive changes of whether those engines are reachable.
        """
        self.peers: dict[str, PeerChanged] = {}
        """The latest state of each engine that computes prompts for this engine, by address."""
        self._callers: dict[int, _Caller] = {}  # by ticket
        self._by_request: dict[int, _Caller] = {}
        self._next_ticket = itertools.count(1)
        self._lookers: deque[Callable[[EngineSnapshot | None], None]] = deque()
        self._questions = PendingInspections()
        self._watched = False
        self.messages_received = 0
        """The number of messages that came from the engine."""
        self._lock = threading.Lock()  # guards against adding a caller when the engine is gone
        # used only by the thread that delivers the engine's messages
        self._transcript = self.texts.new_output_processor()
        self.host.connect(self._receive)

    @override
    def __repr__(self) -> str:
        info, state = self.info, "" if self.alive else ", closed" if self.ended.done() else ", restarting"
        held = f"KV cache: {info.held}" if info.held else "no KV cache"
        return f"AsyncLLM(context {info.context:,}, {held}, threads {info.threads}{state})"

    @classmethod
    async def start(
        cls,
        model: str,
        settings: EngineSettings | None = None,
        *,
        restarts: float = 1,
        progress: Progress | None = None,
        **options: Any,
    ) -> Self:
        """Load a model in a process of its own; the errors are those of `EngineProcess.start`.

        Args:
            model: A name as `open_source` takes it.
            settings: The settings of the engine.
            restarts: How many times a dead process is replaced.
            progress: Receives the bytes loaded and the bytes in total while weights load.
            options: Further fields of `EngineStart`.
        """
        start = EngineStart(model, settings or EngineSettings(), **options)
        return cls(await EngineProcess.start(start, restarts=restarts, progress=progress))

    @property
    def num_awaited(self) -> int:
        """The number of requests that callers await.

        While there are any, `messages_received` grows with each step, or the engine hangs.
        """
        return len(self._callers)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        encoder: EncoderInput = (),
        adapter: str = "",
    ) -> AsyncGenerator[Event, None]:
        """Complete one prompt and yield its events. Cancelling the consumer aborts the request.

        The errors are those of `submit`.

        Args:
            prompt: Text or token ids.
            params: Sampling parameters; by default those of the model's generation_config.json.
            encoder: The input of the model's encoder, as in GenerationRequest.
            adapter: Name of the LoRA adapter, "" for none.
        """
        return self._events(self._request(prompt, params, encoder, adapter))

    async def _events(self, spec: GenerationRequest) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        leave = self.submit(spec, queue.put_nowait)
        unfinished = spec.params.n
        try:
            while unfinished:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                unfinished -= event.finish is not None
                yield event
        finally:
            leave()

    def _request(
        self, prompt: Prompt, params: SamplingParams | None, encoder: EncoderInput, adapter: str
    ) -> GenerationRequest:
        ids = self.texts.encode(prompt, self.info.context)
        read = encoder if isinstance(encoder, EncoderFeatures) else tuple(encoder)
        return GenerationRequest(ids, checked(params or self.texts.defaults), encoder=read, adapter=adapter)

    def submit(
        self,
        spec: GenerationRequest,
        take: EventCallback,
        *,
        added: Callable[[int], None] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Send a request to the engine; a callback receives its events on the event loop that is running now.

        Args:
            spec: The request. If the model gives vectors, its sampling parameters are ignored.
            take: Receives the events of the request.
            added: Receives the engine's id for the request, in the place where observers run, and before they see its
                steps.
            begun: Called in the same place, just before the first step of the request runs.

        Returns:
            A function to call when the events are not needed any more, which aborts the request.

        Raises:
            ValueError: If the request cannot run, as far as that is known here.
            EngineDied: (a RuntimeError) If the engine has stopped.
            EngineRestarting: (an EngineDied) If a new engine is starting.
        """
        self.texts.check_request(spec)
        loop = asyncio.get_running_loop()
        ticket = next(self._next_ticket)
        caller = _Caller(ticket, spec, take, loop, spec.params.n, added=added, begun=begun)
        self._ask(caller)
        return partial(self._leave, caller)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        encoder: EncoderInput = (),
        adapter: str = "",
    ) -> Completion:
        """Complete one prompt and return all of its completions; the arguments and errors are those of `stream`."""
        spec = self._request(prompt, params, encoder, adapter)
        completion = Completion.empty(spec.prompt, spec.params.n)
        async for event in self._events(spec):
            completion.take([event])
        return completion

    def watch(self, on: bool) -> None:
        """Start or stop the messages from the engine that tell page observers which KV pages changed."""
        self._watched = on
        self.host.send(WatchPages(on))

    def look(self, on_snapshot: Callable[[EngineSnapshot | None], None], *, pages: bool = True) -> None:
        """Request a snapshot of what the engine holds.

        Args:
            on_snapshot: Receives the snapshot in the place where observers run, after the steps before it and before
                those after it; None if the engine is gone.
            pages: Whether the snapshot includes the KV pages.
        """
        with self._lock:
            alive = self.alive
            if alive:
                self._lookers.append(on_snapshot)
        if alive:
            self.host.send(GetSnapshot(pages))
        else:
            on_snapshot(None)

    async def inspect(self, question: bytes) -> bytes:
        """Return the answer of the engine's inspector to a question about the model; the next step waits for it.

        Raises:
            ValueError: If the question has no answer.
            RuntimeError: If the inspector fails.
            EngineDied: (a RuntimeError) If the engine is gone.
        """
        ticket = next(self._next_ticket)
        with self._lock:
            self._refuse_if_gone()
            answer = self._questions.ask(ticket)
        self.host.send(Inspect(ticket, question))
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """End the engine after its current step. Requests that have not ended receive an EngineDied."""
        self.host.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def _ask(self, caller: _Caller) -> None:
        with self._lock:
            self._refuse_if_gone()
            self._callers[caller.ticket] = caller
        spec = self.texts.for_engine(caller.spec)
        if self.info.vectors is not None:
            spec = structs.replace(spec, params=DEFAULT_PARAMS)
        self.host.send(AddRequest(caller.ticket, spec))

    def _refuse_if_gone(self) -> None:
        if not self.alive:
            if self.ended.done():
                raise EngineDied("the engine is closed")
            raise EngineRestarting("the engine is restarting")

    def _leave(self, caller: _Caller) -> None:
        """Abort the request of a caller who does not wait any more; do nothing if the request has ended.

        A request that has no id yet is aborted when it gets one.
        """
        caller.left = True
        if caller.ticket in self._callers and caller.request is not None:
            self._forget(caller.ticket, caller.request)
            self.host.send(Abort(caller.request))

    def _forget(self, ticket: int, request: int) -> None:
        self._callers.pop(ticket, None)
        self._by_request.pop(request, None)

    # -- the engine's messages, in the thread that delivers them ------------------------------------------------------

    def _receive(self, message: FromEngine) -> None:
        self.messages_received += 1
        if isinstance(message, Stepped):
            self._stepped(message)
        elif isinstance(message, RequestAdded):
            self._added(message)
        elif isinstance(message, RequestsBegun):
            self._begun(message)
        elif isinstance(message, Refused):
            self._refused(message)
        elif isinstance(message, Inspected):
            self._questions.resolve(message.ticket, message.answer)
        elif isinstance(message, EngineSnapshot):
            self._lookers.popleft()(message)
        elif isinstance(message, Died):
            self._died(message)
        elif isinstance(message, Transferred | PeerChanged):
            if isinstance(message, PeerChanged):
                self.peers[message.peer] = message
            for observer in self.transfer_observers:
                observer(message)
        else:
            assert isinstance(message, EngineReady)
            self.info, self.alive = message.info, True
            self.restarts += 1
            if self._watched:
                self.host.send(WatchPages(True))

    def _refused(self, refused: Refused) -> None:
        error = RuntimeError(refused.reason) if refused.fault else ValueError(refused.reason)
        caller = self._callers.pop(refused.ticket, None)
        if caller is None:
            self._questions.resolve(refused.ticket, error)
        else:
            self._deliver([(caller, error)])

    def _added(self, added: RequestAdded) -> None:
        caller = self._callers.get(added.ticket)
        if caller is None:
            return
        if self.info.vectors is None:
            spec = caller.spec
            begun = self.texts.decoder_prompt(spec.prompt)
            self._transcript.open(added.request, begun, spec.params, sections=spec.separate_reasoning)
        self._by_request[added.request] = caller
        caller.request = added.request  # from now on `_leave`, in another thread, aborts the request
        if caller.added is not None:
            caller.added(added.request)
        if caller.left:
            self._leave(caller)

    def _begun(self, begun: RequestsBegun) -> None:
        for request in begun.requests:
            caller = self._by_request.get(request)
            if caller is not None and caller.begun is not None:
                caller.begun()

    def _stepped(self, stepped: Stepped) -> None:
        self.stats = stepped.stats
        if stepped.report is not None:  # before its tokens, so that a caller with the last token finds the step counted
            for observer in self.observers:
                observer(stepped.report, stepped.stats)
        if stepped.pages:
            for watching in self.page_observers:
                watching(stepped.pages)
        if self.info.vectors is None:
            events, stops = self._transcript.take(stepped.events)
        else:
            events, stops = [with_text(event) for event in stepped.events], []
        for stop in stops:
            self.host.send(StopChoice(stop))
        deliveries: list[tuple[_Caller, Event | Exception]] = []
        for event in events:
            caller = self._by_request.get(event.request)
            if caller is None:
                continue
            deliveries.append((caller, event))
            caller.unfinished -= event.finish is not None
            if not caller.unfinished:
                self._forget(caller.ticket, event.request)
        self._deliver(deliveries)

    def _died(self, died: Died) -> None:
        with self._lock:
            self.alive, self.death_reason = False, died.reason
            callers, self._callers, self._by_request = list(self._callers.values()), {}, {}
            lookers, self._lookers = self._lookers, deque()
            self._transcript = self.texts.new_output_processor()
            self.stats = replace(self.stats, running=0, waiting=0, held_pages=0, cached_pages=0)
        for on_snapshot in lookers:
            on_snapshot(None)
        self._questions.end(EngineDied(f"the engine stopped: {died.reason}"))
        if died.final and not self.ended.done():
            self.ended.set_result(died.reason)
        self._deliver([(caller, EngineDied(f"the engine stopped: {died.reason}")) for caller in callers])

    def _deliver(self, deliveries: "list[tuple[_Caller, Event | Exception]]") -> None:
        """Deliver events to their callers: at once on this event loop, and as one call per step on any other."""
        here = asyncio._get_running_loop()
        elsewhere: defaultdict[asyncio.AbstractEventLoop, list[tuple[_Caller, Event | Exception]]] = defaultdict(list)
        for caller, event in deliveries:
            if caller.loop is here:
                caller.take(event)
            else:
                elsewhere[caller.loop].append((caller, event))
        for loop, part in elsewhere.items():
            try:
                loop.call_soon_threadsafe(_put, part)
            except RuntimeError:  # the event loop is closed: these callers are gone
                for caller, _ in part:
                    self._leave(caller)


def _put(deliveries: "list[tuple[_Caller, Event | Exception]]") -> None:
    for caller, event in deliveries:
        if not caller.left:
            caller.take(event)
