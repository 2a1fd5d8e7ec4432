"""The run: requests come, steps begin and end, until nothing is left.

At one moment a step ends before requests come, and the next step begins after that: what comes while a step runs waits
for the one after it, as at a server that takes its messages between two steps. Requests that come together keep their
order. Nothing depends on wall time, on a hash or on a set's order: equal input gives equal logs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.engine.events import TokenEvent
from ridgeline.engine.request import Finish
from ridgeline.simulate.clock import Clock
from ridgeline.simulate.log import HELD, NEVER, OUTCOMES, Log, Totals
from ridgeline.simulate.replica import Machine, Prompts, Replica, StepPricer
from ridgeline.traffic.offered import Offered

Told = Callable[[Log], bool]
"""Told of the log now and then; whether to go on."""

_STEPS_BETWEEN = 256  # steps after which somebody is told


@dataclass(slots=True)
class _Live:
    """A request under way: its row, when its last token came, the longest gap so far."""

    row: int
    last: int = NEVER
    worst: int = NEVER


def run(machine: Machine, offered: Offered, factor: float = 1.0, told: Told | None = None) -> Log:
    """Let requests come to a replica until none is left, or nobody wants to know more.

    factor: on the price of each step."""
    clock = Clock()
    replica = Replica(machine, clock, StepPricer(machine.case.price, machine.case.device, factor), Prompts())
    return _Run(clock, replica, offered).run(told)


class _Run:
    def __init__(self, clock: Clock, replica: Replica, offered: Offered) -> None:
        self.clock, self.replica, self.offered = clock, replica, offered
        self.log = Log()
        self.live: dict[int, _Live] = {}
        self._before = NEVER  # when the step before ended

    def run(self, told: Told | None) -> Log:
        """To the end."""
        ends: int | None = None  # of the step under way
        while True:
            comes = self.offered.upcoming
            if ends is not None and (comes is None or ends <= comes):
                self.clock.to(ends)
                self._take(self.replica.end())
                ends = None
                if told is not None and len(self.log.steps) % _STEPS_BETWEEN == 0 and not told(self.log):
                    break
            elif comes is not None:
                self.clock.to(comes)
                self._add()
            else:
                break
            if ends is None and self.offered.upcoming != self.clock.now:
                took = self._begin()
                ends = None if took is None else self.clock.now + took
        self._close()
        return self.log

    def _add(self) -> None:
        request = self.offered.take()
        row = self.log.requests.add(request.at, request.input)
        try:
            self.live[self.replica.add(request)] = _Live(row)
        except ValueError as error:
            self.log.requests.refuse(row, str(error))  # its user does not ask again: it would be for ever

    def _begin(self) -> int | None:
        """Begin a step and note it; its nanoseconds."""
        took = self.replica.begin()
        if took is None:
            return None
        plan, engine, steps = self.replica.plan, self.replica.engine, self.log.steps
        assert plan is not None
        scheduler, pool = engine.scheduler, engine.ledger.pool
        lengths = [len(item.tokens) for item in plan.items]
        positions, sequences = sum(lengths), len(lengths)
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        steps.started.append(self.clock.now)
        steps.took.append(took)
        steps.positions.append(positions)
        steps.prompts.append(positions - lengths.count(1))
        steps.sequences.append(sequences)
        steps.running.append(running)
        steps.waiting.append(waiting)
        steps.pages.append(pool.size - pool.available)
        steps.compute.append(self.replica.pricer.compute_bound)
        limits = scheduler.limits
        held = "" if not waiting else "requests" if running >= limits.requests else "pages"
        steps.held.append(HELD.index("positions" if held == "pages" and positions >= limits.tokens else held))
        return took

    def _take(self, events: list[TokenEvent]) -> None:
        """The tokens of a step. Most come one step after the one before, so that their gaps are equal."""
        now, before, live = self.clock.now, self._before, self.live
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
                self._end(event, own)
        if equal:
            self.log.gaps.add(now, gap, equal)
        self._before = now

    def _end(self, event: TokenEvent, own: _Live) -> None:
        requests, row, timing = self.log.requests, own.row, event.timing
        del self.live[event.request]
        made = self.replica.forget(event.request)
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
        engine = self.replica.engine
        stats = engine.stats
        self.log.end = self.clock.now
        self.log.totals = Totals(
            stats.preemptions,
            stats.wasted_tokens,
            stats.reused_tokens,
            engine.ledger.pool.size,
            len(engine.requests),
            stats.held_pages,
        )
