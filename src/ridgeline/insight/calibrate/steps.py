"""The timing of every op of a step in place: in its model, after the previous op, as the engine runs it.

An op in a loop of its own is up to twice as fast as in a model if it is small, because the processor's caches hold its
code and nothing else. A price adds up ops in a model. A decode step that the engine records
(backends/cpu/cpu_graphs.py) is timed as the engine runs it: replayed, call by call.
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
from ridgeline.core.ops.kv_layout import group_layers
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.step_graphs import StepGraph
from ridgeline.core.ops.work import RowAxis, StepSegment, Work
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.insight.calibrate.timer import Timer, undisturbed

PAGE = 16
Sequences = tuple[tuple[int, int], ...]
"""The new positions and the resulting length of each sequence in an engine step."""
VISITS = 5
"""The number of rounds in which each step of a trial is timed."""
SHORTEST = 1e-8
"""The minimum duration of a call in seconds, whatever corrections subtract."""


@dataclass(frozen=True, slots=True)
class TimedOp:
    """A timed part of an op in a step: the part (`Op.parts`), the row axis that it ran over, and its seconds."""

    op: Op
    part: str
    space: RowAxis
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step on which calibration times the ops of a trial's model."""

    what: str
    """The description of the step, such as its batch and context."""
    work: Work
    """The work of the step, from which its price follows."""
    run: Callable[[], object]
    """A function that prepares and runs the step, whether it is being timed or not."""


class Stopwatch(OpTimer):
    """An op timer that uses the clock of a `Timer`."""

    def __init__(self, model: PricedModule, timer: Timer) -> None:
        super().__init__(model, timer.now)
        self.timer = timer

    def typical(
        self, taken: Mapping[Part, Sequence[float]], spaces_of: Mapping[Op, Sequence[RowAxis]]
    ) -> list[TimedOp]:
        """Return the ops that ran, each with its undisturbed time.

        Args:
            taken: The seconds of all calls of each part.
            spaces_of: The row axis of each of an op's calls in a step, in order.
        """
        found = []
        for (op, part), times in taken.items():
            spaces = spaces_of[op]
            assert len(times) % len(spaces) == 0, "every step must make every call"
            for call, space in enumerate(spaces):
                if own := times[call :: len(spaces)]:
                    seconds = undisturbed(own) - self.inside
                    found.append(TimedOp(op, part, space, max(SHORTEST, seconds)))
        return found


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step that can run any number of times as the engine runs it: op by op, or replayed."""

    runner: Runner
    batch: ForwardBatch
    recording: StepGraph | None

    def run(self) -> Tensor:
        """Run the step and return its logits."""
        return self.runner.run(self.batch) if self.recording is None else self.recording.replay()


class TrialRunner:
    """The engine's runner for steps of any shape, without the steps that would precede them."""

    def __init__(self, model: Model, positions: int, watch: Stopwatch | None = None) -> None:
        """Create a runner of steps with a KV cache of a given size.

        Args:
            model: The model.
            positions: The maximum positions of a step's sequences together, each rounded up to whole pages.
            watch: The stopwatch that times recorded steps.
        """
        layout = group_layers(model.kv_specs, PAGE, positions)
        layout = replace(layout, pages=positions // PAGE + 1)
        self._watch = watch
        self.runner = Runner(model, layout, backend=None if watch is None else TimedBackend(watch))
        self.runner.store.blank(range(1, positions // PAGE + 2))  # zeros take as long as any numbers

    def prepare(self, sequences: Sequences, *, recorded: bool = True) -> PreparedStep:
        """Prepare a step whose sequences lie one after another in KV memory.

        The tables of all page groups begin with the same pages, so groups overwrite each other's data; only time
        matters. Preparing another step invalidates this one.

        Args:
            sequences: The sequences.
            recorded: Whether the step may be recorded.
        """
        begins = accumulate((-(-kv // PAGE) for _, kv in sequences), initial=1)
        items = (self._item(number, *one) for number, one in enumerate(zip(begins, sequences, strict=False)))
        plan = StepPlan(0, tuple(items))
        batch = self.runner.prepare(plan)
        return PreparedStep(self.runner, batch, self.runner.graph(plan) if recorded else None)

    def _item(self, number: int, begin: int, sequence: tuple[int, int]) -> PlanItem:
        q, kv = sequence
        # Each row has a different token, because a router would send equal ones to the same experts.
        ids = [(begin * PAGE + position) % self.runner.model.vocabulary for position in range(kv - q, kv)]
        tables = tuple(tuple(range(begin, begin + g.entries(kv))) for g in self.runner.store.layout.groups)
        return PlanItem(number, kv - q, ids, tables, first=True, logits=(q - 1,))

    def run(self, sequences: Sequences) -> None:
        """Prepare and run a step with the given sequences, each described by its new positions and length.

        A recorded step thereby finds the caches as the preceding Python leaves them, and the stopwatch times it.
        """
        step = self.prepare(sequences)
        if step.recording is not None and step.recording.calls and self._watch is not None:
            self._watch.again(step.recording)
        else:
            step.run()

    def work(self, sequences: Sequences) -> Work:
        """Return the work of a step with the given sequences.

        The work holds the step's rows and attention sizes, from which its price follows.
        """
        return Work.of([StepSegment(q, kv) for q, kv in sequences], self.runner.model.attention_patterns)


def time_steps(
    watch: Stopwatch,
    spaces_of: Mapping[Op, Sequence[RowAxis]],
    steps: Sequence[TrialStep],
    budget: float,
    between: Callable[[], object],
) -> list[list[TimedOp]]:
    """Time every op of each step in place, for about `budget` seconds per step.

    The steps take turns, `VISITS` times, so that a disturbance of a second or two affects a part of each step's time
    rather than all of one step's. A step with a prompt runs after a decode step each time, if there is one, as in an
    engine: a recorded step leaves none of the Python that launches ops in the caches.

    Args:
        watch: The stopwatch.
        spaces_of: The row axis of each of an op's calls, as for `Stopwatch.typical`.
        steps: The steps.
        budget: Seconds per step.
        between: Called before each round, and after the last.
    """
    taken: list[dict[Part, list[float]]] = [{part: [] for part in watch.seconds} for _ in steps]
    decode = next((step for step in steps if step.work.is_verify), None)
    between()
    for visit in range(VISITS):
        for step, own in zip(steps, taken, strict=True):
            before = None if step.work.is_verify else decode
            run = step.run if before is None else partial(_after, before, step, watch)
            with watch.on():
                if before is None or visit == 0:  # a step that always follows the same one needs no further warm-up
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
