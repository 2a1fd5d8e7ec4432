"""AsyncLLM: the engine for a server. Many callers await, one thread steps."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from functools import partial

from ridgeline.engine.events import Event
from ridgeline.engine.llm import Prompt, TextEngine, checked, encode_prompt
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Completion
from ridgeline.engine.setup import Loaded, load_engine

Mailbox = tuple[asyncio.AbstractEventLoop, asyncio.Queue[Event | Exception]]


class EngineDied(RuntimeError):
    """The engine is gone, and with it every request that was under way."""


class AsyncLLM:
    """Runs a loaded engine in a thread of its own, which alone touches it. Use `async with`, or call `close`."""

    def __init__(self, model: str | Loaded) -> None:
        """`model`: a checkpoint folder, a built-in name, or what load_engine gave. Raises ValueError for others."""
        if not isinstance(model, str | Loaded):
            raise ValueError(
                f"model is a {type(model).__name__}; give a folder, a built-in name, or what load_engine gave"
            )
        self.loaded = loaded = load_engine(model) if isinstance(model, str) else model
        self._engine, self._texts = loaded.engine, TextEngine(loaded)
        self._mailboxes: dict[int, Mailbox] = {}
        # What callers ask of the engine, done between steps. With a lock around each step instead, the thread that lets
        # go of it could take it again before a caller wakes up, many times over.
        self._inbox: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()  # nothing enters the inbox once it has closed
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ridgeline engine", daemon=True)
        self._thread.start()

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, root: bytes = b""
    ) -> AsyncGenerator[Event, None]:
        """Complete one prompt, event by event. Cancelling the consumer aborts the request. root: as Engine.add.

        Raises ValueError for what cannot run, EngineDied (a RuntimeError) if the engine has stopped.
        """
        ids = encode_prompt(self.loaded.tokenizer, prompt, self.loaded.engine.context)
        params = checked(params or self.loaded.defaults)
        queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        added: Future[int] = Future()
        self._ask(partial(self._add, added, ids, params, root, (asyncio.get_running_loop(), queue)))
        unfinished = params.n
        try:
            await asyncio.wrap_future(added)
            while unfinished:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise EngineDied(f"the engine stopped: {event}") from event
                unfinished -= event.finish is not None
                yield event
        finally:
            added.add_done_callback(self._leave)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Complete one prompt; as `stream`, all at once."""
        ids = encode_prompt(self.loaded.tokenizer, prompt, self.loaded.engine.context)
        params = checked(params or self.loaded.defaults)
        completion = Completion.empty(ids, params.n)
        async for event in self.stream(ids, params):
            completion.take([event])
        return completion

    def close(self) -> None:
        """Stop the thread after its present step. Requests under way get a RuntimeError."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def _ask(self, message: Callable[[], object]) -> None:
        with self._lock:
            if self._closing:
                raise EngineDied("the engine is closed")
            self._inbox.append(message)
        self._wake.set()

    def _leave(self, added: "Future[int]") -> None:
        """A consumer has gone, if its request was added at all; to abort one that has finished is no error."""
        if added.cancelled() or added.exception() is not None:
            return
        self._mailboxes.pop(added.result(), None)
        if not self._closing:
            self._inbox.append(partial(self._texts.abort, added.result()))
            self._wake.set()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        reason: Exception = RuntimeError("closed")
        try:
            while not self._closing:
                self._wake.wait()
                self._wake.clear()
                while self._step():
                    pass
        except Exception as error:  # a bug of ours: whoever waits must hear of it rather than wait for ever
            reason = error
            raise
        finally:
            with self._lock:
                self._closing = True
            while self._inbox:
                self._inbox.popleft()()
            for request in list(self._mailboxes):
                self._send(request, reason)

    def _step(self) -> bool:
        while self._inbox:
            self._inbox.popleft()()
        for event in self._texts.step():
            self._send(event.request, event)
        return self._engine.has_work and not self._closing

    def _add(self, added: "Future[int]", ids: list[int], params: SamplingParams, root: bytes, mailbox: Mailbox) -> None:
        if not added.set_running_or_notify_cancel():
            return  # whoever asked has gone
        if self._closing:
            added.set_exception(EngineDied("the engine is closed"))
            return
        try:
            request = self._texts.add(ids, params, root)
        except Exception as error:  # whoever asked for it hears of it; the others go on
            added.set_exception(error)
            return
        self._mailboxes[request] = mailbox
        added.set_result(request)

    def _send(self, request: int, message: Event | Exception) -> None:
        mailbox = self._mailboxes.get(request)
        if mailbox is None:
            return
        loop, queue = mailbox
        try:
            loop.call_soon_threadsafe(queue.put_nowait, message)
        except RuntimeError:  # its event loop is closed: nobody is left to tell
            self._mailboxes.pop(request, None)
            self._texts.abort(request)
