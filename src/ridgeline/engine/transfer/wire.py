"""The protocol between a producer and a consumer of KV pages. docs/scale.md has it as a table.

First both ends name the protocol and prove that they know the key (`admit`, `introduce`). Then come frames (frames.py),
and raw bytes after a frame that announces them: pages as they are in memory. Nothing that comes in is executed.
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
"""The first bytes of a KV transfer connection in either direction, with the version of the protocol."""
TICK = 0.25
"""The seconds after which a read that has received nothing returns."""
PATIENCE = 10.0
"""The seconds for an end to authenticate, and for more of a message that has begun; after that it counts as gone."""

_NONCE, _PROOF = 32, 32
_MOST = 1 << 28  # maximum bytes of a frame; a prompt takes up to five per id
_PIECE = 1 << 16  # first bytes of a frame to allocate; then as many as have come
_LENGTH = struct.Struct(">I")
M = TypeVar("M")


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """The consumer's first message: the identity of its pages (identity.Identity)."""

    model: bytes
    """The digest of the model's config and weights."""
    pages: str
    """The layout of the pages, as a text."""
    page_bytes: int
    """The number of bytes that a page takes on the connection."""


class Welcome(msgspec.Struct, tag="welcome", array_like=True, frozen=True):
    """The producer's message that its pages have the same identity."""


class BandwidthProbe(msgspec.Struct, tag="probe", array_like=True, frozen=True):
    """The consumer's message to send some bytes back, to measure how long they take."""

    nbytes: int
    """The number of bytes to send back."""


class Prefill(msgspec.Struct, tag="prefill", array_like=True, frozen=True):
    """The consumer's message to compute a prompt and send its pages."""

    ticket: int
    """The consumer's number for the prompt."""
    have: int
    """The number of prompt positions whose KV pages the consumer already has."""
    spec: GenerationRequest
    """The request, without its sampling parameters."""


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    """The consumer's message that it does not need the pages of a prompt any more."""

    ticket: int
    """The consumer's number for the prompt."""


class PaddingFrame(msgspec.Struct, tag="filling", array_like=True, frozen=True):
    """The producer's message that the bytes of a BandwidthProbe follow."""

    nbytes: int
    """The number of padding bytes that follow."""


class PagesFrame(msgspec.Struct, tag="pages", array_like=True, frozen=True):
    """The producer's message that pages of a prompt follow, each as long as Hello has stated."""

    ticket: int
    """The consumer's number for the prompt."""
    positions: int
    """The number of positions at the start of the prompt that the consumer has with these pages."""
    names: Sequence[tuple[int, int, bytes]]
    """The group of layers, page-table entry and digest of each KV page that follows."""


class Declined(msgspec.Struct, tag="declined", array_like=True, frozen=True):
    """The producer's message that no KV pages come."""

    ticket: int
    """The consumer's number for the prompt; 0 if no pages ever will come."""
    reason: str
    """The reason why no pages come, in one line."""


ToProducer = Hello | BandwidthProbe | Prefill | Cancel
FromProducer = Welcome | PaddingFrame | PagesFrame | Declined


class PeerTimeout(Exception):
    """The signal that a read has received nothing for a while."""


class AuthError(ValueError):
    """The error that the other end of a KV transfer uses another protocol, or lacks the key; a one-line reason."""


class Wire(Generic[M]):
    """One end of a connection, which one thread reads and another writes."""

    def __init__(self, connection: socket.socket, messages: Any, waiting: Callable[[], None] = lambda: None) -> None:
        """Take over a connected socket as one end of a KV transfer connection.

        Args:
            connection: The socket.
            messages: The type, or union of types, of incoming messages.
            waiting: Called every TICK while a message that has begun is not complete.
        """
        self._socket, self._waiting = connection, waiting
        self._frames: MessageCodec[M] = MessageCodec(messages)
        connection.setblocking(True)
        # A timeout of the operating system: with Python's, a read would return pieces of a page.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(TICK * 1e6)))
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, message: object, body: memoryview | None = None) -> None:
        """Write a message, and raw bytes after it.

        Raises:
            OSError: If the other end has closed the connection.
        """
        self._socket.sendall(self._frames.encode(message))
        if body is not None:
            self._socket.sendall(body)

    def receive(self) -> M:
        """Return the next message from the other end of a KV transfer connection.

        Raises:
            PeerTimeout: If none has begun for a while.
            TimeoutError: If a message that has begun does not continue.
            EOFError: If the connection has ended.
            OSError: If the connection fails, or the message is malformed.
        """
        head = bytearray(_LENGTH.size)
        self._fill(memoryview(head), begun=False)
        length = _LENGTH.unpack(head)[0]
        if length > _MOST:
            raise OSError("a message is longer than the protocol allows")
        try:
            return self._frames.decode(self._body(length))
        except msgspec.MsgspecError as error:
            raise OSError(f"a message is malformed: {error}") from None

    def _body(self, length: int) -> bytearray:
        """Read the body of a frame, in memory that grows with what has come, so that a length alone costs nothing."""
        body = bytearray()
        while len(body) < length:
            done = len(body)
            body += bytes(min(max(_PIECE, done), length - done))
            with memoryview(body) as view:
                self._fill(view[done:])
        return body

    def read(self, view: memoryview) -> None:
        """Fill memory with the raw bytes after a message.

        The errors are those of `receive`, without PeerTimeout.
        """
        self._fill(view)

    def _fill(self, view: memoryview, *, begun: bool = True) -> None:
        """Fill memory from the socket.

        Args:
            view: The memory to fill.
            begun: Whether part of the message has come, so that the rest must follow.
        """
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
                    raise EOFError("it closed the connection")
                done, last = done + count, time.monotonic()
            if done < len(view):
                self._waiting()

    def close(self) -> None:
        """End the connection; the threads that read or write it get an error."""
        shutdown_and_close(self._socket)


