"""What the ops of a step take on a card, without the gaps that asking for them one by one would leave.

The card is given something to wait in first, so that a whole step is asked for before any of it runs: its kernels then
follow each other as they do in a captured step, or in one that takes them longer than it takes the host to ask. Events
between ops say what each took. They take time themselves, which `without_gaps` takes off again.
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

_CYCLES_A_SECOND = 2.2e9  # of any card at hand, or more: it waits a little longer then
_REPEATS = range(5, 40)
_WAITS = (1, 2, 4, 8)
_LEAST = 1 / 3

Result = TypeVar("Result")
Part = tuple[Op, str]
Pair = tuple[torch.cuda.Event, torch.cuda.Event]


class GpuTimer:
    """Times the ops of a model on a card."""

    def __init__(self, model: PricedModule) -> None:
        self.parts: list[Part] = [(op, part) for _, op in model.ops() for part in op.parts]
        self._events: dict[Part, list[Pair]] = {}

    def medians(
        self, step: Callable[[], object], spaces_of: Mapping[Op, Sequence[RowAxis]], budget: float
    ) -> tuple[list[TimedOp], float]:
        """Every op of a step, timed for about `budget` seconds; and the seconds of the whole step. spaces_of: the space
        of each of an op's calls, in order.
        """
        asking = seconds_to_ask(step)
        whole = statistics.median(repeated(lambda: whole_seconds(step, asking), budget / 2))
        taken: dict[Part, list[list[float]]] = {}
        with self._watching():
            asking = max(asking, seconds_to_ask(step))
            for own in repeated(lambda: self._split(step, asking), budget / 2):
                for part, seconds in own.items():
                    taken.setdefault(part, []).append(seconds)
        return _timed_ops(taken, spaces_of, whole), whole

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """While it lasts, events are noted around the parts of ops."""
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
        """Seconds of every call of each part in a run of the step."""

        def again() -> None:
            self._events.clear()
            step()

        seconds_of = run_between_events(again, asking)
        return {part: [*map(seconds_of, pairs)] for part, pairs in self._events.items()}


def repeated(once: Callable[[], Result], budget: float) -> list[Result]:
    """What a call gives, again and again for so many seconds, without the first two."""
    end, results = time.perf_counter() + budget, list[Result]()
    while len(results) < _REPEATS.start or (time.perf_counter() < end and len(results) < _REPEATS.stop):
        results.append(once())
    return results[2:]


def seconds_to_ask(step: Callable[[], object]) -> float:
    """Seconds that the host takes to ask for a step, when all that it asks for is compiled."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds


def _wait(seconds: float) -> None:
    """Have the card do nothing for a while, and somewhat longer."""
    torch.cuda._sleep(int((1.3 * seconds + 1e-3) * _CYCLES_A_SECOND))  # type: ignore[no-untyped-call]


def whole_seconds(step: Callable[[], object], asking: float) -> float:
    """Seconds of a step that takes the host so long to ask for, all of it asked for before any of it runs."""
    return between(_ahead(step, asking)[1])


def run_between_events(step: Callable[[], object], asking: float) -> Callable[[Pair], float]:
    """Run a step as `whole_seconds` does, in which pairs of events are recorded, those of its last run: what then says
    how many seconds lie between a pair, less what two events take by themselves.
    """
    itself = between(_ahead(step, asking)[0])
    return lambda pair: max(SHORTEST, between(pair) - itself)


def _ahead(step: Callable[[], object], asking: float) -> tuple[Pair, Pair]:
    """Ask for a step while the card waits, for longer where it has begun before all was asked for. Events around
    nothing, and around the step.
    """
    for times in _WAITS:
        _wait(times * asking)
        nothing, around = (event(), event()), (event(), event())
        nothing[0].record()
        nothing[1].record()
        around[0].record()
        step()
        around[1].record()
        asked_in_time = not nothing[0].query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        if asked_in_time:
            break
    return nothing, around


def event() -> torch.cuda.Event:
    """One that says when it was."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def between(pair: Pair) -> float:
    """Seconds between two events."""
    return float(pair[0].elapsed_time(pair[1])) / 1e3


def _timed_ops(
    taken: Mapping[Part, Sequence[Sequence[float]]], spaces_of: Mapping[Op, Sequence[RowAxis]], whole: float
) -> list[TimedOp]:
    """Medians of every call, all calls of a step together as many seconds as the whole."""
    calls, medians = list[tuple[Op, str, RowAxis]](), list[float]()
    for (op, part), runs in taken.items():
        spaces = spaces_of[op]
        assert all(len(run) == len(spaces) for run in runs), "every step makes every call"
        calls += [(op, part, space) for space in spaces]
        medians += [statistics.median(call) for call in zip(*runs, strict=True)]
    return [TimedOp(*call, own) for call, own in zip(calls, without_gaps(medians, whole), strict=True)]


def without_gaps(medians: Sequence[float], whole: float) -> list[float]:
    """Seconds of calls that were timed with events around each, of which a step takes `whole` together. An event keeps
    a kernel from being started while the one before still runs, which costs a short one as much as a long one; but
    none less than the part of its own that _LEAST says is left.
    """

    def left(gap: float) -> list[float]:
        return [max(seconds - gap, _LEAST * seconds) for seconds in medians]

    low, high = 0.0, max(medians)
    for _ in range(50):
        gap = (low + high) / 2
        low, high = (gap, high) if sum(left(gap)) > whole else (low, gap)
    found = left(high)
    return [max(SHORTEST, seconds * whole / sum(found)) for seconds in found]
