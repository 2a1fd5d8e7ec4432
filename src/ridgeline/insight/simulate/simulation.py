"""The event loop of a simulation, in which requests arrive and are routed to replicas, and steps start and end.

Events at one time are processed in a fixed order: steps end, KV transfers complete, replicas become ready, requests
that the API server has parsed are routed, requests arrive, steps start. A request that arrives during a step therefore
waits for the next one, as on a server that reads its messages between steps. The load that replicas publish at
intervals, and what the autoscaler sees, is from before these events. Requests that arrive together keep their order,
and so do replicas. Nothing depends on wall time, hashes or the order of a set, so equal input gives equal logs.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from ridgeline.engine.events import TokenEvent
from ridgeline.engine.request import FinishReason
from ridgeline.insight.simulate.kv_transfer import SimulatedKVTransfer
from ridgeline.insight.simulate.replica import Machine, PromptBuilder, SimulatedReplica, StepPricer
from ridgeline.insight.simulate.replica_state import NO_MOMENT, ReplicaState, SimulatedRequest, lives
from ridgeline.insight.simulate.run_log import NEVER, OUTCOMES, RunLog, RunTotals
from ridgeline.insight.simulate.serving_overhead import ApiServerCore
from ridgeline.insight.simulate.simulated_clock import SimulatedClock
from ridgeline.insight.simulate.simulated_fleet import ALONE, SimulatedFleet
from ridgeline.insight.traffic.offered import Offered
from ridgeline.insight.traffic.routers import REQUEST_TOKENS, ReplicaRouter, Signal, router_named
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.insight.traffic.workload_trace import TraceRequest

Watch = Callable[[RunLog], None]
"""A function that is called with the log from time to time, to show progress."""

_STEPS_BETWEEN = 256  # the number of steps between two calls of the watch
_STEP, _SENT, _UP, _READ = range(4)  # the kinds of events, in their order at one time


class Autoscaler:
    """An autoscaler that starts and stops replicas of a simulated fleet at regular checks.

    `next` is the time of its next check; `start_up` is the nanoseconds until a replica that it starts accepts requests.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling, self.next, self.start_up = scaling, scaling.period, scaling.start_up
        self._changed = 0  # when a replica was last started or stopped

    def check(self, replicas: Iterable[ReplicaState]) -> int:
        """Return how many replicas to start at this check, or -1 to stop one."""
        now, self.next = self.next, self.next + self._scaling.period
        there = [each for each in replicas if each.until is None]
        taking = sum(each.accepts_requests for each in there)
        starting = sum(each.is_starting(self.start_up, now) for each in there)
        change = self._scaling.change(sum(len(each.live) for each in there), taking, starting, now - self._changed)
        if change:
            self._changed = now
        return change


def run(
    machine: Machine, offered: Offered, factor: float = 1.0, watch: Watch | None = None, fleet: SimulatedFleet = ALONE
) -> RunLog:
    """Simulate replicas of a machine until all offered requests have ended, and return the log.

    Args:
        machine: The machine of each replica.
        offered: The traffic.
        factor: Multiplies the price of each step, the host overhead and the API server's costs.
        watch: Called with the log from time to time.
        fleet: The replicas and their routing.

    Raises:
        ValueError: If the router is unknown, or if the requests have too many classes.
    """
    return _Simulation(machine, offered, factor, fleet).run(watch)


