"""An engine in a process of its own: started, connected over a Unix socket, and started again when it dies.

A busy Python thread in the engine's process would slow its torch calls several times, so the server's are elsewhere.
The socket has mode 0600 in a folder of mode 0700 and takes one connection; then both are gone from the disk.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from ridgeline.checkpoint.fill import Progress
from ridgeline.checkpoint.source import open_source
from ridgeline.engine.setup import EngineSettings, Loaded
from ridgeline.engine.texts import Texts, load_texts
from ridgeline.engine.worker.messages import Died, EngineInfo, FromEngine, Ready, ToEngine
from ridgeline.frames import Frames
from ridgeline.host import check_threads
from ridgeline.models.fields import ModelRefused
from ridgeline.roofline.device import Device

_LAST_WORDS = 5.0  # seconds that an engine has to end by itself before it is killed


class Start(msgspec.Struct, frozen=True):
    """The first message to a new process: what to load. device: what steps are predicted for. inspector: the name of
    one (inspector.py), "" for none. maker: the name of a Maker, whose engine is run in place of one that is loaded;
    devices: that it is to be for."""

    model: str
    settings: EngineSettings
    dummy_weights: bool = False
    threads: int | None = None
    device: Device | None = None
    inspector: str = ""
    maker: str = ""
    devices: int = 1


Maker = Callable[[Start], Loaded]
"""Makes the engine of a process otherwise than by loading a model. Raises ValueError in one line."""


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """Weights are being read: bytes done, bytes in all."""

    done: int
    total: int


class NotLoaded(msgspec.Struct, tag="not loaded", array_like=True, frozen=True):
    """The model cannot be served; why, in one line. refused: the model is at fault, not who asks for it."""

    reason: str
    refused: bool


FromProcess = FromEngine | Loading | NotLoaded


class EngineProcess:
    """The engine's process as its user sees it. What it says is said on the event loop that started it."""

    def __init__(self, start: Start, texts: Texts, restarts: int, progress: Progress | None) -> None:
        """Use `EngineProcess.start`."""
        self._start, self._restarts, self._progress = start, restarts, progress
        self.texts = texts
        self.info: EngineInfo  # of the process that was ready last
        self._tell: Callable[[FromEngine], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._line: _Line | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ready = self._closing = False
        self._again: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        model: str,
        settings: EngineSettings | None = None,
        *,
        dummy_weights: bool = False,
        threads: int | None = None,
        device: Device | None = None,
        restarts: int = 1,
        progress: Progress | None = None,
        inspector: str = "",
        maker: str = "",
        devices: int = 1,
    ) -> Self:
        """Load a model in a new process; as `load_engine`, errors too. threads: as `LLM`. device: what steps are
        predicted for. restarts: how many times a process that has died is followed by another. The rest as Start."""
        if threads is not None:
            check_threads(threads)
        settings = settings or EngineSettings()
        texts = await asyncio.to_thread(
            lambda: load_texts(
                open_source(model),
                or_bytes=dummy_weights,
                chat_template=settings.chat_template,
                reasoning=settings.reasoning,
            )
        )
        start = Start(model, settings, dummy_weights, threads, device, inspector, maker, devices)
        process = cls(start, texts, restarts, progress)
        try:
            await process._launch()
        except BaseException:
            process.close()
            raise
        return process

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._child is not None
        return self._child.pid

    def connect(self, tell: Callable[[FromEngine], None]) -> None:
        """`tell` takes what the engine says from now on."""
        self._tell = tell

    def send(self, message: ToEngine) -> None:
        """Have the engine do something, before its next step. To one that is gone nothing is sent."""
        if self._line is not None:
            self._line.send(message)

    def close(self) -> None:
        """End the process, after its present step if that does not take long. May be called from any thread."""
        self._closing = True
        with suppress(RuntimeError):  # the event loop is closed, and the connection with it
            self._loop.call_soon_threadsafe(self._hang_up)
        if self._child is None:
            return
        if not self._ready:  # it reads weights and would not listen
            self._child.kill()
        _end(self._child)

    def _hang_up(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._line is not None:
            self._line.close()

    async def _launch(self) -> None:
        """Start a process and wait until it is ready."""
        self._ready = False
        ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        connected: asyncio.Future[_Line] = self._loop.create_future()

        def line() -> _Line:
            return _Line(connected, lambda message: self._hear(message, ready), lambda: self._lost(ready))

        with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:  # of mode 0700
            path = Path(folder) / "engine"
            server = await self._loop.create_unix_server(line, path)
            path.chmod(0o600)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "ridgeline.engine.worker.child", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            try:
                self._line = await self._unless_dead(connected)
            finally:
                server.close()
        self._line.send(self._start)
        self.info = await ready
        self._ready = True

    async def _unless_dead(self, connected: "asyncio.Future[_Line]") -> "_Line":
        assert self._child is not None
        while not connected.done():
            if self._child.poll() is not None:
                raise RuntimeError(f"the engine's process ended as it began, with exit code {self._child.returncode}")
            await asyncio.wait([connected], timeout=0.1)
        return connected.result()

    def _hear(self, message: FromProcess, ready: "asyncio.Future[EngineInfo]") -> None:
        if isinstance(message, Loading):
            if self._progress is not None:
                self._progress(message.done, message.total)
        elif isinstance(message, NotLoaded):
            _fail(ready, ModelRefused(message.reason) if message.refused else ValueError(message.reason))
        elif isinstance(message, Ready):
            if not ready.done():
                ready.set_result(message.info)
        elif self._tell is not None:
            self._tell(message)

    def _lost(self, ready: "asyncio.Future[EngineInfo]") -> None:
        """The connection has ended, and so has the process, or will."""
        self._line = None
        if not ready.done():
            _fail(ready, RuntimeError(f"the engine's process ended while it loaded: {self._epitaph()}"))
        elif self._closing:
            self._say(Died("closed"))
        elif self._restarts == 0:
            self._say(Died(self._epitaph()))
        else:
            self._restarts -= 1
            self._say(Died(self._epitaph(), final=False))
            self._again = self._loop.create_task(self._start_again())

    async def _start_again(self) -> None:
        try:
            await self._launch()
        except Exception as error:  # whatever it is, there is no engine
            self._say(Died(f"it could not be started again: {error}"))
        else:
            self._say(Ready(self.info))

    def _say(self, message: FromEngine) -> None:
        if self._tell is not None:
            self._tell(message)

    def _epitaph(self) -> str:
        """How the process ended, which is awaited or brought about: nobody talks to it any more."""
        assert self._child is not None
        code = _end(self._child)
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"


class _Line(asyncio.Protocol):
    """The connection to the process, in whole messages."""

    def __init__(
        self, connected: "asyncio.Future[_Line]", hear: Callable[[FromProcess], None], lost: Callable[[], None]
    ) -> None:
        self._connected, self._hear, self._lost = connected, hear, lost
        self._frames: Frames[FromProcess] = Frames(FromProcess)
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        if self._connected.done():  # the process has connected; this is somebody else
            transport.abort()
            return
        self._transport = transport
        self._connected.set_result(self)

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._hear(message)

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


def _end(child: "subprocess.Popen[bytes]") -> int:
    """Its exit code; one that does not end by itself is killed."""
    try:
        return child.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
