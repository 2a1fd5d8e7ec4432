"""The state of a replica during a simulation: its active requests, and the recording of its steps."""

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.engine.request import Timing
from ridgeline.insight.simulate.replica import SimulatedReplica
from ridgeline.insight.simulate.run_log import NEVER, WAIT_REASONS, RunLog
from ridgeline.insight.traffic.workload_trace import TraceRequest

NO_MOMENT = NEVER - 1
"""A time at which no request received a token; it differs from `NEVER` and every real time."""


@dataclass(slots=True)
class SimulatedRequest:
    """An active request of the simulation. Times are those at which the client receives tokens."""

    row: int
    """The request's row in the request log."""
    request: TraceRequest
    load: int
    """The load that a router counts for the request."""
    rest: TraceRequest | None = None
    """The request to hand to a decode replica after the first token; None if there is none to hand over."""
    room: int = 0
    """The number of tokens that fit after the prompt."""
    first: int = NEVER
    """The time at which the client received the request's first token."""
    last: int = NEVER
    """The time at which the client received the request's latest token."""
    worst: int = NEVER
    """The longest gap so far between two tokens of the request."""
    made: int = 0
    """The request's output tokens so far, added when a replica (prefill, then decode) finishes its part."""
    cached: int = 0
    """The number of prompt tokens found in the prefix cache of its first replica."""
    first_timing: Timing | None = None
    """The request's timing on its first replica."""


class ReplicaState:
    """A replica of a simulation with its active requests and its load.

    It is paid for from `since` to `until`; `accepts_requests` says whether a router may send requests to it.
    """

    def __init__(self, replica: SimulatedReplica, since: int = 0, *, taking: bool = True) -> None:
        self.replica, self.since, self.accepts_requests = replica, since, taking
        self.until: int | None = None
        self.live: dict[int, SimulatedRequest] = {}
        self.load = 0  # the sum of its requests' loads, for a router
        self.stepping = False
        self.before = NO_MOMENT  # when the previous step ended

    def add(self, request: TraceRequest, live: SimulatedRequest, received: int = 0) -> None:
        """Add a request to the replica's engine and count its load.

        Raises:
            ValueError: If the request can never run.
        """
        number = self.replica.add(request, received)
        self.live[number], live.room = live, self.replica.max_new_tokens(number)
        self.load += live.load

    def is_starting(self, start_up: int, now: int) -> bool:
        """Return whether the replica is still starting up at time `now`.

        Args:
            start_up: Nanoseconds that starting takes.
            now: The current time.
        """
        return not (self.accepts_requests or self.live) and self.since > 0 and self.since + start_up >= now

    def begin(self, place: int, log: RunLog) -> int | None:
        """Start a step and log it; return its duration in nanoseconds, or None if there is nothing to do.

        Args:
            place: The replica's index in the log.
            log: The log of the run.
        """
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
        steps.held.append(WAIT_REASONS.index("positions" if held == "pages" and positions >= limits.tokens else held))
        return took


def lives(replicas: Iterable[ReplicaState], end: int) -> list[tuple[int, int]]:
    """Return the start and end time of each replica."""
    return [(each.since, end if each.until is None else each.until) for each in replicas]
