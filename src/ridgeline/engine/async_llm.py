"""AsyncLLM: the engine for a server. Many callers await; the engine steps in a thread or a process of its own."""

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
from ridgeline.engine.worker.engine_process import EngineProcess
from ridgeline.engine.worker.inspector import PendingInspections
from ridgeline.engine.worker.loop import EngineThread

Take = Callable[[Event | Exception], None]
"""Told a request's events as they come; an exception is the last that it is told. It raises nothing itself."""


StepObserver = Callable[[StepReport, Stats], None]
PageObserver = Callable[[Sequence[PageChange]], None]
TransferObserver = Callable[[Transferred | PeerChanged], None]


class EngineDied(RuntimeError):
    """The engine is gone, and with it every request that was under way."""


class EngineRestarting(EngineDied):
    """The engine is gone and another is being started: a request that is new was not taken."""


@runtime_checkable
class EngineHost(Protocol):
    """Where an engine runs: EngineThread, EngineProcess, or a thread that it shares with other models. connect: `tell`
    takes what the engine says. send: have it do something before its next step. close: end it after its present step,
    which it says.
    """

    texts: TextProcessor
    info: EngineInfo

    def connect(self, tell: Callable[[FromEngine], None]) -> None: ...
    def send(self, message: ToEngine) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class _Caller:
    """Somebody who awaits a request. ticket: our number for it; request: the engine's. take: told its events, on
    `loop`. unfinished: choices that go on. left: does not wait any more.
    """

    ticket: int
    spec: GenerationRequest
    take: Take
    loop: asyncio.AbstractEventLoop
    unfinished: int
    request: int | None = None
    left: bool = False
    added: Callable[[int], None] | None = None
    begun: Callable[[], None] | None = None


