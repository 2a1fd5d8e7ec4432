"""Timing every op of a step where it stands: in its model, after the op before it, as the engine runs it.

An op in a loop of its own is faster than the same op in a model, by up to two times for small ones: the processor has
its code at hand and nothing else. What a price adds up is the op in the model. A decode step that engines record
(engine/decoding.py) is timed as they run it: made again, call by call.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from ridgeline.calibrate.timer import Timer, undisturbed
from ridgeline.engine.bare import runner_of
from ridgeline.engine.capturing import Capture, CapturingRunner
from ridgeline.engine.decoding import DecodingRunner
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.models.model import Model
from ridgeline.models.network import Network
from ridgeline.ops.batch import Batch
from ridgeline.ops.kernels import library
from ridgeline.ops.kernels.recording import Recording
from ridgeline.ops.kv import KVLayout, deal_layers
from ridgeline.ops.op import Op
from ridgeline.ops.work import Segment, Space, Work

PAGE = 16
Sequences = tuple[tuple[int, int], ...]
"""Of each sequence in a step of an engine: the positions that run, and those that it has then."""
VISITS = 5
"""Times that each step of a trial has its turn."""
SHORTEST = 1e-8
"""Seconds: no call is shorter, whatever who times it subtracts."""


@dataclass(frozen=True, slots=True)
class TimedOp:
    """A part of an op in a step (`Op.parts`), called over the rows of a space: its seconds there."""

    op: Op
    part: str
    space: Space
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step of a trial. what: it is called. work: that it asks of the model. run: prepares and runs it, while a watch
    is on or not."""

    what: str
    work: Work
    run: Callable[[], object]


Part = tuple[Op, str]


class Stopwatch:
    """Times every op of a model while it is `on`, and recordings that were made meanwhile. inside: seconds of each
    interval that are the watch's own."""

    def __init__(self, model: Network, timer: Timer) -> None:
        self.ops = [op for _, op in model.ops()]
        self.timer = timer
        self.seconds: dict[Part, list[float]] = {(op, part): [] for op in self.ops for part in op.parts}
        self.inside = _own_seconds(timer)
        self._owners: dict[Recording, list[Part | None]] = {}
        self._spans: list[tuple[Part, int, int]] = []

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
        for op, part in self.seconds:
            setattr(op, part, self._watched((op, part)))
        try:
            yield
        finally:
            for op, part in self.seconds:
                delattr(op, part)

    def _watched(self, part: Part) -> Any:
        """The part, timed; or, while a recording is made, noted with the kernel calls that are its own."""
        op, name = part
        forward, kernels = getattr(op, name), library()
        timed = _timed(forward, self.timer, self.seconds[part])

        def call(*arguments: Any) -> Any:
            kept = None if kernels is None else kernels.recording
            if kept is None:
                return timed(*arguments)
            start = len(kept)
            result = forward(*arguments)
            self._spans.append((part, start, len(kept)))
            return result

        return call

    def know(self, recording: Recording) -> None:
        """Of a recording that was just made while the watch was on: which of its calls are whose. Those between ops are
        nobody's."""
        if recording not in self._owners:
            owners: list[Part | None] = [None] * len(recording.calls)
            for part, start, stop in self._spans:
                owners[start:stop] = [part] * (stop - start)
            self._owners[recording] = owners
        self._spans.clear()

    def again(self, recording: Recording) -> Tensor:
        """Make a recording's calls, each timed; what those of a part take is one interval of its."""
        spent = dict[Part, float]()
        for owner, (start, end) in zip(
            self._owners[recording], pairwise(recording.moments(self.timer.now)), strict=True
        ):
            if owner is not None:
                spent[owner] = spent.get(owner, self.inside) + end - start - self.inside
        for owner, seconds in spent.items():
            self.seconds[owner].append(seconds)
        return recording.result

    def clear(self) -> None:
        """Forget what was timed."""
        for seconds in self.seconds.values():
            seconds.clear()

    def aside(self, run: Callable[[], object]) -> None:
        """Run something of which nothing is timed."""
        counts = {part: len(seconds) for part, seconds in self.seconds.items()}
        run()
        for part, count in counts.items():
            del self.seconds[part][count:]

    def typical(self, taken: Mapping[Part, Sequence[float]], spaces_of: Mapping[Op, Sequence[Space]]) -> list[TimedOp]:
        """The ops that ran, each with what it took undisturbed, of the seconds of all its calls. spaces_of: the space
        of each of its calls in a step, in their order."""
        found = []
        for (op, part), times in taken.items():
            spaces = spaces_of[op]
            assert len(times) % len(spaces) == 0, "every step makes every call"
            for call, space in enumerate(spaces):
                if own := times[call :: len(spaces)]:
                    seconds = undisturbed(own) - self.inside
                    found.append(TimedOp(op, part, space, max(SHORTEST, seconds)))
        return found


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


