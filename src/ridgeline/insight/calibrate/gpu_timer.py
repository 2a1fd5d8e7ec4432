"""A timer for the ops of a step on a GPU, without the gaps that launching them one by one would leave.

The GPU first gets a wait kernel, so that a whole step is queued before any of it runs. Its kernels then follow each
other as in a captured step, or in one that takes the GPU longer than the host. Events between ops measure each. Events
take time themselves, which `without_gaps` subtracts.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import RowAxis
from ridgeline.insight.calibrate.steps import SHORTEST, TimedOp

_CYCLES_A_SECOND = 2.2e9  # at least the clock rate of any supported GPU; a slower one only waits a little longer
_REPEATS = range(5, 40)
_WAITS = (1, 2, 4, 8)
_LEAST = 1 / 3

Result = TypeVar("Result")
Part = tuple[Op, str]
Pair = tuple[torch.cuda.Event, torch.cuda.Event]


class GpuTimer:
    """A timer for the ops of a model on a GPU."""

    def __init__(self, model: PricedModule) -> None:
        self.parts: list[Part] = [(op, part) for _, op in model.ops() for part in op.parts]
        self._events: dict[Part, list[Pair]] = {}

    def medians(
        self, step: Callable[[], object], spaces_of: Mapping[Op, Sequence[RowAxis]], budget: float
    ) -> tuple[list[TimedOp], float]:
        """Return the time of every op of a step and of the whole step, measured for about `budget` seconds.

        Args:
            step: Runs the step.
            spaces_of: The row axis of each of an op's calls, in order.
            budget: The time budget in seconds.
        """
        asking = launch_seconds(step)
        whole = statistics.median(repeated(lambda: whole_seconds(step, asking), budget / 2))
        taken: dict[Part, list[list[float]]] = {}
        with self._watching():
            asking = max(asking, launch_seconds(step))
            for own in repeated(lambda: self._split(step, asking), budget / 2):
                for part, seconds in own.items():
                    taken.setdefault(part, []).append(seconds)
        return _timed_ops(taken, spaces_of, whole), whole

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Record events around the parts of all ops within this context."""
        for op, part in self.parts:
            setattr(op, part, self._noted((op, part), getattr(op, part)))
        try:
            yield
        finally:
            for op, part in self.parts:
                delattr(op, part)

    def _noted(self, part: Part, forward: Any) -> Any:
        def call(*arguments: Any) -> Any:
            start, end = event(), event()
            start.record()
            result = forward(*arguments)
            end.record()
            self._events.setdefault(part, []).append((start, end))
            return result

        return call

    def _split(self, step: Callable[[], object], asking: float) -> dict[Part, list[float]]:
        """Return the seconds of every call of each op part, from one timed run of a step."""

        def again() -> None:
            self._events.clear()
            step()

        seconds_of = run_between_events(again, asking)
        return {part: [*map(seconds_of, pairs)] for part, pairs in self._events.items()}


def repeated(once: Callable[[], Result], budget: float) -> list[Result]:
    """Repeat a call for `budget` seconds, but 5 to 40 times, and return its results without the first two."""
    end, results = time.perf_counter() + budget, list[Result]()
    while len(results) < _REPEATS.start or (time.perf_counter() < end and len(results) < _REPEATS.stop):
        results.append(once())
    return results[2:]


def launch_seconds(step: Callable[[], object]) -> float:
    """Return the seconds that the host takes to launch a step whose kernels are compiled."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds


def _wait(seconds: float) -> None:
    """Queue a wait kernel of slightly more than `seconds` seconds."""
    torch.cuda._sleep(int((1.3 * seconds + 1e-3) * _CYCLES_A_SECOND))  # type: ignore[no-untyped-call]


def whole_seconds(step: Callable[[], object], asking: float) -> float:
    """Return the GPU seconds of a step whose kernels are all queued before the first one runs.

    Args:
        step: Launches the step.
        asking: The seconds that the host takes for that.
    """
    return between(_ahead(step, asking)[1])


def run_between_events(step: Callable[[], object], asking: float) -> Callable[[Pair], float]:
    """Run a step that records pairs of events, queued completely before it runs.

    Returns:
        A function that returns the seconds between a pair of its last run, less the time of two events.
    """
    itself = between(_ahead(step, asking)[0])
    return lambda pair: max(SHORTEST, between(pair) - itself)


def _ahead(step: Callable[[], object], asking: float) -> tuple[Pair, Pair]:
    """Launch a step while the GPU waits, and retry with a longer wait if the GPU started too early.

    Returns:
        A pair of events around nothing, and a pair around the step.
    """
    for times in _WAITS:
        _wait(times * asking)
        nothing, around = (event(), event()), (event(), event())
        nothing[0].record()
        nothing[1].record()
        around[0].record()
        step()
        around[1].record()
        launched_in_time = not nothing[0].query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        if launched_in_time:
            break
    return nothing, around


def event() -> torch.cuda.Event:
    """Return a CUDA event that records its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def between(pair: Pair) -> float:
    """Return the seconds between two CUDA events."""
    return float(pair[0].elapsed_time(pair[1])) / 1e3


def _timed_ops(
    taken: Mapping[Part, Sequence[Sequence[float]]], spaces_of: Mapping[Op, Sequence[RowAxis]], whole: float
) -> list[TimedOp]:
    """Return the median time of every op call, corrected so that they add up to the time of the whole step."""
    calls, medians = list[tuple[Op, str, RowAxis]](), list[float]()
    for (op, part), runs in taken.items():
        spaces = spaces_of[op]
        assert all(len(run) == len(spaces) for run in runs), "every step must make every call"
        calls += [(op, part, space) for space in spaces]
        medians += [statistics.median(call) for call in zip(*runs, strict=True)]
    return [TimedOp(*call, own) for call, own in zip(calls, without_gaps(medians, whole), strict=True)]


def without_gaps(medians: Sequence[float], whole: float) -> list[float]:
    """Correct the times of calls that were measured with events around them, given the time of all together.

    An event prevents a kernel from starting while the previous one ends, which costs short kernels as much as long
    ones. The same gap is therefore subtracted from each call, but at least the share `_LEAST` of its time remains.
    """

    def left(gap: float) -> list[float]:
        return [max(seconds - gap, _LEAST * seconds) for seconds in medians]

    low, high = 0.0, max(medians)
    for _ in range(50):
        gap = (low + high) / 2
        low, high = (gap, high) if sum(left(gap)) > whole else (low, gap)
    found = left(high)
    return [max(SHORTEST, seconds * whole / sum(found)) for seconds in found]
