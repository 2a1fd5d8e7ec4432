"""The observation of trials: the time of each kernel class in each step, converted to one pace of the machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.work import RowAxis, Work
from ridgeline.insight.calibrate.diffusion_trials import DiffusionTrial
from ridgeline.insight.calibrate.fit import Class, Observation
from ridgeline.insight.calibrate.probe import PaceProbe, undisturbed_pace
from ridgeline.insight.calibrate.steps import Stopwatch, TimedOp, time_steps
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import Trial
from ridgeline.price.device import Device
from ridgeline.price.op_time import compute_seconds, memory_seconds
from ridgeline.price.price import Price, traced_calls
from ridgeline.price.slowdown import Slowdown


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The measured time of a kernel in a trial's step, and its times at peak FLOP/s and at full bandwidth."""

    where: str
    kernel: Launch
    seconds: float
    compute: float
    memory: float
    pace: Slowdown
    recorded: bool
    """Whether the step was replayed from a recording."""


def time_trial(
    trial: Trial | DiffusionTrial[Any, Any],
    dtype: torch.dtype,
    timer: Timer,
    probe: PaceProbe,
    roofs: Device,
    budget: float,
) -> list[KernelTime]:
    """Time every step of a trial, with probes in between that measure the undisturbed pace."""
    model = trial.model(dtype, timer.device)
    watch, price = Stopwatch(model, timer), Price(model)
    spaces_of: dict[Op, list[RowAxis]] = {}
    for _, op, space in traced_calls(model):  # traced once, before timing starts
        spaces_of.setdefault(op, []).append(space)
    before = len(probe.taken)
    steps, name = list(trial.prepared(model, watch)), f"{trial.name} {format_of(dtype).name}"
    timed = time_steps(watch, spaces_of, steps, budget / len(steps), probe)
    pace, times = undisturbed_pace(probe.taken[before:]), list[KernelTime]()
    for step, ops in zip(steps, timed, strict=True):
        recorded = price.recorded(roofs, step.work)
        times += kernel_times(f"{name} {step.what}", ops, price, step.work, roofs, pace, recorded=recorded)
    return times


def kernel_times(
    where: str, timed: Sequence[TimedOp], price: Price, work: Work, roofs: Device, pace: Slowdown, *, recorded: bool
) -> Iterator[KernelTime]:
    """Yield the kernels of a timed step, each with its seconds at peak FLOP/s and at full bandwidth."""
    backend = price.backend_on(roofs)
    run = [
        (one.seconds, kernel)
        for one in timed
        for kernel in backend.launches(one.op, work, one.space)
        if kernel.method == one.part
    ]
    working_set = sum(kernel.cost.memory_bytes for _, kernel in run)
    for seconds, kernel in run:
        compute, memory = compute_seconds(kernel.cost, roofs), memory_seconds(kernel.cost, roofs, working_set)
        yield KernelTime(where, kernel, seconds, compute, memory, pace, recorded)


def observations(times: Sequence[KernelTime], pace: Slowdown) -> dict[Class, list[Observation]]:
    """Return the measured times by kernel class, one per step, converted to one speed of the machine."""
    groups: dict[Class, dict[str, list[KernelTime]]] = {}
    for one in times:
        groups.setdefault((one.kernel.name, one.kernel.number_format), {}).setdefault(one.where, []).append(one)
    return {key: [_observation(where, group, pace) for where, group in by.items()] for key, by in groups.items()}


def _observation(where: str, group: Sequence[KernelTime], pace: Slowdown) -> Observation:
    seconds = sum(one.seconds for one in group)
    compute, memory = sum(one.compute for one in group), sum(one.memory for one in group)
    return Observation(
        where,
        seconds / group[0].pace.over(pace).factor_for(seconds, compute, memory),
        tuple(one.kernel.calls for one in group),
        tuple(one.compute for one in group),
        tuple(one.memory for one in group),
        group[0].recorded,
    )
