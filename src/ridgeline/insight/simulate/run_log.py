"""A log: what became of each request and of each step, as columns of numbers; a million short requests are 170 MB.

Moments are integer nanoseconds of the simulation; -1 stands for one that has not come.
"""

from array import array
from dataclasses import dataclass
from typing import Literal

from ridgeline.insight.traffic.slo import MAX_CLASSES
from ridgeline.insight.traffic.workload_trace import TraceRequest

NEVER = -1

Outcome = Literal["ok", "rejected", "unfinished"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "rejected", "unfinished")
"""As of traffic's records. rejected: when it came, as what cannot run is. unfinished: under way at the end."""

Held = Literal["", "requests", "positions", "pages"]
HELD: tuple[Held, ...] = ("", "requests", "positions", "pages")
"""Why somebody waits beside a step: nobody does; so many requests run as may; its positions are all given away; there
are no pages."""


class RequestLog:
    """A row for each, in order of arrival. replica: where it was sent. prompted: where its prompt was, which is another
    replica where prompts and answers are apart. made: output tokens. limited: whether an answer ended because the
    context, or KV memory, has no room for more of it. worst_gap: the longest between two tokens. slo_class: the place
    of its class among `classes`, which are in the order of their first requests.
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
        """One that comes; its row. Raises ValueError for one class more than a table has lines for."""
        slo_class = self.classes.setdefault(request.slo_class, len(self.classes))
        if slo_class == MAX_CLASSES:
            raise ValueError(
                f"requests are of more than {MAX_CLASSES} classes, the last {request.slo_class[:40]!r}; name fewer in "
                "the trace, or none"
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

    def refuse(self, row: int, reason: str) -> None:
        """It cannot run."""
        self.outcome[row] = OUTCOMES.index("rejected")
        self.reasons[row] = reason


class StepLog:
    """A row for each. positions: that it runs; prompts: those of sequences that run more than one. sequences: that have
    a part in it. running, waiting, pages: requests, and pages that they hold, once it is planned. held: why somebody
    waits, of HELD. compute: whether it has more arithmetic than memory traffic.
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
    """The gaps between tokens of all requests together: when one ended, how long it was, and of how many tokens."""

    def __init__(self) -> None:
        self.at, self.gap, self.tokens = array("q"), array("q"), array("i")

    def add(self, at: int, gap: int, tokens: int) -> None:
        """So many tokens that came at one moment after equal gaps."""
        self.at.append(at)
        self.gap.append(gap)
        self.tokens.append(tokens)


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Of a run, all replicas together: preemptions, positions run again after one, prompt positions that were found,
    pages that the pool of each has, requests and pages that were left at the end, nanoseconds of work for the front by
    requests and by steps.
    """

    preemptions: int
    wasted: int
    found: int
    pages: tuple[int, ...]
    left: int
    held: int
    front_requests: int
    front_steps: int


class RunLog:
    """All of it, of so many replicas. end: when the last step was over. lives: from when until when each replica was
    there, and totals: once the run is over.
    """

    def __init__(self, replicas: int = 1) -> None:
        self.replicas = replicas
        self.requests, self.steps, self.gaps = RequestLog(), StepLog(), TokenGaps()
        self.end = 0
        self.lives: list[tuple[int, int]] = []
        self.totals: RunTotals | None = None
