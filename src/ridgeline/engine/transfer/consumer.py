"""The consumer, which has other engines compute prompts and continues with their KV pages.

It computes the prompts itself whose pages do not come in time, or which it cannot read. A request waits parked
(Engine.add) for its pages. They become a cached prefix when there is room for the request, which then starts like any
request with a cached prefix: the last page of its prompt runs here, and its first token is sampled here.
"""

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from msgspec import structs
from torch import Tensor

from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import DEFAULT_PARAMS
from ridgeline.engine.kv.page_exchange import PageExchange, PageLocation
from ridgeline.engine.kv.prefix import PageKey
from ridgeline.engine.request import Request
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.transfer.identity import Identity
from ridgeline.engine.transfer.peer import PagesArrived, Peer, PeerEvent, PeerOffline, PeerOnline
from ridgeline.engine.transfer.threads import ConnectionThreads
from ridgeline.engine.transfer.wire import Cancel, Declined, PagesFrame, Prefill
from ridgeline.engine.worker.engine_messages import FromEngine, PeerChanged, Transferred

_STAGED_SHARE = 0.25
"""The share of the KV cache's bytes that KV pages in transit may take; a single prompt's pages always may."""
_FIRST_TRY = 3.0  # seconds to wait for producers before the engine takes requests


@dataclass(eq=False, slots=True)
class _Parked:
    """A request that waits for KV pages from another engine."""

    request: Request
    """The request that waits for KV pages from another engine."""
    keys: list[PageKey]
    """The prefix-cache keys of the full pages of the prompt."""
    have: int
    """The number of prompt positions that are already in the prefix cache here."""
    nbytes: int
    """The bytes of the pages that should come."""
    peer: Peer | None = None
    """The producer from which the pages were requested; None before."""
    asked_at: float = 0.0
    """The time at which the pages were requested, by the monotonic clock."""
    arrived: PagesArrived | None = None
    """The pages that came from the producer; None before."""


