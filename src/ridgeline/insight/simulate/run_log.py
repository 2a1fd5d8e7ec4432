"""The log of a simulation: columns of numbers for requests and steps; a million short requests take 170 MB.

Times are integer nanoseconds of simulated time; -1 marks an event that has not happened.
"""

from array import array
from dataclasses import dataclass
from typing import Literal

from ridgeline.insight.traffic.slo import MAX_CLASSES
from ridgeline.insight.traffic.workload_trace import TraceRequest

NEVER = -1

Outcome = Literal["ok", "rejected", "unfinished"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "rejected", "unfinished")
"""The outcomes of a simulated request.

`rejected`: the engine refused it on arrival because it can never run. `unfinished`: it was still active at the end.
"""

Held = Literal["", "requests", "positions", "pages"]
WAIT_REASONS: tuple[Held, ...] = ("", "requests", "positions", "pages")
"""The reasons why requests wait while a step runs.

"": none waits. `requests`: the limit of concurrent requests is reached. `positions`: the step's token budget is used
up. `pages`: no KV pages are free.
"""


class RequestLog:
    """A log of a simulation's requests as columns, with one row per request in order of arrival.

    `replica` is the replica that a request was last sent to; `prompted` is the one that ran its prompt, which differs
    if prefill and decode are split. `made` counts output tokens. `limited` marks responses that ended because the
    context or KV memory was full. `worst_gap` is the longest gap between two tokens. `slo_class` is an index into
    `classes`, which are in order of first appearance.
    """

    def __init__(self) -> None:
        self.arrived, self.scheduled, self.first, self.last = array("q"), array("q"), array("q"), array("q")
        self.input, self.made, self.cached = array("i"), array("i"), array("i")
        self.worst_gap = array("q")
        self.outcome, self.limited = array("b"), array("b")
        self.replica, self.prompted, self.slo_class = array("i"), array("i"), array("h")
        self.classes: dict[str, int] = {}
        self.reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.arrived)

    def add(self, request: TraceRequest) -> int:
        """Append an arriving request and return its row.

        Raises:
            ValueError: If the requests have more than `MAX_CLASSES` (100) classes.
        """
        slo_class = self.classes.setdefault(request.slo_class, len(self.classes))
        if slo_class == MAX_CLASSES:
            raise ValueError(
                f"requests have more than {MAX_CLASSES} classes, the last is {request.slo_class[:40]!r}; use fewer "
                "classes in the trace, or none"
            )
        self.arrived.append(request.at)
        self.input.append(request.input)
        self.slo_class.append(slo_class)
        for column in (self.scheduled, self.first, self.last, self.worst_gap):
            column.append(NEVER)
        for counter in (self.made, self.cached):
            counter.append(0)
        self.outcome.append(OUTCOMES.index("unfinished"))
        self.limited.append(0)
        self.replica.append(0)
        self.prompted.append(0)
        return len(self.arrived) - 1

    def reject(self, row: int, reason: str) -> None:
        """Mark a request as rejected, with the reason."""
        self.outcome[row] = OUTCOMES.index("rejected")
        self.reasons[row] = reason


class StepLog:
    """A log of a simulation's engine steps as columns, with one row per step.

    `positions` counts the tokens that the step runs, `prompts` those of sequences with more than one token, and
    `sequences` the sequences. `running` and `waiting` count requests, and `pages` the pages in use, after planning.
    `held` says why requests wait, as an index into `WAIT_REASONS`. `compute` says whether the step's arithmetic takes
    longer than its memory traffic.
    """

    def __init__(self) -> None:
        self.started, self.took = array("q"), array("q")
        self.positions, self.prompts, self.sequences = array("i"), array("i"), array("i")
        self.running, self.waiting, self.pages = array("i"), array("i"), array("i")
        self.held, self.compute = array("b"), array("b")
        self.replica = array("i")

    def __len__(self) -> int:
        return len(self.started)


class TokenGaps:
    """The gaps between tokens of all requests: the time at which each ended, its length, and the number of tokens."""

    def __init__(self) -> None:
        self.at, self.gap, self.tokens = array("q"), array("q"), array("i")

    def add(self, at: int, gap: int, tokens: int) -> None:
        """Add a gap that ended at time `at`, for a number of tokens that arrived together after equal gaps."""
        self.at.append(at)
        self.gap.append(gap)
        self.tokens.append(tokens)


@dataclass(frozen=True, slots=True)
class RunTotals:
    """The counters of a simulation run, summed over all replicas."""

    preemptions: int
    """The number of times a replica preempted a request."""
    wasted: int
    """The positions computed again after a preemption."""
    prefix_hits: int
    """The prompt positions found in the prefix cache."""
    pages: tuple[int, ...]
    """The number of KV pages in each replica's pool."""
    left: int
    """The number of requests that remained in the engines at the end."""
    held: int
    """The number of KV pages still in use at the end."""
    front_requests: int
    """The nanoseconds of API server work caused by requests."""
    front_steps: int
    """The nanoseconds of API server work caused by steps."""


class RunLog:
    """The complete log of a simulation over all replicas.

    When the run ends, `end` is set to the time of its last event or of the API server's last work, whichever is later,
    `lives` to the start and end time of each replica, and `totals` to the counters.
    """

    def __init__(self, replicas: int = 1) -> None:
        self.replicas = replicas
        self.requests, self.steps, self.gaps = RequestLog(), StepLog(), TokenGaps()
        self.end = 0
        self.lives: list[tuple[int, int]] = []
        self.totals: RunTotals | None = None