class AsyncLLM:
    """A model for many callers. Use `async with`, or call `close`."""

    def __init__(self, model: str | LoadedEngine | EngineHost) -> None:
        """`model`: a checkpoint folder, a built-in name, or what load_engine gave, for an engine in a thread of this
        process; or where an engine runs already. Raises ValueError for others.
        """
        if isinstance(model, str):
            model = load_engine(model)
        elif not isinstance(model, LoadedEngine | EngineHost):
            raise ValueError(
                f"model is a {type(model).__name__}; give a folder, a built-in name, or what load_engine gave"
            )
        self.host: EngineHost = EngineThread(model) if isinstance(model, LoadedEngine) else model
        self.texts, self.info = self.host.texts, self.host.info
        self.stats = Stats()
        self.alive = True
        """Whether requests are taken now."""
        self.restarts = 0
        """Times the engine came back after it had died."""
        self.why = ""
        """Why it died, the last time that it did."""
        self.ended: Future[str] = Future()
        """Done, with the reason, when the engine is gone for good."""
        self.observers: list[StepObserver] = []
        """Told of each step: on the event loop of a process's engine, in the thread of a thread's."""
        self.page_observers: list[PageObserver] = []
        """Told there too which KV pages changed, while they are watched."""
        self.transfer_observers: list[TransferObserver] = []
        """Told there of prompts that were asked of other engines, and of whether those may be asked."""
        self.peers: dict[str, PeerChanged] = {}
        """What was heard last of each of those engines, by its address."""
        self._callers: dict[int, _Caller] = {}  # by ticket
        self._by_request: dict[int, _Caller] = {}
        self._next_ticket = itertools.count(1)
        self._lookers: deque[Callable[[EngineSnapshot | None], None]] = deque()
        self._questions = PendingInspections()
        self._watched = False
        self.heard = 0
        """Messages that came from the engine."""
        self._lock = threading.Lock()  # nobody becomes a caller of an engine that is gone
        self._transcript = self.texts.new_output_processor()  # touched by whoever brings the engine's messages alone
        self.host.connect(self._receive)

    @override
    def __repr__(self) -> str:
        info, state = self.info, "" if self.alive else ", closed" if self.ended.done() else ", starting again"
        held = f"KV cache: {info.held}" if info.held else "no KV cache"
        return f"AsyncLLM(context {info.context:,}, {held}, threads {info.threads}{state})"

    @classmethod
    async def start(cls, model: str, settings: EngineSettings | None = None, **options: Any) -> Self:
        """The same with the engine in a process of its own; arguments and errors are those of EngineProcess.start."""
        return cls(await EngineProcess.start(model, settings, **options))

    @property
    def awaited(self) -> int:
        """Requests that somebody waits for. While there are any, `heard` moves with each step, or the engine hangs."""
        return len(self._callers)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        encoder: EncoderInput = (),
        adapter: str = "",
    ) -> AsyncGenerator[Event, None]:
        """Complete one prompt, event by event. Cancelling the consumer aborts the request. encoder, adapter: as
        GenerationRequest. Errors are those of `submit`.
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
        take: Take,
        *,
        added: Callable[[int], None] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Have one prompt completed and `take` told of it, on the event loop that runs now. Returns what to call when
        nobody waits for it any more, which aborts it.

        spec: of a model that gives vectors its sampling parameters are not read. added: told the engine's number for
        the request, wherever observers are told of steps, and before they are. begun: called there just before the
        first step of the request runs. Raises ValueError for what cannot run, as far as that is known here, EngineDied
        (a RuntimeError) if the engine has stopped, EngineRestarting (one of those) while another is being started.
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
        """Complete one prompt; as `stream`, all at once."""
        spec = self._request(prompt, params, encoder, adapter)
        completion = Completion.empty(spec.prompt, spec.params.n)
        async for event in self._events(spec):
            completion.take([event])
        return completion

    def watch(self, on: bool) -> None:
        """Have page observers told of the pages that change, or no longer."""
        self._watched = on
        self.host.send(WatchPages(on))

    def look(self, told: Callable[[EngineSnapshot | None], None], *, pages: bool = True) -> None:
        """Have `told` told what the engine holds, where observers are told of steps, after the steps before it and
        before those after it; None if the engine is gone. pages: as of Look.
        """
        with self._lock:
            alive = self.alive
            if alive:
                self._lookers.append(told)
        if alive:
            self.host.send(GetSnapshot(pages))
        else:
            told(None)

    async def inspect(self, question: bytes) -> bytes:
        """What the engine's inspector finds before the next step, which waits for it. Raises ValueError for a question
        that has no answer, RuntimeError for a fault of the inspector's own, EngineDied (one of those).
        """
        ticket = next(self._next_ticket)
        with self._lock:
            self._refuse_if_gone()
            answer = self._questions.ask(ticket)
        self.host.send(Inspect(ticket, question))
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """End the engine after its present step. Requests under way get an EngineDied."""
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
            raise EngineRestarting("the engine is being started again")

    def _leave(self, caller: _Caller) -> None:
        """A caller has gone; to abort a request that has finished is no error. One that has no number yet is aborted
        when it gets it.
        """
        caller.left = True
        if caller.ticket in self._callers and caller.request is not None:
            self._forget(caller.ticket, caller.request)
            self.host.send(Abort(caller.request))

    def _forget(self, ticket: int, request: int) -> None:
        self._callers.pop(ticket, None)
        self._by_request.pop(request, None)

    # -- what the engine says, wherever that is heard ------------------------------------------------------------------

    def _receive(self, message: FromEngine) -> None:
        self.heard += 1
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
            for told in self.transfer_observers:
                told(message)
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
            self._tell([(caller, error)])

    def _added(self, added: RequestAdded) -> None:
        caller = self._callers.get(added.ticket)
        if caller is None:
            return
        if self.info.vectors is None:
            spec = caller.spec
            begun = self.texts.decoder_prompt(spec.prompt)
            self._transcript.open(added.request, begun, spec.params, sections=spec.separate_reasoning)
        self._by_request[added.request] = caller
        caller.request = added.request  # who leaves from now on, in another thread, aborts it
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
        if stepped.report is not None:  # before its tokens: who has the last one finds the step counted
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
        told: list[tuple[_Caller, Event | Exception]] = []
        for event in events:
            caller = self._by_request.get(event.request)
            if caller is None:
                continue
            told.append((caller, event))
            caller.unfinished -= event.finish is not None
            if not caller.unfinished:
                self._forget(caller.ticket, event.request)
        self._tell(told)

    def _died(self, died: Died) -> None:
        with self._lock:
            self.alive, self.why = False, died.reason
            callers, self._callers, self._by_request = list(self._callers.values()), {}, {}
            lookers, self._lookers = self._lookers, deque()
            self._transcript = self.texts.new_output_processor()
            self.stats = replace(self.stats, running=0, waiting=0, held_pages=0, cached_pages=0)
        for told in lookers:
            told(None)
        self._questions.end(EngineDied(f"the engine stopped: {died.reason}"))
        if died.final and not self.ended.done():
            self.ended.set_result(died.reason)
        self._tell([(caller, EngineDied(f"the engine stopped: {died.reason}")) for caller in callers])

    def _tell(self, told: "list[tuple[_Caller, Event | Exception]]") -> None:
        """Hand over what the engine said; once a step for each event loop, if that is another thread's."""
        here = asyncio._get_running_loop()
        elsewhere: defaultdict[asyncio.AbstractEventLoop, list[tuple[_Caller, Event | Exception]]] = defaultdict(list)
        for caller, event in told:
            if caller.loop is here:
                caller.take(event)
            else:
                elsewhere[caller.loop].append((caller, event))
        for loop, part in elsewhere.items():
            try:
                loop.call_soon_threadsafe(_put, part)
            except RuntimeError:  # the event loop is closed: nobody is left to tell
                for caller, _ in part:
                    self._leave(caller)


def _put(told: "list[tuple[_Caller, Event | Exception]]") -> None:
    for caller, event in told:
        if not caller.left:
            caller.take(event)
