"""The monitoring of a fleet: metrics per replica, log lines, live state, and totals over all replicas."""

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
    """The metrics of the first replica, which also include those of the fleet and of HTTP requests."""

    def __init__(
        self, llm: AsyncLLM, model: str, fleet: EngineFleet, starting: Callable[[], int], alias: str | None
    ) -> None:
        """Create the metrics of a fleet at 0.

        Args:
            llm: The engine of the first replica.
            model: The model name in responses.
            fleet: The replicas.
            starting: Returns the number of replicas that are still starting.
            alias: The prefix for vLLM's metric names; None for none.
        """
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
    """The monitoring of one replica, and later of its successor with the same number."""

    def __init__(
        self, metrics: EngineMetrics, replica: EngineReplica, service: Service, settings: ServerSettings
    ) -> None:
        priced = bool(settings.priced)
        self.metrics, self.throughput = metrics, ThroughputLog(replica.llm, replica.number, priced=priced)
        self.observers: tuple[EngineMetrics, ThroughputLog] = (metrics, self.throughput)
        self._service, self._transfers = service, TransferLog(metrics)
        self.follow(replica)

    def follow(self, replica: EngineReplica) -> None:
        """Monitor this replica from now on."""
        for observer in self.observers:
            observer.follow(replica.llm)
        self._transfers.follow(replica.llm)
        self.live_state = LiveState(self._service, replica.llm, replica.number)
        replica.llm.observers += [self.live_state.stepped, self.metrics.stepped, self.throughput.stepped]


class FleetMonitor:
    """The monitor of a fleet's engines, which also observes requests to count each under its replica."""

    def __init__(
        self, service: Service, fleet: EngineFleet, settings: ServerSettings, model: str, starting: Callable[[], int]
    ) -> None:
        """Monitor the replicas of a fleet from now on.

        Args:
            service: The service whose requests are counted.
            fleet: The replicas.
            settings: The settings of the server.
            model: The model name in responses.
            starting: Returns the number of replicas that are still starting.
        """
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
        """Follow replicas that were added, and leave removed ones; a successor continues the counts of its number."""
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
        self.metrics.others = others + [each for each in self.metrics.others if each not in own]

    # -- requests: Observer -------------------------------------------------------------------------------------------

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Record a request that was rejected before it reached a replica."""
        self.metrics.refused(live, error)

    def arrived(self, live: InFlightRequest) -> None:
        """Record nothing for a new request, because it has no replica yet to count it under."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Record an event under the replica that runs the request."""
        for observer in self._counting(live).observers:
            observer.event(live, event)

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Record the end of a request under its replica, or under the first if it never reached one."""
        watching = self._counting(live)
        del self._where[live]
        for observer in watching.observers:
            observer.ended(live, error)

    def _counting(self, live: InFlightRequest) -> _ReplicaMonitor:
        """Return the monitor of the replica that sent a request's first event.

        That replica does not change afterwards, because a request is never retried after its first event.
        """
        found = self._where.get(live)
        if found is None:
            found = self._of[0 if live.request is None else replica_of(live.request)]
            self._where[live] = found
            for observer in found.observers:
                observer.arrived(live)
        return found

    # -- EngineMonitor ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Log the capacity of the first replica, because all have the same."""
        logger.info("capacity of each of the %d replicas:", len(self._fleet.replicas))
        self._of[0].throughput.begin()

    def say(self, seconds: float) -> None:
        """Log a throughput line for each replica, unless it was idle in this interval and the one before."""
        for number in list(self._fleet.replicas):
            self._of[number].throughput.say(seconds)

    def close(self) -> None:
        """End the live-state streams of all replicas."""
        for each in self._of.values():
            each.live_state.close()

    def routes(self) -> list[Route]:
        """Return the routes for the live state of a replica and for /v1/replicas.

        The query parameter `replica` selects the replica; the default is the one with the lowest number.
        """
        return [
            Route(STATE, self._state, methods=["GET"]),
            Route(EVENTS, self._events, methods=["GET"]),
            Route(ROUTE, self._replicas, methods=["GET"]),
        ]

    async def _state(self, request: Request) -> Response:
        return await self._requested_replica(request).live_state.state(request)

    async def _events(self, request: Request) -> EventStreamResponse:
        return await self._requested_replica(request).live_state.events(request)

    def _requested_replica(self, request: Request) -> _ReplicaMonitor:
        replicas = self._fleet.replicas
        stated = request.query_params.get("replica", str(min(replicas)))
        found = {str(number): number for number in replicas}.get(stated)
        if found is None:
            raise invalid(
                f"replica: this server has the replicas {', '.join(map(str, sorted(replicas)))}: give one of them",
                "replica",
            )
        return self._of[found]

    async def _replicas(self, request: Request) -> Response:
        """Handle GET /v1/replicas: return the state of each replica and the sums of their statistics."""
        each = [_replica_json(replica) for _, replica in sorted(self._fleet.replicas.items())]
        retried = self._fleet.retried
        return json_response({"replicas": each, "retried": retried, "sum": asdict(self._fleet.stats)})


def _replica_json(replica: EngineReplica) -> dict[str, object]:
    """Return the JSON object that describes a replica.

    `load` is the sum of what a router counts for its requests; `stats` covers the time since its engine last started.
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
