"""The engine in a process of its own: started, connected, and restarted when it dies.

A busy Python thread in the engine's process would make its torch calls several times slower, so the server has another
process.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec
from typing_extensions import override

from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import LoadedEngine
from ridgeline.engine.text_processor import TextProcessor, load_text_processor
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.worker.engine_messages import Died, EngineInfo, EngineReady, FromEngine, ToEngine
from ridgeline.engine.worker.process_handle import ChildProcess, ProcessHandle
from ridgeline.price.device import Device
from ridgeline.util.frames import MessageCodec
from ridgeline.util.host import check_threads

_LONGEST_PAUSE = 60.0  # seconds before the next attempt to start a process


class EngineStart(msgspec.Struct, frozen=True):
    """The first message to a new process, which describes the engine to load."""

    model: str
    """The name of the model, as in load_engine."""
    settings: EngineSettings
    """The settings of the engine."""
    dummy_weights: bool = False
    """Whether to use random weights instead of loading the checkpoint's."""
    threads: int | None = None
    """The number of threads that torch computes with; None for the default."""
    device: Device | None = None
    """The device for which step times are predicted."""
    inspector: str = ""
    """The name of the engine's inspector, `module:function`; "" for none."""
    maker: str = ""
    """The `module:function` that makes the engine instead of loading a model (a Maker); "" to load a model."""
    devices: int = 1
    """The number of devices of an engine that the function `maker` makes instead of loading a model."""
    replica: int = 0
    """The index of this engine among those behind one server; it determines its request ids (engine_messages.py)."""
    clock: int | None = None
    """The sender's time.perf_counter_ns, so that an engine on another machine reports times of the sender's clock.

    None on the same machine, which has one clock.
    """
    transfer: KVTransfer | None = None
    """The settings for sending KV pages of prompts to other engines, or receiving them; None for neither."""


async def load_text_processor_async(start: EngineStart) -> TextProcessor:
    """Load the text processor of an engine that runs in another process, in a thread of its own.

    The errors are those of load_text_processor.
    """
    return await asyncio.to_thread(
        lambda: load_text_processor(
            open_source(start.model),
            or_bytes=start.dummy_weights,
            chat_template=start.settings.chat_template,
            reasoning=start.settings.reasoning,
        )
    )


Maker = Callable[[EngineStart], LoadedEngine]
"""A function that makes an engine in some other way than by loading a model. Raises ValueError in one line."""


