"""The traces of requests: when each waited, and which steps it shared, with lengths but no text.

A trace lists a limited number of steps; its sums include all of them. Traces of finished requests are stored within a
memory limit.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.request import NANOSECONDS, FinishReason
from ridgeline.engine.worker.engine_messages import StepReport
from ridgeline.engine.worker.priced_steps import PricedSteps
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.service import Service, failed_by_engine
from ridgeline.util.json_data import json_select

_MAX_STEPS = 4096  # rows per trace; the sums include later steps
_BYTES_A_ROW, _BYTES_A_TRACE = 400, 1000  # estimated memory, rounded up


class _Step(NamedTuple):
    """The properties of a step that all its requests share."""

    step: int
    started: int
    seconds: float
    predicted: float | None
    floor: float | None
    sequences: int
    """The number of sequences in the step."""
    positions: int
    """The number of positions that all sequences ran."""


class _TraceRow(NamedTuple):
    """The part of a step that one choice ran: positions [start, end)."""

    step: _Step
    choice: int
    start: int
    end: int


class _Figures(NamedTuple):
    """The lengths, finish reasons and arrival of a finished request, without sampling parameters and service tier.

    Those may be as long as an HTTP body, so a stored trace must not refer to them.
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
        """Return the present lengths, finish reasons and arrival time of a request."""
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
    """The trace of one request, which no longer refers to the request itself after its end."""

    request: InFlightRequest | _Figures
    rows: list[_TraceRow] = field(default_factory=list)
    steps: int = 0
    """The number of steps that included the request."""
    seconds: float = 0.0
    """The total duration of the steps that included the request."""
    priced: PricedSteps = field(default_factory=PricedSteps)
    begun: int | None = None
    """The time at which the request's first step started."""
    first: int | None = None
    """The time at which the request's first token arrived."""
    last: int | None = None
    """The time at which the request's newest token arrived."""
    outcome: str | None = None

    @property
    def nbytes(self) -> int:
        """An upper estimate of the memory of the trace, in bytes."""
        return _BYTES_A_TRACE + _BYTES_A_ROW * len(self.rows)


class Traces:
    """The collection of request traces; an `Observer` of requests, which also gets each step (`stepped`)."""

    def __init__(self, service: Service, nbytes: int) -> None:
        """Start a collection without traces.

        Args:
            service: The service, which maps the engine's request numbers to requests.
            nbytes: The memory for traces of finished requests.
        """
        self._by_request, self._nbytes, self._llm = service.by_request, nbytes, service.llm
        self._under_way: dict[str, _Trace] = {}
        self._ended: OrderedDict[str, _Trace] = OrderedDict()
        self._held = 0

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Do nothing: a rejected request has no steps to record in a trace."""

    def arrived(self, live: InFlightRequest) -> None:
        """Start the trace of a request."""
        self._under_way[live.id] = _Trace(live)

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Record when a token or the end of a request arrived."""
        trace = self._under_way[live.id]
        if event.token is None and event.finish is None and event.hidden is None:
            return  # the event has only log-probabilities of the prompt
        if trace.first is None:
            trace.first = event.at
        trace.last = event.at

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Add a row to the traces of the requests in the step."""
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
            if request not in counted:  # choices of one request share the step
                counted.add(request)
                _add(trace, step)
            if len(trace.rows) < _MAX_STEPS:
                trace.rows.append(_TraceRow(step, choice, start, start + count))

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Store the trace of a finished request, and drop the oldest traces that exceed the memory limit."""
        trace = self._under_way.pop(live.id)
        trace.outcome = _outcome(live, error)
        trace.request = _Figures.of(live)
        self._ended[live.id] = trace
        self._held += trace.nbytes
        while self._held > self._nbytes:
            _, oldest = self._ended.popitem(last=False)
            self._held -= oldest.nbytes

    def find(self, id: str) -> dict[str, Any] | None:
        """Return the trace of a request as a JSON object; None if there is none."""
        trace = self._under_way.get(id) or self._ended.get(id)
        return None if trace is None else _trace_json(trace, self._llm.info.predicted_intervals)


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


def _trace_json(trace: _Trace, intervals: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the JSON object of a trace, with the factors between which 8 of 10 measured times lie, by phase."""
    figures = trace.request if isinstance(trace.request, _Figures) else _Figures.of(trace.request)
    priced, begun, first = trace.priced, trace.begun, trace.first
    return {
        "id": figures.id,
        "object": "request.trace",
        **json_select(figures, "route", "stream"),
        "state": trace.outcome or ("decode" if first is not None else "queue" if begun is None else "prefill"),
        **json_select(figures, "choices", "prompt_tokens", "cached_tokens=cached", "output_tokens=tokens"),
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
        "predicted_intervals": dict(intervals),
        "ledger": [_row(row, figures.arrived) for row in trace.rows],
        "ledger_complete": len(trace.rows) < _MAX_STEPS,
    }


def _row(row: _TraceRow, arrived: int) -> dict[str, Any]:
    """Return the JSON object of a choice's part in a step, for a request's trace.

    `neighbours` counts the other sequences of the step, and `positions` the positions of all sequences.
    """
    step = row.step
    return {
        "step": step.step,
        "at": _between(arrived, step.started),
        "choice": row.choice,
        "start": row.start,
        "count": row.end - row.start,
        **json_select(step, "seconds", "predicted", "floor"),
        "neighbours": step.sequences - 1,
        "positions": step.positions,
    }


def _between(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) * NANOSECONDS
