"""A replica in a run: the requests that it has under way, and what is noted of its steps."""

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.engine.request import Timing
from ridgeline.insight.simulate.replica import SimulatedReplica
from ridgeline.insight.simulate.run_log import HELD, NEVER, RunLog
from ridgeline.insight.traffic.workload_trace import TraceRequest

NO_MOMENT = NEVER - 1
"""When no token came, of whatever request."""


@dataclass(slots=True)
class SimulatedRequest:
    """A request under way: its row, what was asked, what a router counts it for, when its first and its last token came
    to the client, the longest gap so far.

    rest: what is to be done of it elsewhere, once this replica has given its first token. room: tokens for which there
    is place behind its prompt. made, cached: tokens that another has given it, and prompt tokens that were found there;
    begun: its timing there.
    """

    row: int
    request: TraceRequest
    load: int
    rest: TraceRequest | None = None
    room: int = 0
    first: int = NEVER
    last: int = NEVER
    worst: int = NEVER
    made: int = 0
    cached: int = 0
    begun: Timing | None = None


class ReplicaState:
    """A replica and its requests. since, until: from when it is paid for, and when it was gone. taking: requests may be
    sent there.
    """

    def __init__(self, replica: SimulatedReplica, since: int = 0, *, taking: bool = True) -> None:
        self.replica, self.since, self.taking = replica, since, taking
        self.until: int | None = None
        self.live: dict[int, SimulatedRequest] = {}
        self.load = 0  # what its requests come to for a router
        self.stepping = False
        self.before = NO_MOMENT  # when the step before ended

    def add(self, request: TraceRequest, live: SimulatedRequest, received: int = 0) -> None:
        """Queue a request. Raises ValueError for one that cannot run."""
        number = self.replica.add(request, received)
        self.live[number], live.room = live, self.replica.room(number)
        self.load += live.load

    def starts(self, start_up: int, now: int) -> bool:
        """Whether it is still to take its first requests, where that lasts so long."""
        return not (self.taking or self.live) and self.since > 0 and self.since + start_up >= now

    def begin(self, place: int, log: RunLog) -> int | None:
        """Begin a step and note it; its nanoseconds, None where there is none."""
        took = self.replica.begin()
        if took is None:
            return None
        self.stepping = True
        plan, engine, steps = self.replica.plan, self.replica.engine, log.steps
        assert plan is not None
        scheduler, pool, work = engine.scheduler, engine.kv_cache_manager.pool, self.replica.pricer.work
        positions, sequences = work.tokens, work.sequences
        prompts = 0 if positions == sequences else sum([n for item in plan.items if (n := len(item.tokens)) > 1])
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        steps.replica.append(place)
        steps.started.append(engine.clock())
        steps.took.append(took)
        steps.positions.append(positions)
        steps.prompts.append(prompts)
        steps.sequences.append(sequences)
        steps.running.append(running)
        steps.waiting.append(waiting)
        steps.pages.append(pool.size - pool.available)
        steps.compute.append(self.replica.pricer.compute_bound)
        limits = scheduler.limits
        held = "" if not waiting else "requests" if running >= limits.requests else "pages"
        steps.held.append(HELD.index("positions" if held == "pages" and positions >= limits.tokens else held))
        return took


def lives(replicas: Iterable[ReplicaState], end: int) -> list[tuple[int, int]]:
    """From when until when each was there."""
    return [(each.since, end if each.until is None else each.until) for each in replicas]
