"""Measuring a step: the same one again and again, in turn without hooks and with them, and medians of it all.

Each hooked run is taken apart completely: making the batch, every op, every gap between two ops, what follows the last
op, sampling. From an op the interval that hooks time around nothing is subtracted, from a gap what else they cost, so
that ops and overheads add up to the step as it would be without hooks. The runs without hooks say how well that holds.

A step that the engine replays call by call (backends/cpu/cpu_graphs.py) runs no op that could be hooked: there is a
look at the clock between the calls.

What an engine does not step (a denoiser, an autoencoder) is measured the same way: `measure`.

A run in which the kernel took the processor away (it counts them) is left out, as long as enough others remain.
"""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ridgeline.core.ops.work import Work
from ridgeline.engine.events import StepRecord
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Outcome, Sampled, SampleRow
from ridgeline.engine.step_plan import StepPlan
from ridgeline.insight.trace.gpu_measurement import GpuStep, measure_on_gpu
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.timeline import Clock
from ridgeline.insight.trace.tracer import HookCost, Span, TracedCall, Tracer
from ridgeline.util.host import interruptions

MIN_REPEATS, MAX_REPEATS = 3, 41  # repeats of a step
BUDGET_SECONDS = 2.0  # what repeating a step may take, if the fewest repeats take no longer

Tokens = Sequence[Outcome]


