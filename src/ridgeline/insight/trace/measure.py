"""The measurement of a step: it is repeated with and without hooks in turn, and medians are taken.

Each hooked run is split completely: building the batch, every op, every gap between two ops, what follows the last op,
and sampling. The time that hooks measure around an empty op is subtracted from each op, and their remaining cost from
each gap, so that ops and overheads add up to the step without hooks. The runs without hooks check that.

A step that the engine replays call by call (backends/cpu/cpu_graphs.py) runs no op that could be hooked; there the
clock is read between the calls.

Networks outside the LLM engine (a denoiser, an autoencoder) are measured the same way by `measure`.

Runs that the operating system interrupted, by its own count, are left out if enough others remain.

All this holds for a CPU. On a GPU, `gpu_measurement.py` measures instead.
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
BUDGET_SECONDS = 2.0  # the time budget of a step's repeats, unless MIN_REPEATS takes longer

Tokens = Sequence[Outcome]


@dataclass(slots=True)
class StepMeasurer:
    """An observer of an engine's steps that measures the first prefill and the first decode step."""

    runner: Runner
    tracer: Tracer
    cost: HookCost
    repeats: int | None = None
    measured: dict[str, Measurement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner.save_states()

    def observe(self, record: StepRecord) -> None:
        """Measure the step that the engine just ran, unless a step of its phase is already measured.

        A repeat writes the same keys and values to the same slots again, from the same recurrent states.

        Raises:
            ValueError: If a repeat samples another token.
        """
        name = "prefill" if record.plan.items[0].start == 0 else "decode"
        if name not in self.measured:
            self.measured[name] = _measure(self, record.plan.rerun(), record.rows, record.outcomes)


@dataclass(frozen=True, slots=True)
class _MeasuredRun:
    """The timestamps of one run, with those of the hooks; `calm` if no other process took the processor meanwhile."""

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
    """Measure the ops, gaps and sampling of a network's run, as medians over repeats.

    Args:
        tracer: The tracer of the network.
        cost: The time that hooks take.
        work: The work of the run.
        run: Runs all ops and returns their result.
        follow: Processes the result, which counts as sampling.
        repeats: The number of repeats; None for as many as a few seconds allow.

    Raises:
        ValueError: If a repeat on a CPU gives another result.
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
            raise ValueError(
                "a repeated step gave another result: this machine or model is not deterministic, so the trace is not "
                "valid"
            )
        return _MeasuredRun(begin, done, end, calm)

    if tracer.on_gpu:
        return measure_on_gpu(tracer, work, GpuStep(run, run, follow), repeats)
    with tracer.recording() as calls:
        trial = once()
    hooked, unhooked = _repeated(once, lambda: _hooked(tracer, once, len(calls)), _repeats(repeats, trial.seconds))
    return _medians(work, tuple(calls), hooked, unhooked, cost)


def _measure(to: StepMeasurer, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens) -> Measurement:
    if to.tracer.on_gpu:
        return _measure_on_gpu(to, plan, rows, wanted)
    clock, work = to.tracer.clock, plan.work(to.runner.model.attention_patterns)

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


def _measure_on_gpu(to: StepMeasurer, plan: StepPlan, rows: Sequence[SampleRow], wanted: Tokens) -> Measurement:
    runner = to.runner
    runner.rewind()
    batch = runner.prepare(plan)  # once, because new pinned memory would make each repeat wait for the GPU

    def ops() -> None:
        runner.rewind()
        runner.run(batch)

    def result() -> Tensor:
        runner.rewind()
        return runner.step_logits(plan)

    def follow(logits_RV: Tensor) -> None:
        _check(runner.sampler.sample(logits_RV, rows), wanted)

    step = GpuStep(ops, result, follow, recorded=runner.graph(plan) is not None)
    return measure_on_gpu(to.tracer, plan.work(runner.model.attention_patterns), step, to.repeats)


def measuring_seconds(step: float, repeats: int | None = None) -> float:
    """Return about how long measuring a step of `step` seconds takes, without the time of the hooks."""
    return step * (1 + 2 * _repeats(repeats, step))


def _repeats(requested: int | None, step: float) -> int:
    """Return the number of repeats for a step of `step` seconds."""
    return requested or min(MAX_REPEATS, max(MIN_REPEATS, int(BUDGET_SECONDS / 2 / max(step, 1e-9))))


def _repeated(
    plain: Callable[[], _MeasuredRun], hooked: Callable[[], _MeasuredRun], repeats: int
) -> tuple[list[_MeasuredRun], list[_MeasuredRun]]:
    """Make runs with and without hooks in turn; return those with hooks and those without."""
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
    """Run a step once with hooks that record when each op starts and ends."""
    with tracer.timing() as (starts, ends):
        run = once()
    assert len(starts) == len(ends) == ops, "the repeated step ran other ops than the first one"
    return dataclasses.replace(run, starts=starts, ends=ends)


def _recorded(to: StepMeasurer, plan: StepPlan, ops: int) -> Sequence[Span] | None:
    """Return the range of kernel calls of each op if the step is replayed call by call, else None."""
    runner = to.runner
    if not runner.graphs.by_call or (graph := runner.graph(plan)) is None:
        return None
    with to.tracer.spans(runner.backend) as spans:
        runner.forward(plan)
    assert len(spans) == ops
    assert spans[-1][1] == len(graph.calls), "a replay must make the same calls as a forward"
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
    assert graph is not None, "a step must be replayed in every repeat or in none"
    moments = graph.timed_replay(clock)
    tokens = runner.sampler.sample(graph.result, rows)
    end = clock()
    _check(tokens, wanted)
    calm = interruptions() == interrupted
    starts, ends = [moments[start] for start, _ in spans], [moments[stop] for _, stop in spans]
    return _MeasuredRun(begin, moments[-1], end, calm, starts, ends)


def _check(tokens: Tokens, wanted: Tokens) -> None:
    if _ids(tokens) != _ids(wanted):
        raise ValueError(
            "the repeated step gave another token: this machine or model is not deterministic, so the trace is not "
            "valid"
        )


def _let_others(run: _MeasuredRun) -> None:
    """Sleep after an interrupted run for as long as it took, up to 10 ms, to earn a full time slice."""
    if not run.calm:
        time.sleep(min(run.seconds, 0.01))


def _ids(tokens: Tokens) -> list[int | None]:
    return [one.token if isinstance(one, Sampled) else None for one in tokens]


def _calm(runs: Sequence[_MeasuredRun]) -> Sequence[_MeasuredRun]:
    """Return the uninterrupted runs if they are enough for a median, else all runs."""
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
    """Return a step's median times of ops, gaps and sampling over its runs, less the time that hooks take.

    Half of the hooks' `outside` cost is subtracted on either side of an op, and the `inside` cost as often as the clock
    is read within it (`looks`, by default once).
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
