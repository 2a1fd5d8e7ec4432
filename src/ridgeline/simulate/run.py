"""The run: requests come and are sent to a replica, steps begin and end, until nothing is left.

At one moment steps end first, then replicas publish what routers see of them, then requests come, then steps begin:
what comes while a step runs waits for the one after it, as at a server that takes its messages between two steps.
Requests that come together keep their order, replicas theirs. Nothing depends on wall time, on a hash or on a set's
order: equal input gives equal logs.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.engine.events import TokenEvent
from ridgeline.engine.request import Finish
from ridgeline.simulate.clock import Clock
from ridgeline.simulate.log import HELD, NEVER, OUTCOMES, Log, Totals
from ridgeline.simulate.replica import Machine, Prompts, Replica, StepPricer
from ridgeline.traffic.offered import Offered
from ridgeline.traffic.routers import REQUEST_TOKENS, Signal, router_named

Told = Callable[[Log], bool]
"""Told of the log now and then; whether to go on."""

_STEPS_BETWEEN = 256  # steps after which somebody is told


@dataclass(frozen=True, slots=True)
class Routing:
    """Equal replicas, and how requests are dealt among them: by a router of traffic/routers.py, which sees what they
    published at the last of the moments that are `age` nanoseconds apart (0: what is so now)."""

    replicas: int = 1
    router: str = "two"
    age: int = 0
    seed: int = 0


@dataclass(slots=True)
class _Live:
    """A request under way: its row, what a router counts it for, when its last token came, the longest gap so far."""

    row: int
    load: int
    last: int = NEVER
    worst: int = NEVER


class _Serving:
    """A replica, its requests under way, and what they come to for a router."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.live: dict[int, _Live] = {}
        self.load = 0
        self.stepping = False
        self.before = NEVER  # when the step before ended


ALONE = Routing()


def run(
    machine: Machine, offered: Offered, factor: float = 1.0, told: Told | None = None, routing: Routing = ALONE
) -> Log:
    """Let requests come to replicas of a machine until none is left, or nobody wants to know more.

    factor: on the price of each step. Raises ValueError for a router that there is not."""
    clock, prompts = Clock(), Prompts()
    pricer = StepPricer(machine.case.price, machine.case.device, factor, machine.between)
    replicas = [_Serving(Replica(machine, clock, pricer, prompts)) for _ in range(routing.replicas)]
    return _Run(clock, replicas, offered, routing).run(told)


