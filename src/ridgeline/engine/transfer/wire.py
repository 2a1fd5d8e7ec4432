"""What goes over a connection between two engines. docs/scale.md has it as a table.

First both say what they speak and prove that they know the key (`admit`, `introduce`). Then frames (frames.py), and
behind a frame that says so raw bytes: pages as they lie in memory. Nothing that comes in is executed.
"""

import hmac
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor

from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.transfer.config import family_of
from ridgeline.engine.transfer.threads import ConnectionThreads
from ridgeline.util.frames import MessageCodec

MAGIC = b"ridgeline kv 2\n\0"
"""The first bytes either way, with the version of all that follows."""
TICK = 0.25
"""Seconds after which a read that has brought nothing returns."""
PATIENCE = 10.0
"""Seconds for an end to say who it is, and for more of a message that has begun: then it is gone."""

_NONCE, _PROOF = 32, 32
_MOST = 1 << 28  # bytes of a frame: a prompt of a million ids takes five of them
_PIECE = 1 << 16  # of a frame, at first; then as many bytes as have come
_LENGTH = struct.Struct(">I")
M = TypeVar("M")


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """The consumer's first: as identity.Identity."""

    model: bytes
    pages: str
    page_bytes: int


class Welcome(msgspec.Struct, tag="welcome", array_like=True, frozen=True):
    """The producer reads the same."""


class BandwidthProbe(msgspec.Struct, tag="probe", array_like=True, frozen=True):
    """Send so many bytes back, to see how long they take."""

    nbytes: int


class Prefill(msgspec.Struct, tag="prefill", array_like=True, frozen=True):
    """A message to compute a prompt and send its pages. ticket: the consumer's number for it. have: positions whose
    pages it has. spec: the request, without its sampling parameters.
    """

    ticket: int
    have: int
    spec: GenerationRequest


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    """Nobody waits for these pages any more."""

    ticket: int


class PaddingFrame(msgspec.Struct, tag="filling", array_like=True, frozen=True):
    """So many bytes follow, for a Probe."""

    nbytes: int


class PagesFrame(msgspec.Struct, tag="pages", array_like=True, frozen=True):
    """Pages of the first `positions` of a prompt follow, as many bytes each as Hello said. names: of each its group of
    layers, its entry in a table, and the digest that stands for its contents.
    """

    ticket: int
    positions: int
    names: Sequence[tuple[int, int, bytes]]


class Declined(msgspec.Struct, tag="declined", array_like=True, frozen=True):
    """No pages come; why, in one line. ticket: 0 where none ever will."""

    ticket: int
    reason: str


ToProducer = Hello | BandwidthProbe | Prefill | Cancel
FromProducer = Welcome | PaddingFrame | PagesFrame | Declined


class PeerTimeout(Exception):
    """A read has brought nothing for a while."""


class AuthError(ValueError):
    """The other end speaks something else, or does not know the key; why, in one line."""


