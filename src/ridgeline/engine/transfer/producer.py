"""The producer, which computes prompts for other engines, next to its own requests, and sends their KV pages.

Each connection has a thread that reads and one that writes. Everything else happens in the engine's thread, between two
steps. Pages are copied when a prompt is computed, so that the engine's memory is free again while they are in transit.
"""

import queue
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from msgspec import structs

from ridgeline.engine.engine import Engine
from ridgeline.engine.events import TokenEvent, describe_error
from ridgeline.engine.kv.page_exchange import PageExchange
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason, Request
from ridgeline.engine.transfer.config import family_of
from ridgeline.engine.transfer.identity import Identity
from ridgeline.engine.transfer.threads import ConnectionThreads
from ridgeline.engine.transfer.wire import (
    AuthError,
    BandwidthProbe,
    Cancel,
    Declined,
    Hello,
    PaddingFrame,
    PagesFrame,
    PeerTimeout,
    Prefill,
    SendQueue,
    ToProducer,
    Welcome,
    Wire,
    admit,
    bytes_of,
    shutdown_and_close,
)

_CONNECTIONS = 64
_PAUSE = 1.0  # seconds before the next attempt to accept a connection
_MOST_PROBED = 1 << 26
_PARAMS = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, seed=0)  # the consumer samples the response


@dataclass(frozen=True, slots=True)
class _PrefillJob:
    """A prompt that is being computed for a client."""

    client: "_Client"
    """The connection to the client that requested the prompt's KV pages."""
    ticket: int
    """The client's number for the prompt."""
    have: int
    """The number of prompt positions whose KV pages the client already has, so that they are not sent."""
    request: Request
    """The request with which the producing engine computes the prompt."""


class Producer:
    """The end of a transfer that sends pages, for an engine.

    The engine's loop calls `poll` before a step and `ended` after it.
    """

    def __init__(
        self,
        engine: Engine,
        exchange: PageExchange,
        identity: Identity,
        address: str,
        key: bytes,
        wake: Callable[[], None],
    ) -> None:
        """Start listening for consumers.

        Args:
            engine: The engine.
            exchange: Access to the engine's KV pages.
            identity: The model and page layout that a consumer must share.
            address: The address to listen at.
            key: The secret that consumers must know.
            wake: Makes the engine's loop run once more if it waits, from any thread.

        Raises:
            ValueError: If the address is not available.
        """
        self._engine, self._exchange, self.identity, self.key = engine, exchange, identity, key
        self._wake = wake
        self._orders: queue.SimpleQueue[tuple[_Client, Prefill | Cancel | None]] = queue.SimpleQueue()
        self._prefills: dict[int, _PrefillJob] = {}  # by the engine's id
        self.clients: set[_Client] = set()
        self._closed = threading.Event()
        self._listener = _listen(address)
        self._accepting, self.threads = ConnectionThreads(), ConnectionThreads()
        self._accepting.start(self._accept, "listener")

    def poll(self) -> None:
        """Handle the messages of clients: add or abort requests."""
        while not self._orders.empty():
            client, order = self._orders.get()
            if isinstance(order, Prefill):
                self._add(client, order)
                continue
            for request, job in list(self._prefills.items()):
                if job.client is client and (order is None or job.ticket == order.ticket):
                    self._engine.abort(request)
                    del self._prefills[request]
            if order is not None:
                client.outbox.withdraw(order.ticket)

    def _add(self, client: "_Client", prefill: Prefill) -> None:
        try:
            number = self._engine.add(structs.replace(prefill.spec, params=_PARAMS))
        except ValueError as error:
            client.outbox.put(Declined(prefill.ticket, str(error)))
        except Exception as error:  # a bug of ours: only this prompt fails, the others continue
            client.outbox.put(Declined(prefill.ticket, describe_error(error)))
        else:
            self._prefills[number] = _PrefillJob(client, prefill.ticket, prefill.have, self._engine.requests[number])

    def ended(self, events: list[TokenEvent]) -> list[TokenEvent]:
        """Send the KV pages of prompts computed for other engines; return the events of this engine's own requests."""
        if not self._prefills:
            return events
        own = {event.request: event for event in events if event.request in self._prefills}
        for event in own.values():
            job = self._prefills.pop(event.request)
            if event.finish is FinishReason.ERROR:
                job.client.outbox.put(
                    Declined(job.ticket, event.error or "the prefill engine could not compute the prompt")
                )
            else:
                self._send(job)
        return [event for event in events if event.request not in own]

    def _send(self, job: _PrefillJob) -> None:
        exchange, outbox = self._exchange, job.client.outbox
        keys = exchange.keys(job.request)
        positions = exchange.cached_positions(keys, job.request.prompt_length)
        places = exchange.missing_pages(job.have, positions) if positions > job.have else []
        if not places:
            outbox.put(Declined(job.ticket, "the prefill engine evicted the pages while it computed the prompt"))
            return
        names = [(*place, exchange.digest(keys, place)) for place in places]
        rows = exchange.export_pages(keys, places)
        outbox.put(PagesFrame(job.ticket, positions, names), bytes_of(rows))

    def close(self) -> None:
        """Close all connections to consumers, and stop listening."""
        self._closed.set()
        shutdown_and_close(self._listener)
        self._accepting.join()  # after that no connection is accepted
        for client in list(self.clients):
            client.close()
        self.threads.join()

    # -- in threads of their own ---------------------------------------------------------------------------------------

    def order(self, client: "_Client", order: Prefill | Cancel | None) -> None:
        """Queue a client's message for the engine's thread; None if the client is gone."""
        self._orders.put((client, order))
        self._wake()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it is closed, or there are too many open files
                if self._closed.wait(_PAUSE):
                    return
                continue
            if len(self.clients) >= _CONNECTIONS:
                connection.close()
                continue
            client = _Client(self, connection)
            self.clients.add(client)
            try:
                self.threads.start(client.run, "reader")
            except OSError:  # there are too many threads
                self.clients.discard(client)
                client.close()