class LoadingProgress(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """The message that the engine is loading weights."""

    done: int
    """The bytes of weights loaded so far."""
    total: int
    """The bytes of weights to load."""


class NotLoaded(msgspec.Struct, tag="not loaded", array_like=True, frozen=True):
    """The message that the model cannot be served."""

    reason: str
    """The reason why the model cannot be served, in one line."""
    refused: bool
    """Whether the model is at fault, not a setting."""

    def error(self) -> ValueError:
        """Return the exception that reports why the model was not loaded."""
        return ModelRefused(self.reason) if self.refused else ValueError(self.reason)


FromProcess = FromEngine | LoadingProgress | NotLoaded


class EngineProcess:
    """The engine's process as its user sees it. Its messages arrive on the event loop that started it."""

    def __init__(
        self,
        start: EngineStart,
        texts: TextProcessor,
        restarts: float,
        progress: Progress | None,
        new_place: Callable[[], ProcessHandle] = ChildProcess,
    ) -> None:
        """Prepare a process without starting it; use `EngineProcess.start`, or `begin`.

        Args:
            start: The first message to the process.
            texts: The text processor of the model.
            restarts: How many times a dead process is replaced; math.inf for always, with longer and longer pauses if
                none can be started.
            progress: Receives the bytes loaded and the bytes in total while weights load.
            new_place: Makes a handle for the next process.
        """
        self._start, self._restarts, self._progress, self._new_place = start, restarts, progress, new_place
        self.texts = texts
        self.info: EngineInfo  # from the latest process that was ready
        self._send_event: Callable[[FromEngine], None] | None = None
        self._unheard: list[FromEngine] = []  # messages that came before `connect`
        self._loop = asyncio.get_running_loop()
        self._line: _EngineConnection | None = None
        self.handle: ProcessHandle | None = None
        """The handle of the engine process that runs now."""
        self._ready = self._closing = False
        self._again: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, start: EngineStart, *, restarts: float = 1, progress: Progress | None = None) -> Self:
        """Load a model in a new process.

        The errors are those of `load_engine`, and a RuntimeError if the process ends before it is ready.

        Args:
            start: The model and its options.
            restarts: How many times a dead process is replaced.
            progress: Receives the bytes loaded and the bytes in total while weights load.
        """
        if start.threads is not None:
            check_threads(start.threads)  # on Ray, replicas have the cores of other machines
        process = cls(start, await load_text_processor_async(start), restarts, progress)
        await process.begin()
        return process

    async def begin(self) -> None:
        """Start the first engine process and wait until it is ready.

        The errors are those of `start`; then no process runs.
        """
        try:
            await self._launch()
        except BaseException:
            self.close()
            raise

    def connect(self, send: Callable[[FromEngine], None]) -> None:
        """Pass the engine's messages to `send` from now on, and those that came before, too."""
        self._send_event = send
        for message in self._unheard:
            send(message)
        self._unheard.clear()

    def send(self, message: ToEngine) -> None:
        """Send the engine a message, which it handles before its next step; do nothing if the engine is gone."""
        if self._line is not None:
            self._line.send(message)

    def close(self) -> None:
        """End the engine process after its current step, or kill it if that takes long. Any thread may call this."""
        self._closing = True
        with suppress(RuntimeError):  # the event loop is closed, and the connection with it
            self._loop.call_soon_threadsafe(self._hang_up)
        if self.handle is not None:
            self.handle.end(at_once=not self._ready)  # a process that loads weights does not notice a closed connection

    def _hang_up(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._line is not None:
            self._line.close()

    async def _launch(self) -> None:
        """Start an engine process and wait until it is ready."""
        self._ready = False
        ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        connected: asyncio.Future[asyncio.Protocol] = self._loop.create_future()

        def line() -> _EngineConnection:
            return _EngineConnection(
                connected, lambda message: self._on_message(message, ready), lambda: self._lost(ready)
            )

        self.handle = self._new_place()
        await self.handle.begin(line, connected)
        found = connected.result()
        assert isinstance(found, _EngineConnection)
        self._line = found
        clock = time.perf_counter_ns() if self.handle.is_remote else None
        self._line.send(msgspec.structs.replace(self._start, clock=clock))
        self.info = await ready
        self._ready = True

    def _on_message(self, message: FromProcess, ready: "asyncio.Future[EngineInfo]") -> None:
        if isinstance(message, LoadingProgress):
            if self._progress is not None:
                self._progress(message.done, message.total)
        elif isinstance(message, NotLoaded):
            _fail(ready, message.error())
        elif isinstance(message, EngineReady):
            if not ready.done():
                ready.set_result(message.info)
        else:
            self._say(message)

    def _lost(self, ready: "asyncio.Future[EngineInfo]") -> None:
        """Handle the end of the connection: the process has ended, or will. Start another if restarts remain."""
        self._line = None
        if not ready.done():
            _fail(ready, RuntimeError(f"the engine's process ended while the model was loading: {self._epitaph()}"))
        elif ready.cancelled() or ready.exception() is not None:
            pass  # it never was ready, and the caller that waited has the error
        elif self._closing:
            self._say(Died("closed"))
        elif self._restarts == 0:
            self._say(Died(self._epitaph()))
        else:
            self._restarts -= 1
            self._say(Died(self._epitaph(), final=False))
            self._again = self._loop.create_task(self._start_again())

    async def _start_again(self) -> None:
        pause = 1.0
        while True:
            try:
                await self._launch()
            except Exception as error:  # after any error there is no engine
                self._say(Died(f"it could not be restarted: {error}", final=self._restarts == 0))
                if self._restarts == 0:
                    return
                self._restarts -= 1
                if self.handle is not None:
                    await asyncio.to_thread(self.handle.end, at_once=True)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._say(EngineReady(self.info))
                return

    def _say(self, message: FromEngine) -> None:
        if self._send_event is not None:
            self._send_event(message)
        else:
            self._unheard.append(message)

    def _epitaph(self) -> str:
        assert self.handle is not None
        return self.handle.exit_reason()


class _EngineConnection(asyncio.Protocol):
    """The connection to the engine's process, in whole messages."""

    def __init__(
        self,
        connected: "asyncio.Future[asyncio.Protocol]",
        on_message: Callable[[FromProcess], None],
        lost: Callable[[], None],
    ) -> None:
        self._connected, self._on_message, self._lost = connected, on_message, lost
        self._frames: MessageCodec[FromProcess] = MessageCodec(FromProcess)
        self._transport: asyncio.Transport

    @override
    def connection_made(self, transport: Any) -> None:
        if self._connected.done():  # the process has connected already; this is a stranger
            transport.abort()
            return
        self._transport = transport
        self._connected.set_result(self)

    @override
    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._on_message(message)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._connected.result() is self:
            self._lost()

    def send(self, message: object) -> None:
        self._transport.write(self._frames.encode(message))

    def close(self) -> None:
        self._transport.close()


def _fail(ready: "asyncio.Future[EngineInfo]", error: Exception) -> None:
    if not ready.done():
        ready.set_exception(error)
