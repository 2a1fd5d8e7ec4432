"""The consumer's connection to one producer: a thread that connects, reconnects, measures the connection, and reads."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from ridgeline.engine.events import describe_error
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.transfer.identity import Identity
from ridgeline.engine.transfer.threads import ConnectionThreads
from ridgeline.engine.transfer.wire import (
    PATIENCE,
    AuthError,
    BandwidthProbe,
    Cancel,
    Declined,
    FromProducer,
    Hello,
    PaddingFrame,
    PagesFrame,
    PeerTimeout,
    Prefill,
    SendQueue,
    Welcome,
    Wire,
    connect,
    introduce,
    memory,
    shutdown_and_close,
)
from ridgeline.price.interconnect import Curve

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""The message sizes to measure a connection with, in bytes: from a page of a small model to a prompt of a large one."""
ROUNDS = 5

_SLOW = 0.5  # seconds; larger sizes are not measured after a slower one
_PAUSES = (0.5, 1.0, 2.0, 5.0)  # seconds before the next attempt to connect
_STRANGE = 30.0  # seconds before the next attempt after a refusal


@dataclass(frozen=True, slots=True)
class PeerOnline:
    """The event that a producer of KV pages is available."""

    curve: Curve
    """The seconds that messages from the producer take, by size."""


@dataclass(frozen=True, slots=True)
class PeerOffline:
    """The event that a producer of KV pages is not available."""

    reason: str
    """The reason why the producer is not available, in one line."""


@dataclass(frozen=True, slots=True)
class PagesArrived:
    """The event that the pages of a prompt have come."""

    pages: PagesFrame
    """The message of the producer that announced these KV pages."""
    rows: Tensor
    """The contents of the pages: bytes [pages, bytes per page]."""
    seconds: float
    """The seconds that the pages were in transit."""


PeerEvent = PeerOnline | PeerOffline | PagesArrived | Declined | None
"""The event of a producer; None if nothing came for a while."""


