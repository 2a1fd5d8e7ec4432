"""Measuring a step: the same one again and again, in turn without hooks and with them, and medians of it all.

Each hooked run is taken apart completely: making the batch, every op, every gap between two ops, what follows the last
op, sampling. From an op the interval that hooks time around nothing is subtracted, from a gap what else they cost, so
that ops and overheads add up to the step as it would be without hooks. The runs without hooks say how well that holds.

Runs in which the kernel took the processor away (it counts them) are left out, as long as enough others remain.
"""

import dataclasses
import gc
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.engine.events import StepRecord
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Outcome, Sampled, SampleRow
from ridgeline.engine.step_plan import StepPlan
from ridgeline.trace.timeline import Clock
from ridgeline.trace.tracer import Call, HookCost, Tracer

FEWEST, MOST = 3, 41  # repeats of a step
BUDGET_SECONDS = 2.0  # what repeating a step may take, if the fewest repeats take no longer

Tokens = Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A step, measured: medians over `repeats`, in seconds, hooks subtracted.

    seconds and gaps: of each call, its own and what lies before it; what lies before the first is `batch`, not a gap.
    tail: from the last op to the logits. sampling: from the logits to the token. hooked: the whole step with hooks,
    less `hooks`, what they take. unhooked: the whole step without. left_out: repeats that other processes interrupted.
    """

    plan: StepPlan
    calls: tuple[Call, ...]
    seconds: tuple[float, ...]
    gaps: tuple[float, ...]
    batch: float
    tail: float
    sampling: float
    hooked: float
    unhooked: float
    hooks: float
    repeats: int
    left_out: int

    @property
    def between(self) -> float:
        """Seconds between the first op and the logits that no op has."""
        return sum(self.gaps) + self.tail

    @property
    def whole(self) -> float:
        """Seconds of the step: ops and all that lies between and around them."""
        return sum(self.seconds) + self.batch + self.between + self.sampling


@dataclass(slots=True)
class Measuring:
    """Observes an engine's steps, and measures the first one and the first decode step."""

    runner: Runner
    tracer: Tracer
    cost: HookCost
    repeats: int | None = None
    measured: dict[str, Measurement] = field(default_factory=dict)

    def observe(self, record: StepRecord) -> None:
        """Measure a step. Repeating it writes the same keys and values to the same slots once more.

        Raises ValueError if it then gives another token.
        """
        name = "prefill" if record.plan.items[0].start == 0 else "decode"
        if name not in self.measured:
            self.measured[name] = _measure(self, record.plan.again(), record.rows, record.outcomes)


@dataclass(frozen=True, slots=True)
class _Run:
    """Moments of one run, hooks' among them. calm: no other process took the processor meanwhile."""

    begin: float
    logits: float
    end: float
    calm: bool
    starts: Sequence[float] = ()
    ends: Sequence[float] = ()

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def _measure(to: Measuring, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens) -> Measurement:
    clock = to.tracer.clock
    with to.tracer.recording() as calls:
        trial = _run(to.runner, plan, rows, wanted, clock)
    repeats = to.repeats or min(MOST, max(FEWEST, int(BUDGET_SECONDS / 2 / max(trial.seconds, 1e-9))))
    unhooked: list[_Run] = []
    hooked: list[_Run] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            unhooked.append(_run(to.runner, plan, rows, wanted, clock))
            _let_others(unhooked[-1])
            with to.tracer.timing() as (starts, ends):
                run = _run(to.runner, plan, rows, wanted, clock)
            assert len(starts) == len(ends) == len(calls), "a step ran other ops than the time before"
            hooked.append(dataclasses.replace(run, starts=starts, ends=ends))
            _let_others(run)
    finally:
        if collecting:
            gc.enable()
    return _medians(plan, tuple(calls), hooked, unhooked, to.cost)


def _run(runner: Runner, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens, clock: Clock) -> _Run:
    interrupted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    begin = clock()
    logits_RV = runner.forward(plan)
    logits = clock()
    tokens = runner.sample(logits_RV, rows)
    end = clock()
    if _ids(tokens) != _ids(wanted):
        raise ValueError(
            "the step gave another token when it was repeated: this machine or model does not repeat itself"
        )
    return _Run(begin, logits, end, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == interrupted)


def _let_others(run: _Run) -> None:
    """After an interrupted run sleep as long as it took (10 ms at most): the kernel then owes us a whole time slice."""
    if not run.calm:
        time.sleep(min(run.seconds, 0.01))


def _ids(tokens: Tokens) -> list[int | None]:
    return [one.token if isinstance(one, Sampled) else None for one in tokens]


def _calm(runs: Sequence[_Run]) -> Sequence[_Run]:
    """The runs that were not interrupted, if they are enough for a median; else all."""
    calm = [run for run in runs if run.calm]
    return calm if len(calm) >= min(FEWEST, len(runs)) else runs


def _medians(
    plan: StepPlan, calls: tuple[Call, ...], hooked: Sequence[_Run], unhooked: Sequence[_Run], cost: HookCost
) -> Measurement:
    """Medians of every part, less what the hooks take: half of `outside` on either side of an op."""
    runs, median = _calm(hooked), statistics.median
    half, count = cost.outside / 2, len(calls)
    ops = [median(run.ends[i] - run.starts[i] for run in runs) - cost.inside for i in range(count)]
    gaps = [median(run.starts[i] - run.ends[i - 1] for run in runs) - cost.outside for i in range(1, count)]
    hooks = count * (cost.inside + cost.outside)
    return Measurement(
        plan,
        calls,
        tuple(max(0.0, seconds) for seconds in ops),
        (0.0, *gaps),
        median(run.starts[0] - run.begin for run in runs) - half,
        median(run.logits - run.ends[-1] for run in runs) - half,
        median(run.end - run.logits for run in runs),
        median(run.seconds for run in runs) - hooks,
        median(run.seconds for run in _calm(unhooked)),
        hooks,
        len(runs),
        len(hooked) - len(runs),
    )
