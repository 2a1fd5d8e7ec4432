"""One producer as a consumer sees it: a thread that connects, connects again, measures the connection, and reads."""

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
    shut,
)
from ridgeline.price.interconnect import Curve

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes that a connection is measured with: a page of a small model to a prompt of a large one."""
ROUNDS = 5

_SLOW = 0.5  # a size that takes longer is the last
_PAUSES = (0.5, 1.0, 2.0, 5.0)  # seconds before it is tried again
_STRANGE = 30.0  # the same of one that refused


@dataclass(frozen=True, slots=True)
class PeerOnline:
    """It may be asked. curve: seconds of so many bytes from it."""

    curve: Curve


@dataclass(frozen=True, slots=True)
class PeerOffline:
    """It may not be asked; why, in one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class PagesArrived:
    """Pages have come: their bytes [pages, bytes a page], and the seconds they were on their way."""

    pages: PagesFrame
    rows: Tensor
    seconds: float


PeerEvent = PeerOnline | PeerOffline | PagesArrived | Declined | None
"""None: nothing, for a while."""


class Peer:
    """Tells what it hears in its own thread; `up` and `under_way` are for whoever asks, in one thread."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        transfer: KVTransfer,
        most: int,
        heard: Callable[["Peer", PeerEvent], None],
        threads: ConnectionThreads,
    ) -> None:
        """most: pages that may come together."""
        self.address = address
        self.curve: Curve | None = None
        """None while it may not be asked."""
        self.under_way = 0
        """Positions of prompts that it was asked for and has not sent."""
        self.delivered = 0.0
        """When it sent pages last, by the monotonic clock."""
        self.tried = threading.Event()
        """Set once it is known whether it is there."""
        self._identity, self._transfer, self._most, self._heard = identity, transfer, most, heard
        self._closing = threading.Event()
        self._connection: socket.socket | None = None
        self._outbox: SendQueue | None = None
        self._threads = threads
        threads.start(self._run, f"from {address}")

    def put(self, message: Prefill | Cancel) -> None:
        """Have it told something; nothing where it is gone, which is heard."""
        outbox = self._outbox  # which the thread that reads may take away meanwhile
        if outbox is not None:
            outbox.put(message)

    def hang_up(self) -> None:
        """End the connection; another is tried."""
        outbox = self._outbox
        if outbox is not None:
            outbox.close()

    def close(self) -> None:
        """End it for good, in whatever state it is."""
        self._closing.set()
        self.hang_up()
        connection = self._connection
        if connection is not None:
            shut(connection)

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
                reason = f"nothing answers within {PATIENCE:g} s"
            except (ConnectionResetError, BrokenPipeError):
                reason = "it has hung up"
            except (OSError, EOFError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            except Exception as error:  # a fault of ours, or what it says is not what it should be
                reason = describe_error(error)
            self.hang_up()
            self._outbox = None
            failures += 1
            self._heard(self, PeerOffline(reason))
            self.tried.set()
            self._closing.wait(pause)

    def _connected(self) -> Wire[FromProducer]:
        """A connection that may be asked, which is said. Raises Stranger, OSError, EOFError."""
        connection = connect(self.address, PATIENCE, self._begun)
        try:
            introduce(connection, self._transfer.key)
            wire: Wire[FromProducer] = Wire(connection, FromProducer, self._wait)
            wire.send(Hello(*self._identity))
            answer = _soon(wire)
            if isinstance(answer, Declined):
                raise AuthError(answer.reason)
            if not isinstance(answer, Welcome):
                raise OSError("it does not answer what it is asked")
            curve = _measured(wire)
            self._outbox = SendQueue(wire, self._threads, f"to {self.address}")
        except BaseException:
            connection.close()
            raise
        self._heard(self, PeerOnline(curve))
        self.tried.set()
        return wire

    def _begun(self, connection: socket.socket) -> None:
        """A connection is tried: `close` ends it from now on, and may have been called before. Raises OSError."""
        self._connection = connection
        if self._closing.is_set():
            raise OSError("it is not asked any more")

    def _read(self, wire: Wire[FromProducer]) -> None:
        """Until the connection ends, which is raised."""
        while not self._closing.is_set():
            try:
                message = wire.receive()
            except PeerTimeout:
                self._wait()
                continue
            if isinstance(message, PagesFrame):
                self._heard(self, self._arrived(wire, message))
            elif isinstance(message, Declined):
                self._heard(self, message)
            else:
                raise OSError("it says what nobody asked for")
        raise EOFError("it is not asked any more")

    def _wait(self) -> None:
        """Nothing has come for a while: some of what was asked for may be late by now."""
        if self.under_way:
            self._heard(self, None)

    def _arrived(self, wire: Wire[FromProducer], message: PagesFrame) -> PagesArrived:
        """The pages behind a message."""
        pages, page_bytes = len(message.names), self._identity.page_bytes
        if pages > self._most:
            raise OSError("it sends more pages than KV memory has")
        started = time.perf_counter()
        rows, view = memory(pages * page_bytes)
        wire.read(view)
        return PagesArrived(message, rows.view(pages, page_bytes), time.perf_counter() - started)


def _soon(wire: Wire[FromProducer]) -> FromProducer:
    """The next message. Raises TimeoutError where it does not come soon."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return wire.receive()
        except PeerTimeout:
            continue
    raise TimeoutError


def _measured(wire: Wire[FromProducer]) -> Curve:
    """Seconds from asking for so many bytes until they are there, the median of a few times."""
    seconds: list[float] = []
    for size in SIZES:
        took = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            wire.send(BandwidthProbe(size))
            answer = _soon(wire)
            if not isinstance(answer, PaddingFrame) or answer.nbytes != size:
                raise OSError("it does not answer what it is asked")
            _, view = memory(size)
            wire.read(view)
            took.append(time.perf_counter() - started)
            if took[-1] > _SLOW:
                break
        seconds.append(max([median(took), *seconds[-1:]]))
        if took[-1] > _SLOW:
            break
    return Curve(tuple(map(float, SIZES[: len(seconds)])), tuple(seconds))
