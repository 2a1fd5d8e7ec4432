"""The calibration of a device: measure the roofs, time every op of the trials in place, and fit the constants."""

from collections.abc import Callable
from typing import Any

import torch

from ridgeline.backends import backend_of
from ridgeline.core.ops.number_formats import format_of
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.insight.calibrate.calibration_builder import build_calibration
from ridgeline.insight.calibrate.calibration_file import device_name
from ridgeline.insight.calibrate.diffusion_trials import DIFFUSION_TRIALS, DiffusionTrial
from ridgeline.insight.calibrate.fit import fit_all
from ridgeline.insight.calibrate.gpu_calibration import calibrate_gpu
from ridgeline.insight.calibrate.observe import KernelTime, observations, time_trial
from ridgeline.insight.calibrate.overhead import StepOverhead, fit_host, overheads
from ridgeline.insight.calibrate.part_times import StepParts, fit_parts, part_times
from ridgeline.insight.calibrate.probe import PaceProbe, mean_pace, undisturbed_pace
from ridgeline.insight.calibrate.roofs import (
    beyond_caches,
    caches,
    memory_bandwidth,
    peaks,
    products,
    stated_caches,
    streams,
    working_sets,
)
from ridgeline.insight.calibrate.sampling_trials import fit_sampling, sampling_times
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import TRIALS, Trial
from ridgeline.price.device import Device, HostTime
from ridgeline.price.host_parts import HostParts
from ridgeline.price.slowdown import Slowdown
from ridgeline.util.host import total_memory

SECONDS = 55.0  # the time budget for one number of threads
_STREAMS, _PRODUCTS, _HOST = 13.0, 9.0, 30.0  # shares of the time budget, like those of trials
# The scheduler and batch, and the sampler, take these shares on top of the budget, which a slow machine may have spent.
_PARTS, _SAMPLING = 0.04, 0.03
_HOST_TRIALS = ("tiny", "gpt2", "small")

OnProgress = Callable[[str, float], None]


def calibrate(timer: Timer, report: OnProgress, seconds: float = SECONDS) -> Calibration:
    """Calibrate a device in about `seconds` seconds.

    Args:
        timer: The timer of the device.
        report: Called with the current activity and the share of the work that is done.
        seconds: The time budget.
    """
    if timer.device.type == "cuda":
        return calibrate_gpu(timer, report, seconds)
    begin = timer.wall()
    budget = _Budget(timer, seconds, _STREAMS + _PRODUCTS + _HOST + sum(trial.share for trial in _trials()))
    report("bandwidth", 0.0)
    stated = stated_caches(timer.threads)
    measured = streams(timer, budget.take(_STREAMS), working_sets(stated))
    report("matrix products", budget.done)
    multiplied = products(timer, budget.take(_PRODUCTS))
    tops = peaks(multiplied)
    bandwidth, held = memory_bandwidth(measured, stated), caches(measured, stated)
    native = backend_of(timer.device).kind == "cpu"
    bare = Device("this", device_name(), "cpu", tops, bandwidth, memory_bytes(timer), held, native=native)
    probe = PaceProbe(timer, beyond_caches(stated))
    kernel_times: list[KernelTime] = []
    for trial in _trials():
        for dtype in trial.dtypes:
            report(f"ops of the trial {trial.name}, {format_of(dtype).name}", budget.done)
            kernel_times += time_trial(trial, dtype, timer, probe, bare, budget.take(trial.share / len(trial.dtypes)))
    pace = undisturbed_pace(probe.taken)
    report("between ops", budget.done)
    host = _host_time(timer, probe, pace, bare, budget)
    observed = observations(kernel_times, pace)
    fitted = fit_all(observed)
    report("done", 1.0)
    disturbed = mean_pace(probe.taken).over(pace)
    return build_calibration(
        bare, timer, begin, measured, multiplied, observed, fitted, host, pace=pace, disturbed=disturbed
    )  # fmt: skip


def _host_time(
    timer: Timer, probe: PaceProbe, pace: Slowdown, bare: Device, budget: "_Budget"
) -> tuple[HostTime | None, float]:
    """Measure and fit the host time of a step, with its median error; None if no trial measures it."""
    trials = [trial for trial in TRIALS if trial.name in _HOST_TRIALS]
    if not trials:
        return None, 0.0
    between, parts = list[StepOverhead](), list[StepParts]()
    for trial in trials:
        model = trial.model(torch.float32, timer.device)
        between += overheads(model, timer, probe, pace, bare, budget.take(_HOST / len(_HOST_TRIALS)))
        parts += part_times(model, timer, probe, pace, budget.seconds * _PARTS / len(_HOST_TRIALS))
    sampling = fit_sampling(sampling_times(timer, probe, pace, budget.seconds * _SAMPLING))
    return fit_host(between, HostParts(*fit_parts(parts), sampling))


def _trials() -> tuple[Trial | DiffusionTrial[Any, Any], ...]:
    """Return all trials (models with steps) whose ops the calibration of a CPU times."""
    return (*TRIALS, *DIFFUSION_TRIALS)


class _Budget:
    """A time budget that is divided by shares; a part that exceeds its share leaves less for the others."""

    def __init__(self, timer: Timer, seconds: float, shares: float) -> None:
        self.seconds, self._timer, self._end = seconds, timer, timer.wall() + seconds
        self._shares = self._left = shares

    @property
    def done(self) -> float:
        """The share of the budget that has been assigned."""
        return 1 - self._left / self._shares

    def take(self, share: float) -> float:
        """Return the seconds that the next part of the calibration may take, for its share."""
        seconds = max(0.0, self._end - self._timer.wall()) * share / self._left
        self._left -= share
        return seconds


def memory_bytes(timer: Timer) -> float:
    """Return the bytes of a GPU's memory, or the memory that this process may use."""
    if timer.device.type == "cuda":
        return float(torch.cuda.get_device_properties(timer.device).total_memory)
    return total_memory()
