"""The calibration of a GPU: its roofs, its ops in models shaped like large ones, and the host time of steps."""

import datetime
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import RowAxis, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_builder import build_minimal_engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.insight.calibrate.calibration_builder import build_calibration
from ridgeline.insight.calibrate.fit import FittedConstants, fit_all, least_squares
from ridgeline.insight.calibrate.gpu_timer import GpuTimer
from ridgeline.insight.calibrate.observe import KernelTime, kernel_times, observations
from ridgeline.insight.calibrate.roofs import MIB, MemoryStream, memory_bandwidth, peaks, products, streams
from ridgeline.insight.calibrate.steps import TrialRunner
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import GPU_TRIALS, HOST_TRIALS, Trial, describe
from ridgeline.price.device import Device, HostTime
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price, traced_calls
from ridgeline.price.slowdown import Slowdown

SETS = tuple(n * MIB for n in (64, 256, 1024, 4096))
_EVEN = Slowdown(1.0, 1.0, 1.0)  # a GPU has no other users during calibration
_STREAMS, _PRODUCTS, _HOST = 4.0, 4.0, 12.0  # shares of the time budget, like those of trials
_DECODES, _PREFILLS = (1, 8, 64, 200), ((16,), (64,), (16,) * 4, (512,), (2048,))
_TOKENS, _POSITIONS = 6, 1 << 15
_MOST_PROMPTS = 4  # the most prompts in a step that determines their cost; servers seldom start more at once
_TURNS = range(2, 6)  # earlier rounds are warm-up: they compile kernels, then capture steps with prompts

Report = Callable[[str, float], None]


def measure_gpu_roofs(timer: Timer, measured: Sequence[MemoryStream], multiplied: Mapping[str, float]) -> Device:
    """Return a GPU with its roofs only: the highest read or copy bandwidth of large streams, and the peak FLOP/s."""
    properties = torch.cuda.get_device_properties(timer.device)
    bandwidth = max(memory_bandwidth(measured, ()), *(stream.copy for stream in measured[-2:]))
    return Device(
        "this", properties.name, "gpu", peaks(multiplied), bandwidth, float(properties.total_memory), native=True
    )


def probe_gpu(timer: Timer, seconds: float) -> Device:
    """Probe the roofs of a GPU in about `seconds` seconds; its constants are the catalogue's for an H200."""
    bare = measure_gpu_roofs(timer, streams(timer, seconds / 2, SETS), products(timer, seconds / 2))
    about = {"all": f"a probe of this machine, {datetime.date.today()}"}
    return replace(bare, basis="probe", efficiency=load_device("h200").efficiency, sources=about)


def calibrate_gpu(timer: Timer, report: Report, seconds: float) -> Calibration:
    """Calibrate a GPU in about `seconds` seconds.

    Args:
        timer: The timer of the GPU.
        report: Called with the current activity and the share of the work that is done.
        seconds: The time budget.
    """
    begin = timer.wall()
    shares = _STREAMS + _PRODUCTS + _HOST + sum(trial.share for trial in GPU_TRIALS)
    report("bandwidth and matrix products", 0.0)
    measured = streams(timer, seconds * _STREAMS / shares, SETS)
    multiplied = products(timer, seconds * _PRODUCTS / shares)
    bare = measure_gpu_roofs(timer, measured, multiplied)
    times: list[KernelTime] = []
    for trial in GPU_TRIALS:
        report(f"ops of the trial {trial.name}", (timer.wall() - begin) / seconds)
        times += _times_of(trial, timer, bare, seconds * trial.share / shares)
    observed = observations(times, _EVEN)
    fitted = fit_all(observed)
    report("the host", (timer.wall() - begin) / seconds)
    known = replace(bare, efficiency={name: one.efficiency for name, one in fitted.items()})
    found = fit_gpu_host([step for trial in HOST_TRIALS for step in _host_steps(trial, timer, known)])
    fitted = {name: found.captured(one) for name, one in fitted.items()}
    report("done", 1.0)
    host = found.host, found.error
    return build_calibration(
        bare, timer, begin, measured, multiplied, observed, fitted, host, pace=_EVEN, disturbed=None
    )


