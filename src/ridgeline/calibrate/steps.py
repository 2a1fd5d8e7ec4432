"""Timing every op of a step where it stands: in its model, after the op before it, as the engine runs it.

An op in a loop of its own is faster than the same op in a model, by up to two times for small ones: the processor has
its code at hand and nothing else. What a price adds up is the op in the model.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from torch import Tensor

from ridgeline.calibrate.timer import Timer
from ridgeline.calibrate.trials import Sequences
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.models.model import Model
from ridgeline.ops.batch import Batch
from ridgeline.ops.kv import deal_layers
from ridgeline.ops.op import Op
from ridgeline.ops.work import Segment, Work

PAGE = 16
_SHORTEST = 1e-8  # seconds: no call is shorter, whatever the watch subtracts


@dataclass(frozen=True, slots=True)
class TimedOp:
    """A part of an op in a step (`Op.parts`): its median seconds there."""

    op: Op
    part: str
    seconds: float


class Stopwatch:
    """Times every op of a model while it is `on`. inside: seconds of each interval that are the watch's own."""

    def __init__(self, model: Model, timer: Timer) -> None:
        self.ops = [op for _, op in model.ops()]
        self.timer = timer
        self.seconds: dict[tuple[Op, str], list[float]] = {(op, part): [] for op in self.ops for part in op.parts}
        self.inside = _own_seconds(timer)

    @property
    def calls(self) -> int:
        """How many calls were timed."""
        return sum(map(len, self.seconds.values()))

    @property
    def spent(self) -> float:
        """Seconds of all calls that were timed, without those of the watch."""
        return sum(map(sum, self.seconds.values())) - self.calls * self.inside

    @contextmanager
    def on(self) -> Iterator[None]:
        """While it lasts, calls of ops are timed."""
        for (op, part), seconds in self.seconds.items():
            setattr(op, part, _timed(getattr(op, part), self.timer, seconds))
        try:
            yield
        finally:
            for op, part in self.seconds:
                delattr(op, part)

    def clear(self) -> None:
        """Forget what was timed."""
        for seconds in self.seconds.values():
            seconds.clear()

    def medians(self) -> list[TimedOp]:
        """The ops that ran, each with its median."""
        return [
            TimedOp(op, part, max(_SHORTEST, statistics.median(times) - self.inside))
            for (op, part), times in self.seconds.items()
            if times
        ]


def _timed(forward: Any, timer: Timer, seconds: list[float]) -> Any:
    def call(*arguments: Any) -> Any:
        start = timer.now()
        result = forward(*arguments)
        seconds.append(timer.now() - start)
        return result

    return call


def _own_seconds(timer: Timer) -> float:
    """Seconds that the watch adds to an interval that it times."""
    seconds: list[float] = []
    watched = _timed(lambda: None, timer, seconds)
    for _ in range(200):
        watched()
    return statistics.median(seconds)


class Stage:
    """The engine's runner, given steps of any shape without what came before them."""

    def __init__(self, model: Model, positions: int) -> None:
        """`positions`: that one step's sequences have together, at most, each rounded up to whole pages."""
        layout = deal_layers(model.kv_specs, PAGE, positions)
        self.runner = Runner(model, replace(layout, pages=positions // PAGE + 1))
        self.runner.store.blank(range(1, positions // PAGE + 2))  # numbers that cost what numbers cost

    def prepare(self, sequences: Sequences) -> Batch:
        """A step whose sequences lie behind each other in KV memory. Every group's tables begin with the same pages, so
        the groups write over each other: only time counts."""
        begins = accumulate((-(-kv // PAGE) for _, kv in sequences), initial=1)
        items = (self._item(number, *one) for number, one in enumerate(zip(begins, sequences, strict=False)))
        return self.runner.prepare(StepPlan(0, tuple(items)))

    def _item(self, number: int, begin: int, sequence: tuple[int, int]) -> PlanItem:
        q, kv = sequence
        # Every row another token, or a router would send all to the same experts.
        ids = [(begin * PAGE + position) % self.runner.model.vocabulary for position in range(kv - q, kv)]
        tables = tuple(tuple(range(begin, begin + g.entries(kv))) for g in self.runner.store.layout.groups)
        return PlanItem(number, kv - q, ids, tables, first=True, logits=(q - 1,))

    def run(self, batch: Batch) -> Tensor:
        """One step; its logits."""
        return self.runner.run(batch)

    def work(self, sequences: Sequences) -> Work:
        """What such a step asks."""
        return Work.of([Segment(q, kv) for q, kv in sequences], self.runner.model.reaches)


def time_ops(stage: Stage, watch: Stopwatch, sequences: Sequences, budget: float) -> list[TimedOp]:
    """Every op of a step, timed in place for about `budget` seconds."""
    batch = stage.prepare(sequences)
    with watch.on():
        stage.run(batch)
        watch.clear()
        watch.timer.each(lambda: stage.run(batch), budget)
    return watch.medians()