class _Simulation:
    def __init__(self, machine: Machine, offered: Offered, factor: float, fleet: SimulatedFleet) -> None:
        self.clock, self.prompts, self.factor = SimulatedClock(), PromptBuilder(), factor
        self.machine, self.offered, self.fleet = machine, offered, fleet
        self.replicas = [ReplicaState(self._replica(each)) for each in fleet.machines(machine)]
        self.log = RunLog(len(self.replicas))
        self.happens: list[tuple[int, int, int]] = []  # time, kind, and replica or transfer
        self.router, self.age = router_named(fleet.router, fleet.seed), fleet.age
        self.signals = [Signal(0) for _ in self.replicas]
        self.published = 0
        self.handover = None if fleet.split is None else SimulatedKVTransfer(machine, fleet.split.bandwidth)
        self.decoding = self.router if fleet.split is None else router_named(fleet.router, fleet.seed + 1)
        self.autoscaler = None if fleet.scaling is None else Autoscaler(fleet.scaling)
        self.front = None if fleet.api_server is None else ApiServerCore(fleet.api_server.times(factor))
        self.reading: deque[tuple[TraceRequest, SimulatedRequest]] = deque()

    def _replica(self, machine: Machine) -> SimulatedReplica:
        pricer = StepPricer(
            machine.case.price, machine.case.device, self.factor, machine.host_overhead.times(self.factor)
        )
        return SimulatedReplica(machine, self.clock, pricer, self.prompts)

    def run(self, watch: Watch | None) -> RunLog:
        """Process all arrivals and events of the simulation and return its log."""
        while (moment := self._next()) is not None:
            if self.autoscaler is not None and self.autoscaler.next <= moment:
                self._scale(self.autoscaler)
                continue  # a replica that starts may be ready before that time
            self._publish(moment)
            self.clock.to(moment)
            if self.happens and self.happens[0][0] == moment:
                _, what, which = heapq.heappop(self.happens)
                if what == _STEP:
                    self._end_step(self.replicas[which])
                    if watch is not None and len(self.log.steps) % _STEPS_BETWEEN == 0:
                        watch(self.log)
                elif what == _SENT:
                    self._receive(which)
                elif what == _READ:
                    self._deal(*self.reading.popleft())
                else:
                    self.replicas[which].accepts_requests = True
            else:
                self._add()
            if self._next() != moment:
                self._begin_steps()
        self._close()
        return self.log

    def _next(self) -> int | None:
        """Return the time of the next event or arrival; None if only replica starts remain, which serve no request."""
        comes = self.offered.upcoming
        if comes is None and all(what == _UP for _, what, _ in self.happens):
            return None
        if not self.happens:
            return comes
        happens = self.happens[0][0]
        return happens if comes is None or happens <= comes else comes

    def _begin_steps(self) -> None:
        for place, serving in enumerate(self.replicas):
            if not serving.stepping and serving.live:
                took = serving.begin(place, self.log)
                if took is not None:
                    heapq.heappush(self.happens, (self.clock.now + took, _STEP, place))

    # -- who gets what ------------------------------------------------------------------------------------------------

    def _publish(self, until: int) -> None:
        """Update the load that replicas have published by time `until`; nothing has changed since the last event."""
        if self.age and until - self.published >= self.age:
            self.published = until - until % self.age
            self.signals = [Signal(each.load) for each in self.replicas]

    def _choose(self, router: ReplicaRouter, request: TraceRequest, among: range) -> int:
        """Return the index of the replica that the router selects for a request, among those that accept requests."""
        places = [place for place in among if self.replicas[place].accepts_requests]
        if len(places) == 1:
            return places[0]
        signals = self.signals if self.age else [Signal(each.load) for each in self.replicas]
        return places[router.choose(request, [signals[place] for place in places])]

    def _add(self) -> None:
        request = self.offered.take()
        row = self.log.requests.add(request)
        live = SimulatedRequest(row, request, request.input + REQUEST_TOKENS)
        if self.front is None:
            self._deal(request, live)
            return
        self.reading.append((request, live))
        heapq.heappush(self.happens, (self.front.parse_request(self.clock.now), _READ, row))

    def _deal(self, request: TraceRequest, live: SimulatedRequest) -> None:
        """Route a request to a replica once the API server has parsed it."""
        split = self.fleet.split
        if split is None:
            self._send(request, live, self._choose(self.router, request, range(len(self.replicas))))
            return
        live.rest = request if request.output > 1 else None
        self._send(replace(request, output=1), live, self._choose(self.router, request, range(split.prompts)))

    def _send(self, request: TraceRequest, live: SimulatedRequest, place: int, received: int = 0) -> None:
        requests = self.log.requests
        requests.replica[live.row] = place
        if not received:
            requests.prompted[live.row] = place
        try:
            self.replicas[place].add(request, live, received)
        except ValueError as error:
            requests.reject(live.row, str(error))
            self.offered.ended(live.request, self.clock.now, answered=False)

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _end_step(self, serving: ReplicaState) -> None:
        serving.stepping = False
        self._take(serving, serving.replica.end())
        if not (serving.accepts_requests or serving.live):
            serving.until = self.clock.now

    def _take(self, serving: ReplicaState, events: list[TokenEvent]) -> None:
        """Record the times of the tokens that a step generated.

        Most tokens arrive one step after the previous token of their request, so their gaps are equal and are logged
        together. With an API server core, tokens are written one after another and each has its own gap.
        """
        now, before, live, front = self.clock.now, serving.before, serving.live, self.front
        step = now
        if front is not None:
            front.handle_step(now)
            before = NO_MOMENT
        gap, equal = now - before, 0
        for event in events:
            own = live[event.request]
            if front is not None:
                now = max(own.last, front.write_token(first=own.last == NEVER))  # a response's tokens keep their order
            if own.last == before:
                equal += 1
                if gap > own.worst:
                    own.worst = gap
            elif own.last != NEVER:
                longer = now - own.last
                own.worst = max(own.worst, longer)
                self.log.gaps.add(now, longer, 1)
            else:
                own.first = now
            own.last = now
            if event.finish is not None:
                self._end(serving, event, own)
        if equal:
            self.log.gaps.add(now, gap, equal)
        serving.before = step

    def _end(self, serving: ReplicaState, event: TokenEvent, own: SimulatedRequest) -> None:
        del serving.live[event.request]
        serving.load -= own.load
        own.made += serving.replica.forget(event.request)
        if own.first_timing is None:
            own.cached, own.first_timing = event.cached, event.timing
        # A prefill replica generates one token, so its engine cannot tell that no second one would fit.
        alone = own.rest is not None and own.room == 1
        limited = event.finish is FinishReason.LENGTH or alone
        if own.rest is not None and not limited:
            self._hand_over(own, own.rest)
            return
        if self.front is not None:
            self.front.finish_response()
        requests, row, timing = self.log.requests, own.row, own.first_timing
        requests.outcome[row] = OUTCOMES.index("ok")
        requests.limited[row] = limited
        requests.made[row], requests.cached[row] = own.made, own.cached
        assert timing.scheduled is not None
        requests.scheduled[row], requests.first[row] = timing.scheduled, own.first
        requests.last[row] = own.last
        requests.worst_gap[row] = own.worst
        self.offered.ended(own.request, own.last, answered=True)

    # -- prompts and answers apart ------------------------------------------------------------------------------------

    def _hand_over(self, live: SimulatedRequest, request: TraceRequest) -> None:
        """Start the transfer of a prompt's KV cache to the decode replicas."""
        assert self.handover is not None
        live.rest = None
        there, number = self.handover.send(request, live, self.clock.now)
        heapq.heappush(self.happens, (there, _SENT, number))

    def _receive(self, number: int) -> None:
        """Route a request to a decode replica once its KV cache has arrived."""
        assert self.handover is not None
        assert self.fleet.split is not None
        rest, live = self.handover.received(number, self.clock.now)
        place = self._choose(self.decoding, rest, range(self.fleet.split.prompts, len(self.replicas)))
        self._send(rest, live, place, rest.input - 1)

    # -- coming and going ---------------------------------------------------------------------------------------------

    def _scale(self, autoscaler: Autoscaler) -> None:
        """Run a check of the autoscaler and start or stop replicas."""
        self.clock.to(autoscaler.next)
        change, now = autoscaler.check(self.replicas), self.clock.now
        if change > 0:
            self._start(change, now + autoscaler.start_up)
        elif change < 0:
            self._stop(now)

    def _start(self, count: int, up: int) -> None:
        for _ in range(count):
            heapq.heappush(self.happens, (up, _UP, len(self.replicas)))
            self.replicas.append(ReplicaState(self._replica(self.machine), self.clock.now, taking=False))
            self.signals.append(Signal(0))

    def _stop(self, now: int) -> None:
        """Stop sending requests to the replica with the fewest active requests; among equals, to the newest."""
        taking = [each for each in self.replicas if each.accepts_requests]
        least = min(reversed(taking), key=lambda each: len(each.live))
        least.accepts_requests = False
        if not least.live:
            least.until = now

    def _close(self) -> None:
        """Write the totals to the log; requests that have not ended stay unfinished."""
        engines = [serving.replica.engine for serving in self.replicas]
        stats = [engine.stats for engine in engines]
        end = self.clock.now if self.front is None else max(self.clock.now, self.front.free)
        self.log.end, self.log.replicas = end, len(self.replicas)
        self.log.lives = lives(self.replicas, self.log.end)
        self.log.totals = RunTotals(
            sum(each.preemptions for each in stats),
            sum(each.wasted_tokens for each in stats),
            sum(each.reused_tokens for each in stats),
            tuple(engine.kv_cache_manager.pool.size for engine in engines),
            sum(len(engine.requests) for engine in engines),
            sum(each.held_pages for each in stats),
            0 if self.front is None else self.front.of_requests,
            0 if self.front is None else self.front.of_steps,
        )
