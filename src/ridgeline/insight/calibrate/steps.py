"""Timing every op of a step where it stands: in its model, after the op before it, as the engine runs it.

An op in a loop of its own is faster than the same op in a model, by up to two times for small ones: the processor has
its code at hand and nothing else. What a price adds up is the op in the model. A decode step that engines record
(backends/cpu/cpu_graphs.py) is timed as they run it: replayed, call by call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from torch import Tensor

from ridgeline.backends.timed_backend import OpTimer, Part, TimedBackend
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.forward_batch import ForwardBatch
from ridgeline.core.ops.kv_layout import deal_layers
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.step_graphs import StepGraph
from ridgeline.core.ops.work import RowAxis, StepSegment, Work
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.insight.calibrate.timer import Timer, undisturbed

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
    space: RowAxis
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step of a trial. what: it is called. work: that it asks of the model. run: prepares and runs it, while a watch
    is on or not.
    """

    what: str
    work: Work
    run: Callable[[], object]


class Stopwatch(OpTimer):
    """A watch by the clock of a timer."""

    def __init__(self, model: PricedModule, timer: Timer) -> None:
        super().__init__(model, timer.now)
        self.timer = timer

    def typical(
        self, taken: Mapping[Part, Sequence[float]], spaces_of: Mapping[Op, Sequence[RowAxis]]
    ) -> list[TimedOp]:
        """The ops that ran, each with what it took undisturbed, of the seconds of all its calls. spaces_of: the space
        of each of its calls in a step, in their order.
        """
        found = []
        for (op, part), times in taken.items():
            spaces = spaces_of[op]
            assert len(times) % len(spaces) == 0, "every step makes every call"
            for call, space in enumerate(spaces):
                if own := times[call :: len(spaces)]:
                    seconds = undisturbed(own) - self.inside
                    found.append(TimedOp(op, part, space, max(SHORTEST, seconds)))
        return found


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step to be run any number of times, as the engine runs it: asked for, or replayed."""

    runner: Runner
    batch: ForwardBatch
    recording: StepGraph | None

    def run(self) -> Tensor:
        """Its logits."""
        return self.runner.run(self.batch) if self.recording is None else self.recording.again()


class TrialRunner:
    """The engine's runner, given steps of any shape without what came before them."""

    def __init__(self, model: Model, positions: int, watch: Stopwatch | None = None) -> None:
        """`positions`: that one step's sequences have together, at most, each rounded up to whole pages. watch: what is
        to time recorded steps.
        """
        layout = deal_layers(model.kv_specs, PAGE, positions)
        layout = replace(layout, pages=positions // PAGE + 1)
        self._watch = watch
        self.runner = Runner(model, layout, backend=None if watch is None else TimedBackend(watch))
        self.runner.store.blank(range(1, positions // PAGE + 2))  # numbers that cost what numbers cost

    def prepare(self, sequences: Sequences, *, recorded: bool = True) -> PreparedStep:
        """A step whose sequences lie behind each other in KV memory. Every group's tables begin with the same pages, so
        the groups write over each other: only time counts. Another step prepared puts an end to this one. recorded:
        whether it may be.
        """
        begins = accumulate((-(-kv // PAGE) for _, kv in sequences), initial=1)
        items = (self._item(number, *one) for number, one in enumerate(zip(begins, sequences, strict=False)))
        plan = StepPlan(0, tuple(items))
        batch = self.runner.prepare(plan)
        return PreparedStep(self.runner, batch, self.runner.graph(plan) if recorded else None)

    def _item(self, number: int, begin: int, sequence: tuple[int, int]) -> PlanItem:
        q, kv = sequence
        # Every row another token, or a router would send all to the same experts.
        ids = [(begin * PAGE + position) % self.runner.model.vocabulary for position in range(kv - q, kv)]
        tables = tuple(tuple(range(begin, begin + g.entries(kv))) for g in self.runner.store.layout.groups)
        return PlanItem(number, kv - q, ids, tables, first=True, logits=(q - 1,))

    def run(self, sequences: Sequences) -> None:
        """Prepare a step anew and run it: a recorded one finds the caches as the Python before it leaves them, and is
        timed by the stage's watch.
        """
        step = self.prepare(sequences)
        if step.recording is not None and step.recording.calls and self._watch is not None:
            self._watch.again(step.recording)
        else:
            step.run()

    def work(self, sequences: Sequences) -> Work:
        """What such a step asks."""
        return Work.of([StepSegment(q, kv) for q, kv in sequences], self.runner.model.reaches)


def time_steps(
    watch: Stopwatch,
    spaces_of: Mapping[Op, Sequence[RowAxis]],
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
    decode = next((step for step in steps if step.work.is_verify), None)
    between()
    for visit in range(VISITS):
        for step, own in zip(steps, taken, strict=True):
            before = None if step.work.is_verify else decode
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
