"""The consumer: has prompts computed by other engines, and goes on with their pages. What it does not get in time, or
cannot read, it computes itself.

A request waits parked (Engine.add) for its pages. They become a cached prefix when there is room for the request, and
it begins as any request does that finds its prefix: the last page of its prompt runs here, with its first token.
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
"""Of the bytes of KV memory: those that may be on their way at a time, beside it. One prompt always may."""
_FIRST_TRY = 3.0  # seconds for engines to be found before requests are taken


@dataclass(eq=False, slots=True)
class _Parked:
    """A request that waits for pages. have: positions that are here. nbytes: of those that are to come. peer: who was
    asked, when (by the monotonic clock); None before. arrived: what came.
    """

    request: Request
    keys: list[PageKey]
    have: int
    nbytes: int
    peer: Peer | None = None
    asked: float = 0.0
    arrived: PagesArrived | None = None


class Consumer:
    """Beside an engine's loop, which calls `poll` before a step. All but `_hear` runs in the engine's thread."""

    def __init__(
        self,
        engine: Engine,
        exchange: PageExchange,
        identity: Identity,
        transfer: KVTransfer,
        tell: Callable[[FromEngine], None],
        wake: Callable[[], None],
    ) -> None:
        """tell: takes what is to be said of transfers. wake: as Producer."""
        self._engine, self._exchange, self._identity = engine, exchange, identity
        self._timeout, self._tell, self._wake = transfer.timeout, tell, wake
        self._heard: queue.SimpleQueue[tuple[Peer, PeerEvent]] = queue.SimpleQueue()
        self._tickets = count(1)
        self._unasked: deque[_Parked] = deque()
        self._asked: dict[int, _Parked] = {}
        self._arrived: deque[_Parked] = deque()
        self._down: dict[Peer, str] = {}  # why, as it was told
        self._most_staged = _STAGED_SHARE * exchange.kv_cache_manager.layout.nbytes
        self._staged = 0
        most = exchange.kv_cache_manager.pool.size
        self._threads = ConnectionThreads()
        self.peers = [Peer(each, identity, transfer, most, self._hear, self._threads) for each in transfer.peers]
        end = time.monotonic() + _FIRST_TRY
        for peer in self.peers:
            peer.tried.wait(max(0.0, end - time.monotonic()))
        self.poll()

    def _hear(self, peer: Peer, heard: PeerEvent) -> None:
        """In the thread of a peer."""
        self._heard.put((peer, heard))
        self._wake()

    def add(self, request: Request) -> None:
        """A parked request has come: have its prompt computed elsewhere, or begin it."""
        ledger, length = self._exchange.kv_cache_manager, request.prompt_length
        most = ledger.findable(length)
        if not request.uses_prefix_cache or not any(peer.curve for peer in self.peers) or not most:
            self._engine.begin(request.group)
            return
        keys = self._exchange.keys(request)
        have = self._exchange.found(keys, length)
        nbytes = len(self._exchange.places(have, most)) * self._identity.page_bytes if most > have else 0
        if not nbytes:
            self._engine.begin(request.group)
            return
        self._unasked.append(_Parked(request, keys, have, nbytes))
        self._ask()

    def forget(self, group: int) -> None:
        """A request has ended; nothing where it is not parked."""
        for ticket, parked in list(self._asked.items()):
            if parked.request.group == group:
                self._over(ticket)
                if parked.peer is not None:
                    parked.peer.put(Cancel(ticket))
        for waiting in (self._unasked, self._arrived):
            for parked in [each for each in waiting if each.request.group == group]:
                waiting.remove(parked)
                if parked.arrived is not None:
                    self._staged -= parked.nbytes

    def poll(self) -> None:
        """Take what has come, ask for what may be asked for, begin what need not wait any longer."""
        while not self._heard.empty():
            self._take(*self._heard.get())
        if not (self._unasked or self._asked or self._arrived):
            return
        now = time.monotonic()
        late = [ticket for ticket, parked in self._asked.items() if now - parked.asked > self._timeout]
        for ticket in late:
            peer, asked = self._asked[ticket].peer, self._asked[ticket].asked
            assert peer is not None
            self._fail(ticket, f"no pages within {self._timeout:g} s")
            peer.put(Cancel(ticket))
            if peer.delivered < asked:  # it sends nothing at all: do not let the others wait as long
                peer.hang_up()
        self._begin()
        self._ask()

    def close(self) -> None:
        """End all connections."""
        for peer in self.peers:
            peer.close()
        self._threads.join()

    # -- what peers say ------------------------------------------------------------------------------------------------

    def _take(self, peer: Peer, heard: PeerEvent) -> None:
        if isinstance(heard, PeerOnline):
            peer.curve = heard.curve
            self._down.pop(peer, None)
            nbytes, seconds = heard.curve.nbytes[-1], heard.curve.seconds[-1]
            self._tell(PeerChanged(peer.address, True, f"{nbytes / seconds / 1e9:.3g} GB/s"))
        elif isinstance(heard, PeerOffline):
            if self._down.get(peer) != heard.reason:
                self._tell(PeerChanged(peer.address, False, heard.reason))
            peer.curve, self._down[peer] = None, heard.reason
            for ticket in [ticket for ticket, parked in self._asked.items() if parked.peer is peer]:
                self._fail(ticket, heard.reason)
        elif isinstance(heard, PagesArrived):
            peer.delivered = time.monotonic()
            self._take_pages(heard)
        elif isinstance(heard, Declined) and heard.ticket in self._asked:
            self._fail(heard.ticket, heard.reason)

    def _take_pages(self, heard: PagesArrived) -> None:
        parked = self._asked.get(heard.pages.ticket)
        if parked is None:
            return  # it came too late
        if reason := self._wrong(parked, heard.pages, heard.rows):
            self._fail(heard.pages.ticket, reason)
            return
        self._over(heard.pages.ticket)
        self._staged += parked.nbytes  # until it is in KV memory
        parked.arrived = heard
        self._arrived.append(parked)

    def _wrong(self, parked: _Parked, pages: PagesFrame, rows: Tensor) -> str:
        """Why pages are not those that were asked for, "" where they are."""
        ledger = self._exchange.kv_cache_manager
        most = ledger.findable(parked.request.prompt_length)
        if not parked.have < pages.positions <= most or ledger.findable(pages.positions + 2) != pages.positions:
            return f"pages of {pages.positions} positions came, which nobody asked for"
        places = self._exchange.places(parked.have, pages.positions)
        if [PageLocation(group, entry) for group, entry, _ in pages.names] != places or len(rows) != len(places):
            return "other pages came than were asked for"
        if any(digest != self._exchange.digest(parked.keys, PageLocation(*at)) for *at, digest in pages.names):
            return "its pages have other names: it has another adapter of that name, or another prompt"
        return ""

    def _over(self, ticket: int) -> _Parked:
        """A request that was asked for is not waited for any more."""
        parked = self._asked.pop(ticket)
        self._staged -= parked.nbytes
        assert parked.peer is not None
        parked.peer.under_way -= parked.request.prompt_length - parked.have
        return parked

    def _fail(self, ticket: int, reason: str) -> None:
        """No pages come: compute it here, and say so."""
        parked = self._over(ticket)
        assert parked.peer is not None
        self._tell(Transferred(parked.peer.address, reason=reason))
        self._engine.begin(parked.request.group)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for prompts, as far as there is room for what comes: each of the peer that has the least to do."""
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
            parked.peer, parked.asked = peer, time.monotonic()
            peer.under_way += parked.request.prompt_length - parked.have
            self._staged += parked.nbytes
            self._asked[ticket] = parked
            # The consumer samples the response itself.
            unsampled = structs.replace(parked.request.spec, params=DEFAULT_PARAMS)
            peer.put(Prefill(ticket, parked.have, unsampled))

    def _begin(self) -> None:
        """Begin requests whose pages are here, in the order in which they came, as long as there is room for them: what
        lies in KV memory and is nobody's is evicted for those that run.
        """
        while self._arrived and self._has_room(self._arrived[0].request):
            parked = self._arrived.popleft()
            arrived, peer = parked.arrived, parked.peer
            assert arrived is not None
            assert peer is not None
            self._staged -= parked.nbytes
            places = self._exchange.places(parked.have, arrived.pages.positions)
            if self._exchange.take(parked.keys, parked.have, places, arrived.rows):
                predicted = None if peer.curve is None else peer.curve.at(arrived.rows.nbytes)
                positions, waited = arrived.pages.positions - parked.have, time.monotonic() - parked.asked
                said = (positions, arrived.rows.nbytes, arrived.seconds, predicted, waited)
                self._tell(Transferred(peer.address, *said))
            else:
                self._tell(Transferred(peer.address, reason="KV memory has no room for its pages"))
            self._engine.begin(parked.request.group)

    def _has_room(self, request: Request) -> bool:
        """Whether a request could begin beside those that run and those before it; one alone always may."""
        scheduler, ledger = self._engine.scheduler, self._exchange.kv_cache_manager
        if not (scheduler.running or scheduler.waiting):
            return True
        if len(scheduler.running) + len(scheduler.waiting) >= scheduler.limits.requests:
            return False
        queued = (request, *scheduler.waiting)
        wanted = sum(ledger.layout.kept(each.known, min(each.known, ledger.chunk)) for each in queued)
        return wanted + ledger.reserve <= ledger.pool.available