class Peer:
    """A producer of KV pages, as the consumer sees it.

    It reports events in a thread of its own; the consumer uses `curve` and `under_way` in the engine's thread.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        transfer: KVTransfer,
        most: int,
        on_event: Callable[["Peer", PeerEvent], None],
        threads: ConnectionThreads,
    ) -> None:
        """Start the thread that connects to a producer.

        Args:
            address: The address of the producer.
            identity: The model and page layout that the producer must share.
            transfer: The settings of the transfer.
            most: Maximum number of pages in a message.
            on_event: Receives the events.
            threads: Runs the threads of the connection.
        """
        self.address = address
        self.curve: Curve | None = None
        """The seconds that messages from the producer take, by size; None while it is not available."""
        self.under_way = 0
        """The number of prompt positions that were requested and have not come."""
        self.delivered = 0.0
        """The time at which the last pages came, by the monotonic clock."""
        self.tried = threading.Event()
        """An event that is set once it is known whether the producer is available."""
        self._identity, self._transfer, self._most, self._on_event = identity, transfer, most, on_event
        self._closing = threading.Event()
        self._connection: socket.socket | None = None
        self._outbox: SendQueue | None = None
        self._threads = threads
        threads.start(self._run, f"from {address}")

    def send(self, message: Prefill | Cancel) -> None:
        """Send the producer a message; do nothing if it is gone, which is reported as an event."""
        outbox = self._outbox  # the reading thread may clear the attribute meanwhile
        if outbox is not None:
            outbox.put(message)

    def hang_up(self) -> None:
        """End the connection to the producer; unless `close` was called, the thread then reconnects."""
        outbox = self._outbox
        if outbox is not None:
            outbox.close()

    def close(self) -> None:
        """End the connection to the producer for good, in whatever state it is."""
        self._closing.set()
        self.hang_up()
        connection = self._connection
        if connection is not None:
            shutdown_and_close(connection)

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            try:
                wire = self._connected()
                failures = 0
                self._read(wire)
            except AuthError as error:
                reason, pause = str(error), _STRANGE
            except TimeoutError:
                reason = f"nothing answered within {PATIENCE:g} s"
            except (ConnectionResetError, BrokenPipeError):
                reason = "it closed the connection"
            except (OSError, EOFError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            except Exception as error:  # a bug of ours, or malformed messages
                reason = describe_error(error)
            self.hang_up()
            self._outbox = None
            failures += 1
            self._on_event(self, PeerOffline(reason))
            self.tried.set()
            self._closing.wait(pause)

    def _connected(self) -> Wire[FromProducer]:
        """Return a connection that is ready for requests, and report that.

        Raises:
            AuthError: If the producer refuses this consumer, or is not to be trusted.
            OSError: If the connection fails.
            EOFError: If the producer closes it.
        """
        connection = connect(self.address, PATIENCE, self._begun)
        try:
            introduce(connection, self._transfer.key)
            wire: Wire[FromProducer] = Wire(connection, FromProducer, self._wait)
            wire.send(Hello(*self._identity))
            answer = _soon(wire)
            if isinstance(answer, Declined):
                raise AuthError(answer.reason)
            if not isinstance(answer, Welcome):
                raise OSError("it did not respond as the protocol requires")
            curve = _measured(wire)
            self._outbox = SendQueue(wire, self._threads, f"to {self.address}")
        except BaseException:
            connection.close()
            raise
        self._on_event(self, PeerOnline(curve))
        self.tried.set()
        return wire

    def _begun(self, connection: socket.socket) -> None:
        """Make a connection that is being set up known to `close`, which may have been called before.

        Raises:
            OSError: If it was.
        """
        self._connection = connection
        if self._closing.is_set():
            raise OSError("this engine no longer uses the connection")

    def _read(self, wire: Wire[FromProducer]) -> None:
        """Report the producer's messages until the connection ends, which raises an error."""
        while not self._closing.is_set():
            try:
                message = wire.receive()
            except PeerTimeout:
                self._wait()
                continue
            if isinstance(message, PagesFrame):
                self._on_event(self, self._arrived(wire, message))
            elif isinstance(message, Declined):
                self._on_event(self, message)
            else:
                raise OSError("it sent a message that this engine did not request")
        raise EOFError("this engine no longer uses the connection")

    def _wait(self) -> None:
        """Report that nothing has come for a while, because requested pages may be late by now."""
        if self.under_way:
            self._on_event(self, None)

    def _arrived(self, wire: Wire[FromProducer], message: PagesFrame) -> PagesArrived:
        """Read the KV pages that follow a message of the producer, and return them as an event."""
        pages, page_bytes = len(message.names), self._identity.page_bytes
        if pages > self._most:
            raise OSError("it sends more pages than the KV cache of this engine has")
        started = time.perf_counter()
        rows, view = memory(pages * page_bytes)
        wire.read(view)
        return PagesArrived(message, rows.view(pages, page_bytes), time.perf_counter() - started)


def _soon(wire: Wire[FromProducer]) -> FromProducer:
    """Wait for the next message of a producer of KV pages and return it.

    Raises:
        TimeoutError: If none comes within PATIENCE.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return wire.receive()
        except PeerTimeout:
            continue
    raise TimeoutError


def _measured(wire: Wire[FromProducer]) -> Curve:
    """Measure the seconds from requesting a number of bytes until they are here, as the median of a few rounds."""
    seconds: list[float] = []
    for size in SIZES:
        took = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            wire.send(BandwidthProbe(size))
            answer = _soon(wire)
            if not isinstance(answer, PaddingFrame) or answer.nbytes != size:
                raise OSError("it did not respond as the protocol requires")
            _, view = memory(size)
            wire.read(view)
            took.append(time.perf_counter() - started)
            if took[-1] > _SLOW:
                break
        seconds.append(max([median(took), *seconds[-1:]]))
        if took[-1] > _SLOW:
            break
    return Curve(tuple(map(float, SIZES[: len(seconds)])), tuple(seconds))
