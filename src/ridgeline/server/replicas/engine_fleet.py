"""A fleet of engines that a service uses like one `AsyncLLM`; a router picks the engine of each request.

If an engine dies before a request's first event, another engine runs the request. The router sees the current load,
because all requests pass through here. The routers are the same as in `simulate` (insight/traffic/routers.py).
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from itertools import zip_longest

import msgspec

from ridgeline.engine.async_llm import AsyncLLM, EngineDied, EngineRestarting, EventCallback, StepObserver
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_messages import EngineInfo, StepReport
from ridgeline.insight.traffic.routers import REQUEST_TOKENS, ReplicaRouter, Signal
from ridgeline.insight.traffic.workload_trace import TraceRequest


@dataclass(eq=False, slots=True)
class EngineReplica:
    """One engine of a fleet, with the requests that it runs."""

    number: int
    """The number of the replica, which the engine's request numbers contain."""
    llm: AsyncLLM
    where: Callable[[], str] = str
    """The function that describes in words where the engine runs."""
    taking: bool = True
    """Whether the replica accepts new requests."""
    live: "dict[_RoutedRequest, None]" = field(default_factory=dict)
    """The requests that the replica runs."""
    load: int = 0
    """The total load of the replica's requests, in tokens as the router counts them."""

    @property
    def state(self) -> str:
        """The state of the replica: ready, restarting, or draining (it finishes its requests and is then removed)."""
        return "draining" if not self.taking else "ready" if self.llm.alive else "restarting"


_SUMMED = ("requests", "pages", "concurrency", "weight_bytes", "kv_bytes")
"""The fields of `EngineInfo` that are summed over replicas."""