class _Client:
    """The connection of a consumer, from its first byte to its last."""

    def __init__(self, producer: Producer, connection: socket.socket) -> None:
        self._producer, self._connection = producer, connection
        self.outbox: SendQueue
        self._filling = b""  # for the largest probe so far; written once, because pages are written memory, too

    def run(self) -> None:
        """Read the consumer's messages until it hangs up."""
        try:
            admit(self._connection, self._producer.key)
            wire: Wire[ToProducer] = Wire(self._connection, ToProducer)
            self.outbox = SendQueue(wire, self._producer.threads, "writer")
            self._read(wire)
        except (OSError, EOFError, AuthError):
            pass  # the consumer is gone, or unknown; it reports the reason itself
        finally:
            self.close()
            self._producer.clients.discard(self)
            self._producer.order(self, None)

    def _read(self, wire: Wire[ToProducer]) -> None:
        known = False
        while True:
            try:
                message = wire.receive()
            except PeerTimeout:
                continue
            if isinstance(message, Hello):
                reason = _differs(self._producer.identity, message)
                known = not reason
                self.outbox.put(Declined(0, reason) if reason else Welcome())
            elif not known:
                raise OSError("the consumer sent a request before it described its model and pages")
            elif isinstance(message, BandwidthProbe):
                nbytes = max(0, min(message.nbytes, _MOST_PROBED))
                if nbytes > len(self._filling):
                    self._filling = b"\1" * nbytes
                self.outbox.put(PaddingFrame(nbytes), memoryview(self._filling)[:nbytes])
            else:
                self._producer.order(self, message)

    def close(self) -> None:
        """Close the connection to the consumer."""
        if hasattr(self, "outbox"):
            self.outbox.close()
        else:
            shutdown_and_close(self._connection)


def _differs(ours: Identity, theirs: Hello) -> str:
    """Return why a consumer cannot read this producer's pages, in one line; "" if it can."""
    if theirs.pages != ours.pages or theirs.page_bytes != ours.page_bytes:
        return f"the prefill engine has {_first_difference(ours, theirs)}"
    if theirs.model != ours.model:
        return "the prefill engine has another model: give both engines the same model, with the same --weights"
    return ""


def _first_difference(ours: Identity, theirs: Hello) -> str:
    """Return the first difference between two page layouts, in words."""
    pairs = zip_longest(ours.pages.split("; "), theirs.pages.split("; "), fillvalue="no further layers")
    nbytes = (f"pages of {ours.page_bytes} bytes", f"pages of {theirs.page_bytes} bytes")
    differing = next(((a, b) for a, b in pairs if a != b), nbytes)
    return f"{differing[0]}, but this engine has {differing[1]}: give both the same model, --page-size and --kv"


def _listen(address: str) -> socket.socket:
    family, where = family_of(address)
    listener = socket.socket(family)
    try:
        if family == socket.AF_UNIX:
            path = Path(where)
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.stat().st_mode):  # left by an earlier engine
                    path.unlink()
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        if family == socket.AF_UNIX:
            Path(where).chmod(0o600)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen at {address}: {error.strerror or error}; give another address (--kv-listen)"
        ) from None
    return listener