def _times_of(trial: Trial, timer: Timer, roofs: Device, budget: float) -> Iterator[KernelTime]:
    """Yield the time of every kernel in the steps of a trial."""
    model = trial.model(torch.bfloat16, timer.device)
    price, watch = Price(model), GpuTimer(model)
    spaces_of: dict[Op, list[RowAxis]] = {}
    for _, op, space in traced_calls(model):
        spaces_of.setdefault(op, []).append(space)
    stage = TrialRunner(model, trial.positions)
    for step in trial.steps:
        prepared = stage.prepare(step, recorded=False)
        timed, _ = watch.medians(prepared.run, spaces_of, budget / len(trial.steps))
        # Kernels of a captured step take the GPU as long, except for their launches, which `fit_gpu_host` determines.
        where = f"{trial.name} {describe(step)}"
        yield from kernel_times(where, timed, price, stage.work(step), roofs, _EVEN, recorded=False)


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that ran through the engine, with its measured time and the predicted GPU time."""

    work: Work
    whole: float
    """The measured seconds of the whole step."""
    gpu_seconds: float
    """The predicted GPU seconds of its ops, launched one by one."""
    launches: float
    """The part of `gpu_seconds` that kernel launches take."""
    ops: int
    """The number of ops in the step."""
    recorded: bool
    """Whether the step was captured as a CUDA graph."""


def _host_steps(trial: Trial, timer: Timer, known: Device) -> Iterator[HostStep]:
    """Yield decode and prefill steps of several sizes, from an engine with CUDA graphs and one without.

    Each is the median of several runs.
    """
    model = trial.model(torch.bfloat16, timer.device)
    price = Price(model)
    for eager in (False, True):
        works: list[Work] = []
        runner = partial(Runner, eager=eager)
        engine = build_minimal_engine(model, _POSITIONS, lambda record, works=works: works.append(record.work), runner)  # type: ignore[misc]
        for load in (*((24,) * count for count in _DECODES), *_PREFILLS):
            for work, whole in _medians_of(load, engine, works, timer):
                if work.is_verify or work.sequences <= _MOST_PROMPTS:
                    yield _host_step(price, known, work, whole, captures=not eager)


def _medians_of(load: Sequence[int], engine: Engine, works: list[Work], timer: Timer) -> Iterator[tuple[Work, float]]:
    """Return the last decode step and the last other step of a load, each with the median seconds of its kind.

    Args:
        load: The prompt lengths of the requests.
        engine: The engine.
        works: The list to which the engine appends the work of each step.
        timer: The timer of the GPU.
    """
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=_TOKENS)
    seen: dict[bool, list[float]] = {False: [], True: []}
    last: dict[bool, Work] = {}
    for turn in range(_TURNS.stop):
        for length in load:
            engine.add(GenerationRequest([position % engine.traits.vocabulary for position in range(length)], params))
        while engine.has_work:
            start = timer.wall()
            engine.step()
            seconds, decodes = timer.wall() - start, works[-1].is_decode
            if turn in _TURNS:
                seen[decodes].append(seconds)
                last[decodes] = works[-1]
    return ((work, statistics.median(seen[decodes])) for decodes, work in last.items())


def _host_step(price: Price, known: Device, work: Work, whole: float, *, captures: bool) -> HostStep:
    launched = replace(known, efficiency={name: replace(e, launch=0.0) for name, e in known.efficiency.items()})
    gpu_seconds = price.price_step(known, work).expected
    launches = gpu_seconds - price.price_step(launched, work).expected
    return HostStep(work, whole, gpu_seconds, launches, len(price.calls), captures and price.recorded(known, work))


@dataclass(frozen=True, slots=True)
class GpuHost:
    """The constants of the host (CPU) time per step on a GPU, fitted to the times of whole engine steps."""

    host: HostTime
    saved: float
    """The part of a launch that a captured step saves, because its kernels start while earlier ones end."""
    error: float
    """The median absolute relative error of whole steps."""

    def captured(self, one: FittedConstants) -> FittedConstants:
        """Return the constants of a kernel class, with its launch time in a captured step (CUDA graph).

        That is the launch time of other steps, less the share `saved`.
        """
        efficiency = one.efficiency
        return replace(one, efficiency=replace(efficiency, recorded=(1 - self.saved) * efficiency.launch))


def fit_gpu_host(steps: Sequence[HostStep]) -> GpuHost:
    """Fit the host time of steps on a GPU, and the launch time that captured steps save.

    The host takes time before and after the GPU's work: per step, sequence, further position, and for prompts in the
    step. While the GPU runs, it launches the ops of steps that are not captured, which takes time per step and per op.

    Steps whose ops take the GPU longer than the host needs to launch them determine the first four constants, as
    captured ones do; the remaining time of other steps is the host's launching. The first fit decides which steps are
    which.
    """
    found = _fitted(steps, [s for s in steps if not s.recorded and s.whole > 2 * s.gpu_seconds])
    host = found.host
    return _fitted(steps, [s for s in steps if not s.recorded and host.asked + host.op * s.ops > s.gpu_seconds])


def _fitted(steps: Sequence[HostStep], asks: Sequence[HostStep]) -> GpuHost:
    """Fit the host-time constants, given which steps (`asks`) make the GPU wait for the host."""
    others = [s for s in steps if s not in asks]
    captured = [-s.launches if s.recorded else 0.0 for s in others]
    beside_gpu = [_counts(s) for s in others]
    features, whole = np.column_stack([beside_gpu, captured]), np.array([s.whole for s in others])
    left = np.array([s.whole - s.gpu_seconds for s in others])
    *beside, saved = (float(c) for c in least_squares(features / whole[:, None], left / whole))
    if saved > 1:  # a launch cannot take negative time
        saved = 1.0
        rest = left - features[:, -1]
        beside = [float(c) for c in least_squares(features[:, :-1] / whole[:, None], rest / whole)]
    step, sequence, token, prompts = beside

    def beside_of(s: HostStep) -> float:
        return float(np.dot(beside, _counts(s)))

    asked, op = 0.0, 0.0
    if asks:
        taken = np.array([s.whole for s in asks])
        of_ops = np.array([[1.0, s.ops] for s in asks]) / taken[:, None]
        asked, op = (float(c) for c in least_squares(of_ops, np.array([s.whole - beside_of(s) for s in asks]) / taken))
    host = HostTime(step, op, max(0.0, sequence - token), token, 0.0, asked=asked, ahead=True, prompts=prompts)

    def gpu_time(s: HostStep) -> float:
        return s.gpu_seconds - saved * s.launches if s.recorded else max(s.gpu_seconds, asked + op * s.ops)

    return GpuHost(host, saved, statistics.median(abs(beside_of(s) + gpu_time(s) - s.whole) / s.whole for s in steps))


def _counts(step: HostStep) -> list[float]:
    """Return the counts that the host time depends on: the step, its sequences, further positions, and prompts."""
    work = step.work
    return [1.0, work.sequences, work.tokens - work.sequences, 0.0 if work.is_verify else 1.0]