class Wire(Generic[M]):
    """One end of a connection, of which one thread reads and one writes."""

    def __init__(self, connection: socket.socket, messages: Any, waiting: Callable[[], None] = lambda: None) -> None:
        """messages: the type, or union of types, that comes in. waiting: called each TICK while a message that has
        begun is not whole.
        """
        self._socket, self._waiting = connection, waiting
        self._frames: MessageCodec[M] = MessageCodec(messages)
        connection.setblocking(True)
        # As the system counts it: a timeout of Python's would read a page in pieces of what has come.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(TICK * 1e6)))
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, message: object, body: memoryview | None = None) -> None:
        """Write a message, and raw bytes behind it. Raises OSError where nobody reads any more."""
        self._socket.sendall(self._frames.encode(message))
        if body is not None:
            self._socket.sendall(body)

    def receive(self) -> M:
        """The next message. Raises Silence where none has begun for a while, TimeoutError where one does not go on,
        EOFError, OSError.
        """
        head = bytearray(_LENGTH.size)
        self._fill(memoryview(head), begun=False)
        length = _LENGTH.unpack(head)[0]
        if length > _MOST:
            raise OSError("a message that is longer than any")
        try:
            return self._frames.decode(self._body(length))
        except msgspec.MsgspecError as error:
            raise OSError(f"a message that is none: {error}") from None

    def _body(self, length: int) -> bytearray:
        """What is behind a length, in memory that grows with what has come: a length alone costs nothing."""
        body = bytearray()
        while len(body) < length:
            done = len(body)
            body += bytes(min(max(_PIECE, done), length - done))
            with memoryview(body) as view:
                self._fill(view[done:])
        return body

    def read(self, view: memoryview) -> None:
        """Raw bytes behind a message into memory, all of it. Raises as `receive`, but for Silence."""
        self._fill(view)

    def _fill(self, view: memoryview, *, begun: bool = True) -> None:
        """begun: of the message something has come, so that the rest is waited for."""
        done, last = 0, time.monotonic()
        while done < len(view):
            try:
                count = self._socket.recv_into(view[done:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if not begun and not done:
                    raise PeerTimeout from None
                if time.monotonic() - last > PATIENCE:
                    raise TimeoutError from None
            else:
                if not count:
                    raise EOFError("it has hung up")
                done, last = done + count, time.monotonic()
            if done < len(view):
                self._waiting()

    def close(self) -> None:
        """End it; whoever reads or writes it is told by an error."""
        shut(self._socket)


class SendQueue:
    """What is to be written on a wire, by a thread of its own: whoever puts something in never waits for the other
    end.
    """

    def __init__(self, wire: "Wire[Any]", threads: ConnectionThreads, name: str) -> None:
        self._wire, self._closed = wire, False
        self._waiting: deque[tuple[object, memoryview | None]] = deque()
        self._changed = threading.Condition()
        threads.start(self._write, name)

    def put(self, message: object, body: memoryview | None = None) -> None:
        """Have it written, after what was put in before; nothing where the connection has ended."""
        with self._changed:
            if not self._closed:
                self._waiting.append((message, body))
                self._changed.notify()

    def withdraw(self, ticket: int) -> None:
        """Do not write the pages of a ticket, where they still wait for it."""
        with self._changed:
            self._waiting = deque(
                (message, body)
                for message, body in self._waiting
                if not isinstance(message, PagesFrame) or message.ticket != ticket
            )

    def close(self) -> None:
        """Write no more, and end the connection."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        self._wire.close()

    def _write(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._wire.send(*item)
            except OSError:
                self.close()  # its reader says what became of it
            del item  # pages are large, and the next ones may take a while

    def _next(self) -> tuple[object, memoryview | None] | None:
        """What is written next, once there is something; None once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return None if self._closed else self._waiting.popleft()


def bytes_of(rows: Tensor) -> memoryview:
    """The memory of a tensor of bytes on the host."""
    return memoryview(rows.numpy().data).cast("B")


def memory(nbytes: int) -> tuple[Tensor, memoryview]:
    """Bytes to read into, not yet written: as a tensor and as memory."""
    rows = torch.empty(nbytes, dtype=torch.uint8)
    return rows, bytes_of(rows)


def connect(address: str, seconds: float, begun: Callable[[socket.socket], None]) -> socket.socket:
    """A connection to an address. begun: is told of it before it is one, so that other threads can end it. Raises
    OSError.
    """
    family, where = family_of(address)
    connection = socket.socket(family)
    try:
        begun(connection)
        connection.settimeout(seconds)
        connection.connect(where)
    except BaseException:
        connection.close()
        raise
    return connection


def shut(connection: socket.socket) -> None:
    """End a connection. A thread that waits for it is told by an error: closing alone would leave it waiting."""
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def admit(connection: socket.socket, key: bytes) -> None:
    """The producer's part of the beginning, which takes PATIENCE at most. Raises Stranger, OSError, EOFError."""
    end, mine = time.monotonic() + PATIENCE, secrets.token_bytes(_NONCE)
    connection.settimeout(PATIENCE)
    connection.sendall(MAGIC + mine)
    _check_magic(_exactly(connection, len(MAGIC), end))
    theirs = _exactly(connection, _NONCE, end)
    if not hmac.compare_digest(_exactly(connection, _PROOF, end), _proof(key, b"consumer", mine, theirs)):
        raise AuthError("it does not know the key")
    connection.sendall(_proof(key, b"producer", theirs, mine))


def introduce(connection: socket.socket, key: bytes) -> None:
    """The consumer's part of it. Raises as `admit`."""
    end = time.monotonic() + PATIENCE
    _check_magic(_exactly(connection, len(MAGIC), end))
    theirs, mine = _exactly(connection, _NONCE, end), secrets.token_bytes(_NONCE)
    connection.sendall(MAGIC + mine + _proof(key, b"consumer", theirs, mine))
    try:
        proof = _exactly(connection, _PROOF, end)
    except EOFError:
        raise AuthError("it refuses this key; give both the same --kv-key-file") from None
    if not hmac.compare_digest(proof, _proof(key, b"producer", mine, theirs)):
        raise AuthError("it does not know the key; give both the same --kv-key-file")


def _proof(key: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, MAGIC + role + first + second, "sha256")


def _check_magic(said: bytes) -> None:
    if said != MAGIC:
        known = said.startswith(MAGIC[:13])
        raise AuthError(
            "it speaks another version of the format; run the same version of ridgeline on both"
            if known
            else "it is no engine that computes prompts for others; give its --kv-listen"
        )


def _exactly(connection: socket.socket, count: int, end: float) -> bytes:
    """So many bytes, by that moment of the monotonic clock. Raises TimeoutError, OSError, EOFError."""
    data = b""
    while len(data) < count:
        connection.settimeout(max(1e-3, end - time.monotonic()))
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError("it has hung up")
        data += more
    return data