class EngineFleet:
    """Several engines of one model with the interface of `AsyncLLM`.

    Members with the same meaning as in `AsyncLLM` are documented there. `retried` counts requests that were lost with
    an engine and given to another. `changed` holds callbacks for when a replica is added or removed.
    """

    def __init__(self, replicas: Iterable[EngineReplica], new_router: Callable[[], ReplicaRouter]) -> None:
        """Create a fleet of these replicas.

        Args:
            replicas: The initial replicas.
            new_router: Returns a router for the present replicas; called again when they change, because a router knows
                replicas by their positions.
        """
        self._new_router, self._router = new_router, new_router()
        self.replicas: dict[int, EngineReplica] = {}
        self.observers: list[StepObserver] = []
        self.changed: list[Callable[[], None]] = []
        self.ended: Future[str] = Future()
        self.retried = 0
        self._taking: list[EngineReplica] = []
        self._waiting: dict[_RoutedRequest, None] = {}
        self._gone = 0  # the messages of removed engines
        self.page_size = 0
        for each in replicas:
            self.add(each)

    # -- members ------------------------------------------------------------------------------------------------------

    def add(self, replica: EngineReplica) -> None:
        """Add a replica to the fleet, which accepts requests from now on."""
        self.replicas[replica.number] = replica
        self.page_size = replica.llm.info.page_size
        replica.llm.observers.append(self._stepped)
        self.deal()
        self._say_changed()

    def remove(self, replica: EngineReplica) -> None:
        """Remove a replica without requests in progress from the fleet."""
        assert not replica.live, "a replica with unfinished requests must not be removed"
        del self.replicas[replica.number]
        self._gone += replica.llm.messages_received
        self.deal()
        self._say_changed()

    def deal(self) -> None:
        """Route the requests that wait for a replica, if one accepts requests now."""
        while self._waiting and self._dealt_to():
            sent = next(iter(self._waiting))
            del self._waiting[sent]
            sent.again(self.choose(sent))

    def _say_changed(self) -> None:
        for observer in self.changed:
            observer()

    # -- the interface of AsyncLLM ------------------------------------------------------------------------------------

    @property
    def _first(self) -> AsyncLLM:
        return next(iter(self.replicas.values())).llm

    @property
    def texts(self) -> TextProcessor:
        """The tokenizer and chat templates of the model."""
        return self._first.texts

    @property
    def info(self) -> EngineInfo:
        """The description of one engine, with the fields in `_SUMMED` (capacities and bytes) summed over all."""
        infos = [each.llm.info for each in self.replicas.values()]
        return msgspec.structs.replace(
            infos[0],
            **{name: sum(getattr(info, name) for info in infos) for name in _SUMMED},
            replicas=len(infos),
        )

    @property
    def stats(self) -> Stats:
        """The sums of the engines' statistics."""
        return sum_stats([each.llm.stats for each in self.replicas.values()])

    @property
    def alive(self) -> bool:
        """Whether at least one replica accepts requests."""
        return any(each.taking and each.llm.alive for each in self.replicas.values())

    @property
    def under_way(self) -> int:
        """The number of requests that run on a replica or wait for one."""
        return sum(len(each.live) for each in self.replicas.values()) + len(self._waiting)

    @property
    def messages_received(self) -> int:
        """The number of messages from all engines, including removed ones."""
        return self._gone + sum(each.llm.messages_received for each in self.replicas.values())

    @property
    def num_awaited(self) -> int:
        """Always 0, so that the health monitor does not end the server for one engine that hangs.

        replica_supervisor.py ends that engine instead.
        """
        return 0

    @property
    def restarts(self) -> int:
        """The number of restarts of all engines."""
        return sum(each.llm.restarts for each in self.replicas.values())

    def submit(
        self,
        spec: GenerationRequest,
        take: EventCallback,
        *,
        added: Callable[[int], None] | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Submit a request to a replica, as `AsyncLLM.submit` does, and return a function that aborts it.

        A request whose engine dies before its first event is retried once on another engine; if none is available, it
        waits for one to restart.

        Args:
            spec: The request.
            take: Called with each event, or with the exception that ends the request.
            added: Called with the engine's number for the request; again after a retry.
            begun: Called just before the first step of the request; again after a retry.

        Raises:
            ValueError: If the request cannot run.
            EngineRestarting: If no replica accepts requests.
        """
        self.texts.check_request(spec)
        sent = _RoutedRequest(self, spec, take, added, begun)
        if not self._dealt_to():
            raise EngineRestarting("all engines are restarting")
        sent.to(self.choose(sent))
        return sent.leave

    async def inspect(self, question: bytes) -> bytes:
        """Return the answer of one living engine's inspector to a question about the model."""
        found = next((each.llm for each in self.replicas.values() if each.llm.alive), self._first)
        return await found.inspect(question)

    # -- requests -----------------------------------------------------------------------------------------------------

    def choose(self, sent: "_RoutedRequest") -> EngineReplica:
        """Return the replica for a request, chosen by the router among those that accept requests."""
        among = self._dealt_to()
        if len(among) == 1:
            return among[0]
        return among[self._router.choose(sent.request, [Signal(each.load) for each in among])]

    def _dealt_to(self) -> list[EngineReplica]:
        """Return the replicas that accept requests now; create a new router if they have changed."""
        taking = [each for each in self.replicas.values() if each.taking and each.llm.alive]
        if taking != self._taking:
            self._taking, self._router = taking, self._new_router()
        return taking

    def lost(self, sent: "_RoutedRequest") -> None:
        """Route a request to another engine, now or later, after its own died before the first event."""
        self.retried += 1
        if self._dealt_to():
            sent.again(self.choose(sent))
        else:
            self._waiting[sent] = None

    def forget(self, sent: "_RoutedRequest") -> None:
        """Drop a request that waits for a replica."""
        self._waiting.pop(sent, None)

    def _stepped(self, report: StepReport, stats: Stats) -> None:
        for observer in self.observers:
            observer(report, stats)


class _RoutedRequest:
    """A request together with the replica that runs it."""

    def __init__(
        self,
        fleet: EngineFleet,
        spec: GenerationRequest,
        take: EventCallback,
        added: Callable[[int], None] | None,
        begun: Callable[[], None] | None,
    ) -> None:
        """Prepare a request without a replica; all arguments but `fleet` are those of `AsyncLLM.submit`."""
        self._fleet, self._spec, self._take, self._added, self._begun = fleet, spec, take, added, begun
        self._unfinished = spec.params.n  # choices without an end
        self._replica: EngineReplica | None = None
        self._leave: Callable[[], None] | None = None
        self._was_reported = self._again = False
        self.load = len(spec.prompt) + REQUEST_TOKENS * self._unfinished

    @property
    def request(self) -> TraceRequest:
        """The request as a router sees it: its length, and a hash of its first page with its cache namespace.

        A prompt that does not fill a page has no hash.
        """
        page = self._fleet.page_size
        first = self._spec.prompt[:page]
        name = hashlib.blake2b(self._spec.cache_namespace + array("q", first).tobytes(), digest_size=8).hexdigest()
        return TraceRequest(0, len(self._spec.prompt), 0, (name,) if len(first) == page else (), page)

    def to(self, replica: EngineReplica) -> None:
        """Submit the request to a replica; it raises the errors of `AsyncLLM.submit`."""
        self._replica = replica
        replica.live[self] = None
        replica.load += self.load
        try:
            self._leave = replica.llm.submit(self._spec, self._on_event, added=self._added, begun=self._begun)
        except BaseException:
            self._over()
            raise

    def again(self, replica: EngineReplica) -> None:
        """Submit the request to another replica after its engine died; an error goes to the request's `take`."""
        try:
            self.to(replica)
        except (ValueError, RuntimeError) as error:
            self._take(error)

    def leave(self) -> None:
        """Abort the request, whether it runs on a replica or waits for one."""
        self._fleet.forget(self)
        self._over()
        if self._leave is not None:
            self._leave()

    def _on_event(self, event: Event | Exception) -> None:
        if isinstance(event, Exception):
            self._over()
            if isinstance(event, EngineDied) and not (self._was_reported or self._again):
                self._again, self._leave = True, None
                self._fleet.lost(self)
                return
        else:
            self._was_reported = True
            self._unfinished -= event.finish is not None
            if not self._unfinished:
                self._over()
        self._take(event)

    def _over(self) -> None:
        """Remove the request from its replica's list and load."""
        if self._replica is not None:
            del self._replica.live[self]
            self._replica.load -= self.load
            self._replica = None


def sum_stats(stats: Sequence[Stats]) -> Stats:
    """Return the sum of the statistics of several engines."""
    names = [f.name for f in fields(Stats) if f.name != "accepted_at"]
    accepted_at = map(sum, zip_longest(*(each.accepted_at for each in stats), fillvalue=0))
    return Stats(**{name: sum(getattr(each, name) for each in stats) for name in names}, accepted_at=tuple(accepted_at))
