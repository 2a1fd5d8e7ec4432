"""What watches the engines of a fleet: the metrics of each under its own label, its log line, its live state, and what
all of them do together.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import override

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.events import Event, Stats
from ridgeline.engine.worker.engine_messages import replica_of
from ridgeline.server.app import json_response
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.event_stream import EventStreamResponse
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.replicas.engine_fleet import EngineFleet, EngineReplica
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.server.telemetry.engine_metrics import EngineMetrics
from ridgeline.server.telemetry.live_state import EVENTS, STATE, LiveState
from ridgeline.server.telemetry.metric_families import FLEET_FAMILIES, REPLICA_STATES
from ridgeline.server.telemetry.throughput import ThroughputLog
from ridgeline.server.telemetry.transfers import TransferLog

ROUTE = "/v1/replicas"

logger = logging.getLogger("ridgeline.server")


class FleetMetrics(EngineMetrics):
    """Those of the first replica, which tell of the fleet and of HTTP requests as well."""

    def __init__(
        self, llm: AsyncLLM, model: str, fleet: EngineFleet, starting: Callable[[], int], alias: str | None
    ) -> None:
        """starting: how many replicas take no requests yet."""
        super().__init__(llm, model, alias=alias, more=FLEET_FAMILIES)
        self._fleet, self._starting, self._retried = fleet, starting, 0
        self._one("requests_retried")

    @override
    def refresh(self) -> None:
        super().refresh()
        states = [each.state for each in self._fleet.replicas.values()]
        for state in REPLICA_STATES:
            self._one("replicas", state).set(states.count(state) if state != "starting" else self._starting())
        self._one("requests_retried").inc(self._fleet.retried - self._retried)
        self._retried = self._fleet.retried


class _ReplicaMonitor:
    """What watches one replica, and the next one of its number."""

    def __init__(
        self, metrics: EngineMetrics, replica: EngineReplica, service: Service, settings: ServerSettings
    ) -> None:
        priced = bool(settings.priced)
        self.metrics, self.throughput = metrics, ThroughputLog(replica.llm, replica.number, priced=priced)
        self.observers: tuple[EngineMetrics, ThroughputLog] = (metrics, self.throughput)
        self._service, self._transfers = service, TransferLog(metrics)
        self.follow(replica)

    def follow(self, replica: EngineReplica) -> None:
        """Watch this one from now on."""
        for observer in self.observers:
            observer.follow(replica.llm)
        self._transfers.follow(replica.llm)
        self.live_state = LiveState(self._service, replica.llm, replica.number)
        replica.llm.observers += [self.live_state.stepped, self.metrics.stepped, self.throughput.stepped]


class FleetMonitor:
    """Watches the engines of a fleet (telemetry/observability.py: a Watching), and is the Observer that tells each
    replica's counts of its own requests.
    """

    def __init__(
        self, service: Service, fleet: EngineFleet, settings: ServerSettings, model: str, starting: Callable[[], int]
    ) -> None:
        """starting: how many replicas take no requests yet."""
        self._service, self._fleet, self._settings, self._model = service, fleet, settings, model
        first = fleet.replicas[0]
        self.metrics: EngineMetrics = FleetMetrics(first.llm, model, fleet, starting, settings.metrics_alias)
        self._of: dict[int, _ReplicaMonitor] = {0: _ReplicaMonitor(self.metrics, first, service, settings)}
        self._known = {0: first}
        self._where: dict[InFlightRequest, _ReplicaMonitor] = {}
        service.observers.append(self)
        fleet.changed.append(self._changed)
        self._changed()

    def _changed(self) -> None:
        """Follow replicas that have come, leave those that have gone. A number's counts stay for its next replica."""
        replicas = self._fleet.replicas
        for number in self._known.keys() - replicas.keys():
            self._of[number].live_state.close()
            self._of[number].metrics.leave()
        for number, replica in replicas.items():
            if self._known.get(number) is replica:
                continue
            if number in self._of:
                self._of[number].follow(replica)
            else:
                alias = self._settings.metrics_alias
                metrics = EngineMetrics(replica.llm, self._model, alias=alias, engine=number)
                self._of[number] = _ReplicaMonitor(metrics, replica, self._service, self._settings)
        self._known = dict(replicas)
        others = [self._of[number].metrics for number in sorted(replicas) if number]
        own = [each.metrics for each in self._of.values()]
        self.metrics.beside = others + [each for each in self.metrics.beside if each not in own]

    # -- requests: an Observer ----------------------------------------------------------------------------------------

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Count a request that was refused before it came to a replica."""
        self.metrics.refused(live, error)

    def arrived(self, live: InFlightRequest) -> None:
        """Nothing: it has no replica yet."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Count an event under the replica that has the request."""
        for observer in self._counting(live).observers:
            observer.event(live, event)

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Count its end under its replica, or under the first one where it came to none."""
        watching = self._counting(live)
        del self._where[live]
        for observer in watching.observers:
            observer.ended(live, error)

    def _counting(self, live: InFlightRequest) -> _ReplicaMonitor:
        """What counts a request: where its first event came from, as nothing is retried after that."""
        found = self._where.get(live)
        if found is None:
            found = self._of[0 if live.request is None else replica_of(live.request)]
            self._where[live] = found
            for observer in found.observers:
                observer.arrived(live)
        return found

    # -- a Watching ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """As Watching: says what the first one has room for, as the others have the same."""
        logger.info("of each of %d replicas:", len(self._fleet.replicas))
        self._of[0].throughput.begin()

    def say(self, seconds: float) -> None:
        """As Watching: a line for each replica that did something."""
        for number in list(self._fleet.replicas):
            self._of[number].throughput.say(seconds)

    def close(self) -> None:
        """As Watching."""
        for each in self._of.values():
            each.live_state.close()

    def routes(self) -> list[Route]:
        """The live state of one replica (`?replica=N`, the first that is there by default), and what all do."""
        return [
            Route(STATE, self._state, methods=["GET"]),
            Route(EVENTS, self._events, methods=["GET"]),
            Route(ROUTE, self._replicas, methods=["GET"]),
        ]

    async def _state(self, request: Request) -> Response:
        return await self._asked(request).live_state.state(request)

    async def _events(self, request: Request) -> EventStreamResponse:
        return await self._asked(request).live_state.events(request)

    def _asked(self, request: Request) -> _ReplicaMonitor:
        replicas = self._fleet.replicas
        stated = request.query_params.get("replica", str(min(replicas)))
        found = {str(number): number for number in replicas}.get(stated)
        if found is None:
            raise invalid(f"replica: there are {', '.join(map(str, sorted(replicas)))}; ask for one of them", "replica")
        return self._of[found]

    async def _replicas(self, request: Request) -> Response:
        """/v1/replicas"""
        each = [_told(replica) for _, replica in sorted(self._fleet.replicas.items())]
        retried = self._fleet.retried
        return json_response({"replicas": each, "retried": retried, "sum": asdict(self._fleet.stats)})


def _told(replica: EngineReplica) -> dict[str, object]:
    """A replica as JSON has it. load: what a router counts its requests for; stats: what its engine did since it was
    started last.
    """
    stats: Stats = replica.llm.stats
    return {
        "replica": replica.number,
        "state": replica.state,
        "where": replica.where(),
        "under_way": len(replica.live),
        "load": replica.load,
        "restarts": replica.llm.restarts,
        "stats": asdict(stats),
    }