class SendQueue:
    """The messages to write on a KV transfer connection, in a thread of their own, so that senders never wait."""

    def __init__(self, wire: "Wire[Any]", threads: ConnectionThreads, name: str) -> None:
        self._wire, self._closed = wire, False
        self._waiting: deque[tuple[object, memoryview | None]] = deque()
        self._changed = threading.Condition()
        threads.start(self._write, name)

    def put(self, message: object, body: memoryview | None = None) -> None:
        """Queue a message, with raw bytes after it; do nothing if the connection has ended."""
        with self._changed:
            if not self._closed:
                self._waiting.append((message, body))
                self._changed.notify()

    def withdraw(self, ticket: int) -> None:
        """Remove the KV pages of one prompt, given by its ticket, that are still queued."""
        with self._changed:
            self._waiting = deque(
                (message, body)
                for message, body in self._waiting
                if not isinstance(message, PagesFrame) or message.ticket != ticket
            )

    def close(self) -> None:
        """Write nothing more to the connection, and end it."""
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
                self.close()  # the thread that reads reports the end
            del item  # free the pages, which are large, while waiting for the next message

    def _next(self) -> tuple[object, memoryview | None] | None:
        """Wait for the next message to write and return it; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return None if self._closed else self._waiting.popleft()


def bytes_of(rows: Tensor) -> memoryview:
    """Return the memory of a byte tensor on the host."""
    return memoryview(rows.numpy().data).cast("B")


def memory(nbytes: int) -> tuple[Tensor, memoryview]:
    """Return uninitialised memory to read into, as a byte tensor and as a memoryview."""
    rows = torch.empty(nbytes, dtype=torch.uint8)
    return rows, bytes_of(rows)


def connect(address: str, seconds: float, begun: Callable[[socket.socket], None]) -> socket.socket:
    """Connect to the address of a producer of KV pages.

    Args:
        address: The address.
        seconds: The timeout.
        begun: Receives the socket before it is connected, so that other threads can close it.

    Raises:
        OSError: If the connection fails.
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


def shutdown_and_close(connection: socket.socket) -> None:
    """Close a connection. A thread that waits for it gets an error; closing alone would leave it waiting."""
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def admit(connection: socket.socket, key: bytes) -> None:
    """Authenticate a consumer, on the producer's side, within PATIENCE.

    Raises:
        AuthError: If it uses another protocol, or does not know the key.
        OSError: If the connection fails.
        EOFError: If the connection has ended.
    """
    end, mine = time.monotonic() + PATIENCE, secrets.token_bytes(_NONCE)
    connection.settimeout(PATIENCE)
    connection.sendall(MAGIC + mine)
    _check_magic(_exactly(connection, len(MAGIC), end))
    theirs = _exactly(connection, _NONCE, end)
    if not hmac.compare_digest(_exactly(connection, _PROOF, end), _proof(key, b"consumer", mine, theirs)):
        raise AuthError("it does not have this engine's key")
    connection.sendall(_proof(key, b"producer", theirs, mine))


def introduce(connection: socket.socket, key: bytes) -> None:
    """Authenticate with a producer, on the consumer's side. The errors are those of `admit`."""
    end = time.monotonic() + PATIENCE
    _check_magic(_exactly(connection, len(MAGIC), end))
    theirs, mine = _exactly(connection, _NONCE, end), secrets.token_bytes(_NONCE)
    connection.sendall(MAGIC + mine + _proof(key, b"consumer", theirs, mine))
    try:
        proof = _exactly(connection, _PROOF, end)
    except EOFError:
        raise AuthError("it rejects this engine's key: give both engines the same --kv-key-file") from None
    if not hmac.compare_digest(proof, _proof(key, b"producer", mine, theirs)):
        raise AuthError("it does not have this engine's key: give both engines the same --kv-key-file")


def _proof(key: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, MAGIC + role + first + second, "sha256")


def _check_magic(received: bytes) -> None:
    if not received.startswith(MAGIC[:13]):
        raise AuthError("it is not a prefill engine: give the --kv-listen address of one")
    if received != MAGIC:
        raise AuthError(
            "it uses another version of the KV transfer protocol: run the same version of ridgeline on both"
        )


def _exactly(connection: socket.socket, count: int, end: float) -> bytes:
    """Read an exact number of bytes from a socket.

    Args:
        connection: The socket.
        count: Number of bytes.
        end: The latest time, by the monotonic clock.

    Raises:
        TimeoutError: If they do not come in time.
        OSError: If the connection fails.
        EOFError: If the connection has ended.
    """
    data = b""
    while len(data) < count:
        connection.settimeout(max(1e-3, end - time.monotonic()))
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError("it closed the connection")
        data += more
    return data
