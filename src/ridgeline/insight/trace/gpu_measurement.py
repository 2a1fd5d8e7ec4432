"""The measurement of a step on a GPU, which executes asynchronously to the host.

The time of an op is what CUDA events around it measure, in a step that is queued completely before any of it runs
(`insight/calibrate/gpu_timer.py`). The remaining time of the step, from its plan to its result, counts as time between
ops, in which the GPU waits for the host. A CUDA graph step is split into ops by running it op by op; its total time is
that of the graph.
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
    launch_seconds,
    repeated,
    run_between_events,
    whole_seconds,
    without_gaps,
)
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.tracer import TracedCall, Tracer

_BUDGET_SECONDS = 1.0  # the time budget of each of three measurements
# The number of calls per run with events around them: a GPU's queue holds about a thousand kernels and events.
_NOTED = 32


@dataclass(frozen=True, slots=True)
class GpuStep:
    """A step in three forms, to be measured on a GPU."""

    ops: Callable[[], object]
    """A function that runs all ops of the step one by one."""
    result: Callable[[], Tensor]
    """A function that runs the step as the engine does, up to its result."""
    follow: Callable[[Tensor], object]
    """A function that processes the step's logits or other output; its time counts as sampling."""
    recorded: bool = False
    """Whether `result` replays the step as a CUDA graph."""


def measure_on_gpu(tracer: Tracer, work: Work, step: GpuStep, repeats: int | None = None) -> Measurement:
    """Measure the time of each op of a step on a GPU, of all gaps between them together, and of sampling.

    Args:
        tracer: The tracer, whose clock waits for the GPU (`gpu_clock`).
        work: The work of the step.
        step: The step.
        repeats: Repeats of the whole step; None for as many as fit in a second, but 3 to 38.
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
    """Return a clock that waits until the GPU has finished all queued work."""

    def clock() -> float:
        torch.cuda.synchronize()
        return now()

    return clock


def _op_seconds(tracer: Tracer, ops: Callable[[], object], calls: Sequence[TracedCall]) -> list[float]:
    """Return the median time of each call, corrected for the events so that they add up to the time of all ops."""
    asking = launch_seconds(ops)
    whole = statistics.median(repeated(lambda: whole_seconds(ops, asking), _BUDGET_SECONDS))
    medians = [0.0] * len(calls)
    turns = max(1, len(calls) // _NOTED)
    for turn in range(turns):
        places = range(turn, len(calls), turns)
        for place, own in zip(places, _noted_seconds(tracer, ops, places, _BUDGET_SECONDS / turns), strict=True):
            medians[place] = own
    return without_gaps(medians, whole)


def _noted_seconds(tracer: Tracer, ops: Callable[[], object], places: range, budget: float) -> list[float]:
    """Return the median time of the calls at the given indices, in runs with events around these calls only."""
    found: list[Pair] = []

    def noted() -> None:
        with tracer.pairs(event, places) as pairs:
            ops()
        found[:] = pairs

    asking = launch_seconds(noted)  # hooks take host time too

    def once() -> list[float]:
        seconds_of = run_between_events(noted, asking)
        assert len(found) == len(places), "the repeated step ran other ops than the first one"
        return [*map(seconds_of, found)]

    return [statistics.median(each) for each in zip(*repeated(once, budget), strict=True)]
