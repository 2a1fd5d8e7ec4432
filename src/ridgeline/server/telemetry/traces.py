"""Traces: for each request a ledger of what it waited for and which steps it shared. Lengths only, no text.

Those under way are kept whole up to a number of steps; those that ended are kept while they fit in so many bytes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.request import NANOSECONDS, FinishReason
from ridgeline.engine.worker.engine_messages import StepReport
from ridgeline.engine.worker.priced_steps import PricedSteps
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.service import Service, failed_by_engine

_MAX_STEPS = 4096  # rows of a ledger; what comes after is in its sums
_BYTES_A_ROW, _BYTES_A_TRACE = 400, 1000  # of this process's memory, rounded up


class _Step(NamedTuple):
    """What all requests of a step share. sequences, positions: that ran in it."""

    step: int
    started: int
    seconds: float
    predicted: float | None
    floor: float | None
    sequences: int
    positions: int


class _TraceRow(NamedTuple):
    """One choice's part of a step: positions [start, end)."""

    step: _Step
    choice: int
    start: int
    end: int


class _Figures(NamedTuple):
    """The figures of a request, without its sampling parameters and its tier.

    Those are as long as the client made them, up to the size of a body, so a trace that is kept must not refer to them.
    """

    id: str
    route: str
    stream: bool
    choices: int
    prompt_tokens: int
    cached: int
    tokens: int
    finishes: tuple[FinishReason, ...]
    arrived: int

    @classmethod
    def of(cls, live: InFlightRequest) -> "_Figures":
        """Return the figures of a request as they are now."""
        return cls(
            id=live.id,
            route=live.generation.route,
            stream=live.generation.stream,
            choices=live.spec.params.n,
            prompt_tokens=live.prompt_tokens,
            cached=live.cached,
            tokens=live.tokens,
            finishes=tuple(live.finishes),
            arrived=live.spec.arrived,
        )


@dataclass(slots=True)
class _Trace:
    """One request: itself while it is under way, its figures when it has ended. steps: that it was in, which took
    `seconds`. first, last: when its first and newest token came.
    """

    request: InFlightRequest | _Figures
    rows: list[_TraceRow] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    priced: PricedSteps = field(default_factory=PricedSteps)
    begun: int | None = None
    first: int | None = None
    last: int | None = None
    outcome: str | None = None

    @property
    def nbytes(self) -> int:
        return _BYTES_A_TRACE + _BYTES_A_ROW * len(self.rows)


class Traces:
    """Told of requests as an Observer, of steps by `stepped`."""

    def __init__(self, service: Service, nbytes: int) -> None:
        """nbytes: memory that traces of ended requests may take."""
        self._by_request, self._nbytes = service.by_request, nbytes
        self._under_way: dict[str, _Trace] = {}
        self._ended: OrderedDict[str, _Trace] = OrderedDict()
        self._held = 0

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Nothing ran."""

    def arrived(self, live: InFlightRequest) -> None:
        """Begin its ledger."""
        self._under_way[live.id] = _Trace(live)

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Note when it came."""
        trace = self._under_way[live.id]
        if event.token is None and event.finish is None and event.hidden is None:
            return  # it has scores of the prompt, and no token yet
        if trace.first is None:
            trace.first = event.at
        trace.last = event.at

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Write a row for each of the requests that were in it."""
        step = _Step(
            *(report.step, report.started, report.seconds, report.predicted, report.floor),
            *(len(report.items), report.positions),
        )
        counted: set[int] = set()
        for request, choice, start, count in report.items:
            live = self._by_request.get(request)
            trace = self._under_way.get(live.id) if live is not None else None
            if trace is None:
                continue
            if request not in counted:  # several choices share the step as they share the request
                counted.add(request)
                _add(trace, step)
            if len(trace.rows) < _MAX_STEPS:
                trace.rows.append(_TraceRow(step, choice, start, start + count))

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Keep its trace, and forget the oldest ones that do not fit any more."""
        trace = self._under_way.pop(live.id)
        trace.outcome = _outcome(live, error)
        trace.request = _Figures.of(live)
        self._ended[live.id] = trace
        self._held += trace.nbytes
        while self._held > self._nbytes:
            _, oldest = self._ended.popitem(last=False)
            self._held -= oldest.nbytes

    def find(self, id: str) -> dict[str, Any] | None:
        """The ledger of a request as plain data; None if nothing is known of it."""
        trace = self._under_way.get(id) or self._ended.get(id)
        return None if trace is None else _told(trace)


def _add(trace: _Trace, step: _Step) -> None:
    if trace.begun is None:
        trace.begun = step.started
    trace.steps += 1
    trace.seconds += step.seconds
    trace.priced.add(step.seconds, step.predicted, step.floor)


def _outcome(live: InFlightRequest, error: BaseException | None) -> str:
    if FinishReason.ERROR in live.finishes:
        return "failed"
    if len(live.finishes) == live.spec.params.n:
        return "finished"
    return "failed" if failed_by_engine(error) else "aborted"


def _told(trace: _Trace) -> dict[str, Any]:
    figures = trace.request if isinstance(trace.request, _Figures) else _Figures.of(trace.request)
    priced, begun, first = trace.priced, trace.begun, trace.first
    return {
        "id": figures.id,
        "object": "request.trace",
        "route": figures.route,
        "stream": figures.stream,
        "state": trace.outcome or ("decode" if first is not None else "queue" if begun is None else "prefill"),
        "choices": figures.choices,
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached,
        "output_tokens": figures.tokens,
        "finish_reasons": [str(finish) for finish in figures.finishes],
        "queue_seconds": _between(figures.arrived, begun),
        "prefill_seconds": _between(begun, first),
        "decode_seconds": _between(first, trace.last),
        "total_seconds": _between(figures.arrived, trace.last),
        "steps": trace.steps,
        "step_seconds": trace.seconds,
        "predicted_seconds": priced.predicted if priced.measured else None,
        "floor_seconds": priced.floor if priced.measured else None,
        "predicted_share": priced.share,
        "ledger": [_row(row, figures.arrived) for row in trace.rows],
        "ledger_complete": len(trace.rows) < _MAX_STEPS,
    }


def _row(row: _TraceRow, arrived: int) -> dict[str, Any]:
    """neighbours: sequences that ran in the same step, without this one; positions: of all of them, this one's too."""
    step = row.step
    return {
        "step": step.step,
        "at": _between(arrived, step.started),
        "choice": row.choice,
        "start": row.start,
        "count": row.end - row.start,
        "seconds": step.seconds,
        "predicted": step.predicted,
        "floor": step.floor,
        "neighbours": step.sequences - 1,
        "positions": step.positions,
    }


def _between(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) * NANOSECONDS
