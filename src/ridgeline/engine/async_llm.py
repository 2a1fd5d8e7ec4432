"""AsyncLLM: the engine for a server. Many callers await, one thread steps."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from ridgeline.engine.events import Event
from ridgeline.engine.llm import Prompt, encode_prompt
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Completion
from ridgeline.engine.setup import Loaded


class AsyncLLM:
    """Runs a loaded engine in a thread of its own. Use `async with`, or call `close`."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._engine = loaded.engine
        self._queues: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Event | Exception]]] = {}
        self._aborts: deque[int] = deque()
        self._lock = threading.Lock()  # guards the engine between steps
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ridgeline engine", daemon=True)
        self._thread.start()

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Event]:
        """Complete one prompt, event by event. Cancelling the consumer aborts the request.

        Raises ValueError for what cannot run, RuntimeError if the engine has stopped.
        """
        ids = encode_prompt(self.loaded.tokenizer, prompt)
        params = params or self.loaded.defaults
        queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        request = await asyncio.to_thread(self._add, ids, params, asyncio.get_running_loop(), queue)
        unfinished = params.n
        try:
            while unfinished:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise RuntimeError(f"the engine stopped: {event}") from event
                unfinished -= event.finish is not None
                yield event
        finally:
            if unfinished:
                self._aborts.append(request)
                self._wake.set()
            self._queues.pop(request, None)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Complete one prompt; as `stream`, all at once."""
        ids = encode_prompt(self.loaded.tokenizer, prompt)
        params = params or self.loaded.defaults
        completion = Completion.empty(ids, params.n)
        async for event in self.stream(ids, params):
            completion.take([event])
        return completion

    def _add(
        self,
        ids: list[int],
        params: SamplingParams,
        loop: asyncio.AbstractEventLoop,
        queue: "asyncio.Queue[Event | Exception]",
    ) -> int:
        with self._lock:
            if self._closing:
                raise RuntimeError("the engine is closed")
            request = self._engine.add(ids, params)
            self._queues[request] = (loop, queue)
        self._wake.set()
        return request

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            try:
                while self._step():
                    pass
            except Exception as error:  # a bug of ours: whoever waits must hear of it rather than wait for ever
                self._closing = True
                for request in list(self._queues):
                    self._send(request, error)
                raise

    def _step(self) -> bool:
        with self._lock:
            while self._aborts:
                self._engine.abort(self._aborts.popleft())
            for event in self._engine.step():
                self._send(event.request, event)
            return self._engine.has_work and not self._closing

    def _send(self, request: int, message: Event | Exception) -> None:
        target = self._queues.get(request)
        if target is not None:
            loop, queue = target
            loop.call_soon_threadsafe(queue.put_nowait, message)

    def close(self) -> None:
        """Stop the thread after its present step. Requests under way get a RuntimeError."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        for request in list(self._queues):
            self._send(request, RuntimeError("closed"))

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)