class _Run:
    def __init__(self, clock: Clock, replicas: list[_Serving], offered: Offered, routing: Routing) -> None:
        self.clock, self.replicas, self.offered = clock, replicas, offered
        self.log = Log(len(replicas))
        self.ends: list[tuple[int, int]] = []  # of steps under way: when, and of which replica
        self.router, self.age = router_named(routing.router, routing.seed), routing.age
        self.signals = [Signal(0) for _ in replicas]
        self.published = 0

    def run(self, told: Told | None) -> Log:
        """To the end."""
        while True:
            comes = self.offered.upcoming
            if self.ends and (comes is None or self.ends[0][0] <= comes):
                moment, place = heapq.heappop(self.ends)
                self._publish(moment)
                self.clock.to(moment)
                self._end_step(self.replicas[place])
                if told is not None and len(self.log.steps) % _STEPS_BETWEEN == 0 and not told(self.log):
                    break
            elif comes is not None:
                self._publish(comes)
                self.clock.to(comes)
                self._add()
            else:
                break
            if self.offered.upcoming != self.clock.now and not (self.ends and self.ends[0][0] == self.clock.now):
                self._begin_steps()
        self._close()
        return self.log

    def _publish(self, until: int) -> None:
        """What replicas have published before or at a moment: as it is now, nothing having happened since."""
        if self.age and until - self.published >= self.age:
            self.published = until - until % self.age
            self.signals = [Signal(each.load) for each in self.replicas]

    def _add(self) -> None:
        request = self.offered.take()
        row = self.log.requests.add(request.at, request.input)
        seen = self.signals if self.age else [Signal(each.load) for each in self.replicas]
        place = self.router.choose(request, seen) if len(self.replicas) > 1 else 0
        serving, load = self.replicas[place], request.input + REQUEST_TOKENS
        self.log.requests.replica[row] = place
        try:
            serving.live[serving.replica.add(request)] = _Live(row, load)
            serving.load += load
        except ValueError as error:
            self.log.requests.refuse(row, str(error))  # its user does not ask again: it would be for ever

    def _begin_steps(self) -> None:
        for place, serving in enumerate(self.replicas):
            if not serving.stepping and serving.live:
                took = self._begin(place, serving)
                if took is not None:
                    heapq.heappush(self.ends, (self.clock.now + took, place))

    def _begin(self, place: int, serving: _Serving) -> int | None:
        """Begin a step and note it; its nanoseconds."""
        took = serving.replica.begin()
        if took is None:
            return None
        serving.stepping = True
        plan, engine, steps = serving.replica.plan, serving.replica.engine, self.log.steps
        assert plan is not None
        scheduler, pool = engine.scheduler, engine.ledger.pool
        lengths = [len(item.tokens) for item in plan.items]
        positions, sequences = sum(lengths), len(lengths)
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        steps.replica.append(place)
        steps.started.append(self.clock.now)
        steps.took.append(took)
        steps.positions.append(positions)
        steps.prompts.append(positions - lengths.count(1))
        steps.sequences.append(sequences)
        steps.running.append(running)
        steps.waiting.append(waiting)
        steps.pages.append(pool.size - pool.available)
        steps.compute.append(serving.replica.pricer.compute_bound)
        limits = scheduler.limits
        held = "" if not waiting else "requests" if running >= limits.requests else "pages"
        steps.held.append(HELD.index("positions" if held == "pages" and positions >= limits.tokens else held))
        return took

    def _end_step(self, serving: _Serving) -> None:
        serving.stepping = False
        self._take(serving, serving.replica.end())

    def _take(self, serving: _Serving, events: list[TokenEvent]) -> None:
        """The tokens of a step. Most come one step after the one before, so that their gaps are equal."""
        now, before, live = self.clock.now, serving.before, serving.live
        gap, equal = now - before, 0
        for event in events:
            own = live[event.request]
            if own.last == before and before != NEVER:
                equal += 1
                if gap > own.worst:
                    own.worst = gap
            elif own.last != NEVER:
                longer = now - own.last
                own.worst = max(own.worst, longer)
                self.log.gaps.add(now, longer, 1)
            own.last = now
            if event.finish is not None:
                self._end(serving, event, own)
        if equal:
            self.log.gaps.add(now, gap, equal)
        serving.before = now

    def _end(self, serving: _Serving, event: TokenEvent, own: _Live) -> None:
        requests, row, timing = self.log.requests, own.row, event.timing
        del serving.live[event.request]
        serving.load -= own.load
        made = serving.replica.forget(event.request)
        requests.outcome[row] = OUTCOMES.index("ok")
        requests.limited[row] = event.finish is Finish.LENGTH
        requests.made[row], requests.cached[row] = made, event.cached
        assert timing.scheduled is not None
        assert timing.first_token is not None
        requests.scheduled[row], requests.first[row] = timing.scheduled, timing.first_token
        requests.last[row] = own.last
        requests.worst_gap[row] = own.worst
        self.offered.ended(self.clock.now)

    def _close(self) -> None:
        """What is left is unfinished."""
        engines = [serving.replica.engine for serving in self.replicas]
        stats = [engine.stats for engine in engines]
        self.log.end = self.clock.now
        self.log.totals = Totals(
            sum(each.preemptions for each in stats),
            sum(each.wasted_tokens for each in stats),
            sum(each.reused_tokens for each in stats),
            engines[0].ledger.pool.size,
            sum(len(engine.requests) for engine in engines),
            sum(each.held_pages for each in stats),
        )