@dataclass(slots=True)
class StepMeasurer:
    """Observes an engine's steps, and measures the first one and the first decode step."""

    runner: Runner
    tracer: Tracer
    cost: HookCost
    repeats: int | None = None
    measured: dict[str, Measurement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner.save_states()

    def observe(self, record: StepRecord) -> None:
        """Measure a step. Repeating it writes the same keys and values to the same slots once more, and moves states on
        from where they were.

        Raises ValueError if it then gives another token.
        """
        name = "prefill" if record.plan.items[0].start == 0 else "decode"
        if name not in self.measured:
            self.measured[name] = _measure(self, record.plan.again(), record.rows, record.outcomes)


@dataclass(frozen=True, slots=True)
class _MeasuredRun:
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


@torch.inference_mode()
def measure(
    tracer: Tracer,
    cost: HookCost,
    work: Work,
    run: Callable[[], Tensor],
    follow: Callable[[Tensor], object] = lambda _: None,
    repeats: int | None = None,
) -> Measurement:
    """Measure what a network does in a step of `work`. run: all its ops; follow: what is done with their result, which
    counts as sampling. Raises ValueError where a repeat gives another result.
    """
    first: list[Tensor] = []

    def once() -> _MeasuredRun:
        interrupted = interruptions()
        begin = tracer.clock()
        result = run()
        done = tracer.clock()
        follow(result)
        end = tracer.clock()
        calm = interruptions() == interrupted
        first[:] = first or [result]
        if not torch.equal(first[0], result):
            raise ValueError("a repeat gave another result: this machine or model does not repeat itself")
        return _MeasuredRun(begin, done, end, calm)

    if tracer.on_card:
        return measure_on_gpu(tracer, work, GpuStep(run, run, follow), repeats)
    with tracer.recording() as calls:
        trial = once()
    hooked, unhooked = _repeated(once, lambda: _hooked(tracer, once, len(calls)), _repeats(repeats, trial.seconds))
    return _medians(work, tuple(calls), hooked, unhooked, cost)


def _measure(to: StepMeasurer, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens) -> Measurement:
    if to.tracer.on_card:
        return _on_card(to, plan, rows, wanted)
    clock, work = to.tracer.clock, plan.work(to.runner.model.reaches)

    def once() -> _MeasuredRun:
        return _run(to.runner, plan, rows, wanted, clock)

    with to.tracer.recording() as calls:
        trial = once()
    recorded, repeats = _recorded(to, plan, len(calls)), _repeats(to.repeats, trial.seconds)
    if recorded is None:
        hooked, unhooked = _repeated(once, lambda: _hooked(to.tracer, once, len(calls)), repeats)
        return _medians(work, tuple(calls), hooked, unhooked, to.cost)
    spans = recorded
    hooked, unhooked = _repeated(once, lambda: _run_recorded(to.runner, spans, plan, rows, wanted, clock), repeats)
    looks = [stop - start for start, stop in spans]
    measurement = _medians(work, tuple(calls), hooked, unhooked, HookCost(to.cost.look, 0.0), looks)
    return dataclasses.replace(measurement, recorded=True)


def _on_card(to: StepMeasurer, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens) -> Measurement:
    runner = to.runner
    runner.rewind()
    batch = runner.prepare(plan)  # once: what a step is told in new pinned memory waits for the card

    def ops() -> None:
        runner.rewind()
        runner.run(batch)

    def result() -> Tensor:
        runner.rewind()
        return runner.step_logits(plan)

    def follow(logits_RV: Tensor) -> None:
        _check(runner.sampler.sample(logits_RV, rows), wanted)

    step = GpuStep(ops, result, follow, recorded=runner.graph(plan) is not None)
    return measure_on_gpu(to.tracer, plan.work(runner.model.reaches), step, to.repeats)


def measuring_seconds(step: float, repeats: int | None = None) -> float:
    """Seconds that it takes to measure a step of so many: what its hooks take is not in it."""
    return step * (1 + 2 * _repeats(repeats, step))


def _repeats(asked: int | None, step: float) -> int:
    """How often, where a step takes so many seconds."""
    return asked or min(MAX_REPEATS, max(MIN_REPEATS, int(BUDGET_SECONDS / 2 / max(step, 1e-9))))


def _repeated(
    plain: Callable[[], _MeasuredRun], hooked: Callable[[], _MeasuredRun], repeats: int
) -> tuple[list[_MeasuredRun], list[_MeasuredRun]]:
    """The runs with hooks and those without, made in turn."""
    without: list[_MeasuredRun] = []
    within: list[_MeasuredRun] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            without.append(plain())
            _let_others(without[-1])
            within.append(hooked())
            _let_others(within[-1])
    finally:
        if collecting:
            gc.enable()
    return within, without


def _hooked(tracer: Tracer, once: Callable[[], _MeasuredRun], ops: int) -> _MeasuredRun:
    """A run with the moments at which each of so many ops began and ended."""
    with tracer.timing() as (starts, ends):
        run = once()
    assert len(starts) == len(ends) == ops, "a step ran other ops than the time before"
    return dataclasses.replace(run, starts=starts, ends=ends)


def _recorded(to: StepMeasurer, plan: StepPlan, ops: int) -> Sequence[Span] | None:
    """Return which calls of a step are whose op's, if it is replayed call by call; None if it is not."""
    runner = to.runner
    if not runner.graphs.by_call or (graph := runner.graph(plan)) is None:
        return None
    with to.tracer.spans(runner.backend) as spans:
        runner.forward(plan)
    assert len(spans) == ops
    assert spans[-1][1] == len(graph.calls), "a replay makes the calls of a forward"
    return spans


def _run(runner: Runner, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens, clock: Clock) -> _MeasuredRun:
    runner.rewind()
    interrupted = interruptions()
    begin = clock()
    logits_RV = runner.step_logits(plan)
    logits = clock()
    tokens = runner.sampler.sample(logits_RV, rows)
    end = clock()
    _check(tokens, wanted)
    return _MeasuredRun(begin, logits, end, interruptions() == interrupted)


def _run_recorded(
    runner: Runner, spans: Sequence[Span], plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens, clock: Clock
) -> _MeasuredRun:
    interrupted = interruptions()
    begin = clock()
    graph = runner.graph(plan)
    assert graph is not None, "a step that was replayed is replayed again"
    moments = graph.moments(clock)
    tokens = runner.sampler.sample(graph.result, rows)
    end = clock()
    _check(tokens, wanted)
    calm = interruptions() == interrupted
    starts, ends = [moments[start] for start, _ in spans], [moments[stop] for _, stop in spans]
    return _MeasuredRun(begin, moments[-1], end, calm, starts, ends)


def _check(tokens: Tokens, wanted: Tokens) -> None:
    if _ids(tokens) != _ids(wanted):
        raise ValueError(
            "the step gave another token when it was repeated: this machine or model does not repeat itself"
        )


def _let_others(run: _MeasuredRun) -> None:
    """After an interrupted run sleep as long as it took (10 ms at most): the kernel then owes us a whole time slice."""
    if not run.calm:
        time.sleep(min(run.seconds, 0.01))


def _ids(tokens: Tokens) -> list[int | None]:
    return [one.token if isinstance(one, Sampled) else None for one in tokens]


def _calm(runs: Sequence[_MeasuredRun]) -> Sequence[_MeasuredRun]:
    """The runs that were not interrupted, if they are enough for a median; else all."""
    calm = [run for run in runs if run.calm]
    return calm if len(calm) >= min(MIN_REPEATS, len(runs)) else runs


def _medians(
    work: Work,
    calls: tuple[TracedCall, ...],
    hooked: Sequence[_MeasuredRun],
    unhooked: Sequence[_MeasuredRun],
    cost: HookCost,
    looks: Sequence[int] | None = None,
) -> Measurement:
    """Medians of every part, less what the hooks take: half of `outside` on either side of an op, and `inside` it as
    often as there are `looks` at the clock, one by default.
    """
    runs, median = _calm(hooked), statistics.median
    half, count = cost.outside / 2, len(calls)
    looks = looks or [1] * count
    ops = [median(run.ends[i] - run.starts[i] for run in runs) - looks[i] * cost.inside for i in range(count)]
    gaps = [median(run.starts[i] - run.ends[i - 1] for run in runs) - cost.outside for i in range(1, count)]
    hooks = sum(looks) * cost.inside + count * cost.outside
    return Measurement(
        work,
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
