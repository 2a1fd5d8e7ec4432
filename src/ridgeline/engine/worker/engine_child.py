"""The engine's own process, `python -m ridgeline.engine.worker.engine_child SOCKET`, which engine_process.py starts."""

import gc
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch

from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.engine.engine import WALL_CLOCK, EngineLost
from ridgeline.engine.setup import LoadedEngine, load_with_threads
from ridgeline.engine.worker.engine_messages import EngineReady, FromEngine, ToEngine, first_of
from ridgeline.engine.worker.engine_process import EngineStart, LoadingProgress, Maker, NotLoaded
from ridgeline.engine.worker.inspector import function_named, inspection
from ridgeline.engine.worker.loop import EngineLoop
from ridgeline.util.frames import MessageCodec
from ridgeline.util.host import keep_freed_memory, out_of_memory

_RECEIVED = 1 << 16


class ChildConnection:
    """The engine's end of the connection to the server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._orders: MessageCodec[ToEngine] = MessageCodec(ToEngine)
        self._woken, self._waking = socket.socketpair()
        self._woken.setblocking(False)
        self._poller = select.poll()
        for end in (connection, self._woken):
            self._poller.register(end, select.POLLIN)

    def send(self, message: FromEngine | LoadingProgress | NotLoaded) -> None:
        """Send a message to the server.

        Raises:
            BrokenPipeError: If the server is gone.
        """
        self._connection.sendall(self._orders.encode(message))

    def first(self) -> EngineStart:
        """Return the first message, which describes what to load.

        Raises:
            EOFError: If the connection ends before.
        """
        frames: MessageCodec[EngineStart] = MessageCodec(EngineStart)
        while data := self._connection.recv(_RECEIVED):
            for start in frames.feed(data):
                return start
        raise EOFError

    def wake(self) -> None:
        """Make an `inbox` call that waits return, from any thread."""
        with suppress(OSError):  # the engine has ended
            self._waking.send(b"\0", socket.MSG_DONTWAIT)

    def inbox(self, wait: bool) -> Sequence[ToEngine] | None:
        """Return the messages that have arrived; None if the server has closed the connection (loop.Inbox).

        Args:
            wait: Whether to wait until there is something.
        """
        messages: list[ToEngine] = []
        if wait:
            self._poller.poll()
            with suppress(BlockingIOError):  # then the connection woke it, not `wake`
                self._woken.recv(_RECEIVED)
        while True:
            try:
                data = self._connection.recv(_RECEIVED, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            if not data:
                return None
            messages += self._orders.feed(data)


def main() -> None:
    """Connect to the server and run an engine for it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        try:
            run(connection)
        except EngineLost as error:
            print(f"ridgeline: {error}", file=sys.stderr)
            sys.exit(1)


def run(connection: socket.socket) -> None:
    """Load what the first message describes and run the engine until the connection ends.

    Raises:
        EngineLost: If the engine can run no further step.
    """
    keep_freed_memory()
    # these are for the server, which ends this process by closing the connection
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    child = ChildConnection(connection)
    try:
        loop = _loaded(child, child.first())
        if loop is not None:
            loop.run(child.inbox)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the server is gone


def _loaded(child: ChildConnection, start: EngineStart) -> EngineLoop | None:
    """Load the engine and report that it is ready; if that fails, report the reason and return None."""
    behind = 0 if start.clock is None else start.clock - WALL_CLOCK()
    try:
        loaded, threads = _load(child, start)
        torch.set_num_threads(threads)
        device = None if start.device is None else loaded.with_interconnect(start.device)
        inspect = inspection(start.inspector, loaded, device)
        loop = EngineLoop(loaded.engine, child.send, loaded.price, device, inspect)
        if start.transfer is not None:
            loop.transfer(start.transfer, loaded, child.wake)
    except ValueError as error:
        child.send(NotLoaded(str(error), isinstance(error, ModelRefused)))
        return None
    except Exception as error:
        reason = out_of_memory(error)
        if reason is None:
            raise
        child.send(NotLoaded(reason, refused=False))
        return None
    if behind:
        loaded.engine.clock = lambda: WALL_CLOCK() + behind
    loaded.engine.set_next_id(first_of(start.replica))
    gc.freeze()  # the objects so far stay for good, so the collector need not scan them again
    child.send(EngineReady(loaded.info(device)))
    return loop


def _load(child: ChildConnection, start: EngineStart) -> tuple[LoadedEngine, int]:
    """Return the engine, and the number of threads that torch should compute with."""
    reported = 0

    def progress(done: int, total: int) -> None:
        nonlocal reported
        if done == total or done - reported > total // 100:
            reported = done
            child.send(LoadingProgress(done, total))

    if start.maker:
        maker: Maker = function_named(start.maker)
        return maker(start), 1
    return load_with_threads(
        start.model, start.settings, dummy_weights=start.dummy_weights, threads=start.threads, progress=progress
    )


if __name__ == "__main__":
    main()