class WatchedRunner(DecodingRunner):
    """The engine's runner, whose recorded steps a watch times that is on."""

    def __init__(self, model: Model, layout: KVLayout, watch: Stopwatch) -> None:
        super().__init__(model, layout)
        self._watch = watch

    def recording(self, plan: StepPlan) -> Recording | None:
        """As DecodingRunner.recording."""
        found = super().recording(plan)
        if found is not None:
            self._watch.know(found)
        return found

    def step_logits(self, plan: StepPlan) -> Tensor:
        """As DecodingRunner.step_logits."""
        recording = self.recording(plan)
        return super().step_logits(plan) if recording is None else self._watch.again(recording)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step to be run any number of times, as the engine runs it: asked for, or recorded."""

    runner: Runner
    batch: Batch
    recording: Recording | Capture | None

    def run(self) -> Tensor:
        """Its logits."""
        return self.runner.run(self.batch) if self.recording is None else self.recording.again()


class Stage:
    """The engine's runner, given steps of any shape without what came before them."""

    def __init__(self, model: Model, positions: int, watch: Stopwatch | None = None) -> None:
        """`positions`: that one step's sequences have together, at most, each rounded up to whole pages. watch: what is
        to time recorded steps."""
        layout = deal_layers(model.kv_specs, PAGE, positions)
        layout = replace(layout, pages=positions // PAGE + 1)
        self._watch = watch
        self.runner = runner_of(model, layout) if watch is None else WatchedRunner(model, layout, watch)
        self.runner.store.blank(range(1, positions // PAGE + 2))  # numbers that cost what numbers cost

    def prepare(self, sequences: Sequences, *, recorded: bool = True) -> PreparedStep:
        """A step whose sequences lie behind each other in KV memory. Every group's tables begin with the same pages, so
        the groups write over each other: only time counts. Another step prepared puts an end to this one. recorded:
        whether it may be."""
        begins = accumulate((-(-kv // PAGE) for _, kv in sequences), initial=1)
        items = (self._item(number, *one) for number, one in enumerate(zip(begins, sequences, strict=False)))
        plan = StepPlan(0, tuple(items))
        batch = self.runner.prepare(plan)
        return PreparedStep(self.runner, batch, self._repeated(plan) if recorded else None)

    def _repeated(self, plan: StepPlan) -> Recording | Capture | None:
        """The step as the engine makes it again, where it does."""
        if isinstance(self.runner, CapturingRunner):
            return self.runner.capture(plan)
        return self.runner.recording(plan) if isinstance(self.runner, DecodingRunner) else None

    def _item(self, number: int, begin: int, sequence: tuple[int, int]) -> PlanItem:
        q, kv = sequence
        # Every row another token, or a router would send all to the same experts.
        ids = [(begin * PAGE + position) % self.runner.model.vocabulary for position in range(kv - q, kv)]
        tables = tuple(tuple(range(begin, begin + g.entries(kv))) for g in self.runner.store.layout.groups)
        return PlanItem(number, kv - q, ids, tables, first=True, logits=(q - 1,))

    def run(self, sequences: Sequences) -> None:
        """Prepare a step anew and run it: a recorded one finds the caches as the Python before it leaves them, and is
        timed by the stage's watch."""
        step = self.prepare(sequences)
        if isinstance(step.recording, Recording) and self._watch is not None:
            self._watch.again(step.recording)
        else:
            step.run()

    def work(self, sequences: Sequences) -> Work:
        """What such a step asks."""
        return Work.of([Segment(q, kv) for q, kv in sequences], self.runner.model.reaches)


def time_steps(
    watch: Stopwatch,
    spaces_of: Mapping[Op, Sequence[Space]],
    steps: Sequence[TrialStep],
    budget: float,
    between: Callable[[], object],
) -> list[list[TimedOp]]:
    """Every op of each step, timed in place for about `budget` seconds a step. spaces_of: as `Stopwatch.typical` has
    it. between: called before each round, and after the last.

    The steps take turns, VISITS times, so that what else a machine does for a second or two takes a part of the time of
    each, and not all that there is of one. A step with a prompt comes after a decode step each time, if there is one,
    as it does in an engine: a recorded step has left nothing of the Python that asks for ops in the caches.
    """
    taken: list[dict[Part, list[float]]] = [{part: [] for part in watch.seconds} for _ in steps]
    decode = next((step for step in steps if step.work.verifies), None)
    between()
    for visit in range(VISITS):
        for step, own in zip(steps, taken, strict=True):
            before = None if step.work.verifies else decode
            run = step.run if before is None else partial(_after, before, step, watch)
            with watch.on():
                if before is None or visit == 0:  # what comes after the same step each time is as warm as it gets
                    run()
                watch.clear()
                watch.timer.each(run, budget / VISITS)
            for part, seconds in watch.seconds.items():
                own[part] += seconds
        between()
    return [watch.typical(own, spaces_of) for own in taken]


def _after(other: TrialStep, step: TrialStep, watch: Stopwatch) -> None:
    watch.aside(other.run)
    step.run()
