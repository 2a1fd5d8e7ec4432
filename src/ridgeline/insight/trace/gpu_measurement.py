"""Measuring a step on a card, which the host asks for and does not wait for.

What an op takes is what the card takes for it: events around it say so, in a step that is asked for as a whole before
any of it runs (`insight/calibrate/gpu_timer.py`). What the step takes beyond that, from its plan to its result, is
between ops: there the card waits for the host. A captured step is taken apart by running it op by op; the whole is the
captured one.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.ops.work import Work
from ridgeline.insight.calibrate.gpu_timer import (
    Pair,
    event,
    repeated,
    run_between_events,
    seconds_to_ask,
    whole_seconds,
    without_gaps,
)
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.tracer import TracedCall, Tracer

_BUDGET_SECONDS = 1.0  # what each of three looks at a step may take
# Calls of a run that have events around them: a card's queue holds about a thousand kernels and events.
_NOTED = 32


@dataclass(frozen=True, slots=True)
class GpuStep:
    """A step, three ways. ops: all its ops, one by one. result: as the engine makes it, up to its result. follow: what
    is done with the result, which counts as sampling. recorded: whether `result` makes a captured step again.
    """

    ops: Callable[[], object]
    result: Callable[[], Tensor]
    follow: Callable[[Tensor], object]
    recorded: bool = False


def measure_on_gpu(tracer: Tracer, work: Work, step: GpuStep, repeats: int | None = None) -> Measurement:
    """Measure a step of `work`. The tracer's clock waits for the card (`gpu_clock`). repeats: of the whole step; None
    for as many as a second allows.
    """
    with tracer.recording() as calls:
        step.ops()
    seconds = _op_seconds(tracer, step.ops, calls)

    def once() -> tuple[float, float]:
        begin = tracer.clock()
        result = step.result()
        done = tracer.clock()
        step.follow(result)
        return done - begin, tracer.clock() - done

    runs = [once() for _ in range(repeats)] if repeats else repeated(once, _BUDGET_SECONDS)
    to_result, sampling = (statistics.median(each) for each in zip(*runs, strict=True))
    rest = max(0.0, to_result - sum(seconds))
    whole = to_result + sampling
    return Measurement(
        work, tuple(calls), tuple(seconds), (0.0,) * len(calls), 0.0, rest, sampling, whole, whole, 0.0, len(runs), 0,
        step.recorded,
    )  # fmt: skip


def gpu_clock(now: Callable[[], float]) -> Callable[[], float]:
    """A clock that says when all that the card was asked is done."""

    def clock() -> float:
        torch.cuda.synchronize()
        return now()

    return clock


def _op_seconds(tracer: Tracer, ops: Callable[[], object], calls: Sequence[TracedCall]) -> list[float]:
    """The median of each call, all together as many seconds as the ops take without events between them."""
    asking = seconds_to_ask(ops)
    whole = statistics.median(repeated(lambda: whole_seconds(ops, asking), _BUDGET_SECONDS))
    medians = [0.0] * len(calls)
    turns = max(1, len(calls) // _NOTED)
    for turn in range(turns):
        places = range(turn, len(calls), turns)
        for place, own in zip(places, _noted_seconds(tracer, ops, places, _BUDGET_SECONDS / turns), strict=True):
            medians[place] = own
    return without_gaps(medians, whole)


def _noted_seconds(tracer: Tracer, ops: Callable[[], object], places: range, budget: float) -> list[float]:
    """The medians of calls at these places, which have events around them in every run."""
    found: list[Pair] = []

    def noted() -> None:
        with tracer.pairs(event, places) as pairs:
            ops()
        found[:] = pairs

    asking = seconds_to_ask(noted)  # hooks take time of the host's too

    def once() -> list[float]:
        seconds_of = run_between_events(noted, asking)
        assert len(found) == len(places), "a step ran other ops than the time before"
        return [*map(seconds_of, found)]

    return [statistics.median(each) for each in zip(*repeated(once, budget), strict=True)]