class Consumer:
    """The end of a transfer that requests pages, for an engine whose loop calls `poll` before each step.

    All methods but `_receive` run in the engine's thread.
    """

    def __init__(
        self,
        engine: Engine,
        exchange: PageExchange,
        identity: Identity,
        transfer: KVTransfer,
        send: Callable[[FromEngine], None],
        wake: Callable[[], None],
    ) -> None:
        """Connect to the producers, and wait a few seconds until it is known which are available.

        Args:
            engine: The engine.
            exchange: Access to the engine's KV pages.
            identity: The model and page layout that a producer must share.
            transfer: The settings of the transfer.
            send: Receives the messages on transfers.
            wake: Makes the engine's loop run once more if it waits, from any thread.
        """
        self._engine, self._exchange, self._identity = engine, exchange, identity
        self._timeout, self._send_event, self._wake = transfer.timeout, send, wake
        self._events: queue.SimpleQueue[tuple[Peer, PeerEvent]] = queue.SimpleQueue()
        self._tickets = count(1)
        self._unasked: deque[_Parked] = deque()
        self._fetches: dict[int, _Parked] = {}
        self._arrived: deque[_Parked] = deque()
        self._down: dict[Peer, str] = {}  # the reported reason
        self._most_staged = _STAGED_SHARE * exchange.kv_cache_manager.layout.nbytes
        self._staged = 0
        most = exchange.kv_cache_manager.pool.size
        self._threads = ConnectionThreads()
        self.peers = [Peer(each, identity, transfer, most, self._receive, self._threads) for each in transfer.peers]
        end = time.monotonic() + _FIRST_TRY
        for peer in self.peers:
            peer.tried.wait(max(0.0, end - time.monotonic()))
        self.poll()

    def _receive(self, peer: Peer, event: PeerEvent) -> None:
        """Queue an event of a producer, in the thread of its connection, and wake the engine's loop."""
        self._events.put((peer, event))
        self._wake()

    def add(self, request: Request) -> None:
        """Request the pages of a parked request, or start it if none are needed or available."""
        ledger, length = self._exchange.kv_cache_manager, request.prompt_length
        most = ledger.max_cached_prefix(length)
        if not request.uses_prefix_cache or not any(peer.curve for peer in self.peers) or not most:
            self._engine.begin(request.group)
            return
        keys = self._exchange.keys(request)
        have = self._exchange.cached_positions(keys, length)
        nbytes = len(self._exchange.missing_pages(have, most)) * self._identity.page_bytes if most > have else 0
        if not nbytes:
            self._engine.begin(request.group)
            return
        self._unasked.append(_Parked(request, keys, have, nbytes))
        self._ask()

    def forget(self, group: int) -> None:
        """Drop a request that has ended; do nothing if it is not parked."""
        for ticket, parked in list(self._fetches.items()):
            if parked.request.group == group:
                self._over(ticket)
                if parked.peer is not None:
                    parked.peer.send(Cancel(ticket))
        for waiting in (self._unasked, self._arrived):
            for parked in [each for each in waiting if each.request.group == group]:
                waiting.remove(parked)
                if parked.arrived is not None:
                    self._staged -= parked.nbytes

    def poll(self) -> None:
        """Handle what producers sent, request further pages, and start the requests that need not wait any longer."""
        while not self._events.empty():
            self._take(*self._events.get())
        if not (self._unasked or self._fetches or self._arrived):
            return
        now = time.monotonic()
        late = [ticket for ticket, parked in self._fetches.items() if now - parked.asked_at > self._timeout]
        for ticket in late:
            peer, asked_at = self._fetches[ticket].peer, self._fetches[ticket].asked_at
            assert peer is not None
            self._fail(ticket, f"no pages came within {self._timeout:g} s")
            peer.send(Cancel(ticket))
            if peer.delivered < asked_at:  # it sends nothing at all: the other requests should not wait as long
                peer.hang_up()
        self._begin()
        self._ask()

    def close(self) -> None:
        """Close all connections to producers."""
        for peer in self.peers:
            peer.close()
        self._threads.join()

    # -- events of producers -------------------------------------------------------------------------------------------

    def _take(self, peer: Peer, event: PeerEvent) -> None:
        if isinstance(event, PeerOnline):
            peer.curve = event.curve
            self._down.pop(peer, None)
            nbytes, seconds = event.curve.nbytes[-1], event.curve.seconds[-1]
            self._send_event(PeerChanged(peer.address, True, f"{nbytes / seconds / 1e9:.3g} GB/s"))
        elif isinstance(event, PeerOffline):
            if self._down.get(peer) != event.reason:
                self._send_event(PeerChanged(peer.address, False, event.reason))
            peer.curve, self._down[peer] = None, event.reason
            for ticket in [ticket for ticket, parked in self._fetches.items() if parked.peer is peer]:
                self._fail(ticket, event.reason)
        elif isinstance(event, PagesArrived):
            peer.delivered = time.monotonic()
            self._take_pages(event)
        elif isinstance(event, Declined) and event.ticket in self._fetches:
            self._fail(event.ticket, event.reason)

    def _take_pages(self, pages: PagesArrived) -> None:
        parked = self._fetches.get(pages.pages.ticket)
        if parked is None:
            return  # the pages came too late
        if reason := self._wrong(parked, pages.pages, pages.rows):
            self._fail(pages.pages.ticket, reason)
            return
        self._over(pages.pages.ticket)
        self._staged += parked.nbytes  # until it is in KV memory
        parked.arrived = pages
        self._arrived.append(parked)

    def _wrong(self, parked: _Parked, pages: PagesFrame, rows: Tensor) -> str:
        """Return why the pages that came are not the requested ones; "" if they are."""
        ledger = self._exchange.kv_cache_manager
        most = ledger.max_cached_prefix(parked.request.prompt_length)
        if (
            not parked.have < pages.positions <= most
            or ledger.max_cached_prefix(pages.positions + 2) != pages.positions
        ):
            return f"it sent pages of {pages.positions} positions, which this engine did not request"
        places = self._exchange.missing_pages(parked.have, pages.positions)
        if [PageLocation(group, entry) for group, entry, _ in pages.names] != places or len(rows) != len(places):
            return "it sent other pages than this engine requested"
        if any(digest != self._exchange.digest(parked.keys, PageLocation(*at)) for *at, digest in pages.names):
            return "the digests of its pages differ: it has another adapter of that name, or another prompt"
        return ""

    def _over(self, ticket: int) -> _Parked:
        """Stop waiting for the pages of a request, and return it."""
        parked = self._fetches.pop(ticket)
        self._staged -= parked.nbytes
        assert parked.peer is not None
        parked.peer.under_way -= parked.request.prompt_length - parked.have
        return parked

    def _fail(self, ticket: int, reason: str) -> None:
        """Start a request whose pages do not come, so that this engine computes its prompt, and report why."""
        parked = self._over(ticket)
        assert parked.peer is not None
        self._send_event(Transferred(parked.peer.address, reason=reason))
        self._engine.begin(parked.request.group)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Request pages of prompts as long as there is room for them, each from the producer with the least work."""
        while self._unasked:
            up = [peer for peer in self.peers if peer.curve is not None]
            parked = self._unasked[0]
            if not up:
                self._engine.begin(self._unasked.popleft().request.group)
                continue
            if self._staged and self._staged + parked.nbytes > self._most_staged:
                return
            self._unasked.popleft()
            peer, ticket = min(up, key=lambda each: each.under_way), next(self._tickets)
            parked.peer, parked.asked_at = peer, time.monotonic()
            peer.under_way += parked.request.prompt_length - parked.have
            self._staged += parked.nbytes
            self._fetches[ticket] = parked
            # The consumer samples the response itself.
            unsampled = structs.replace(parked.request.spec, params=DEFAULT_PARAMS)
            peer.send(Prefill(ticket, parked.have, unsampled))

    def _begin(self) -> None:
        """Start requests whose pages have come, in order, as long as there is room for them.

        The pages enter KV memory only now: until a request runs, its cached prefix may be evicted for the running ones.
        """
        while self._arrived and self._has_room(self._arrived[0].request):
            parked = self._arrived.popleft()
            arrived, peer = parked.arrived, parked.peer
            assert arrived is not None
            assert peer is not None
            self._staged -= parked.nbytes
            places = self._exchange.missing_pages(parked.have, arrived.pages.positions)
            if self._exchange.import_pages(parked.keys, parked.have, places, arrived.rows):
                predicted = None if peer.curve is None else peer.curve.at(arrived.rows.nbytes)
                positions, waited = arrived.pages.positions - parked.have, time.monotonic() - parked.asked_at
                details = (positions, arrived.rows.nbytes, arrived.seconds, predicted, waited)
                self._send_event(Transferred(peer.address, *details))
            else:
                self._send_event(Transferred(peer.address, reason="the KV cache has no room for its pages"))
            self._engine.begin(parked.request.group)

    def _has_room(self, request: Request) -> bool:
        """Return whether a request fits next to those that run or are queued; a single one always does."""
        scheduler, ledger = self._engine.scheduler, self._exchange.kv_cache_manager
        if not (scheduler.running or scheduler.waiting):
            return True
        if len(scheduler.running) + len(scheduler.waiting) >= scheduler.limits.requests:
            return False
        queued = (request, *scheduler.waiting)
        wanted = sum(ledger.layout.kept(each.known, min(each.known, ledger.chunk)) for each in queued)
        return wanted + ledger.reserve <= ledger.pool.available
