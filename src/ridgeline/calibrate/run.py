"""Calibrating: measure the roofs, time every op of the trials in place, fit the constants."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ridgeline.calibrate.calibration import Calibration, FittedClass, Residual
from ridgeline.calibrate.file import device_name
from ridgeline.calibrate.fit import Class, Fitted, Observation, class_name, fit_all
from ridgeline.calibrate.observe import KernelTime, observations, time_trial
from ridgeline.calibrate.overhead import StepOverhead, fit_host, overheads
from ridgeline.calibrate.picture_trials import PICTURE_TRIALS, PictureTrial
from ridgeline.calibrate.probe import Probe, median_pace
from ridgeline.calibrate.roofs import (
    beyond_caches,
    caches,
    memory_bandwidth,
    peaks,
    products,
    stated_caches,
    streams,
    working_sets,
)
from ridgeline.calibrate.timer import Timer
from ridgeline.calibrate.trials import TRIALS, Trial
from ridgeline.host import total_memory
from ridgeline.ops.formats import format_of
from ridgeline.ops.kernels import library
from ridgeline.roofline.device import Device

SECONDS = 55.0  # for one number of threads
_STREAMS, _PRODUCTS, _HOST = 13.0, 9.0, 30.0  # shares of the time, as the trials have theirs
_HOST_TRIALS = ("tiny", "gpt2", "small")

OnProgress = Callable[[str, float], None]


def calibrate(timer: Timer, report: OnProgress, seconds: float = SECONDS) -> Calibration:
    """Measure and fit, in about so many seconds. report(what is being done, share of it all that is done).

    The engine runs on the processor, so that only there something lies between ops. On CUDA this is untested: the code
    waits for the device at every reading of the clock, and no more is known.
    """
    begin = timer.wall()
    budget = _Budget(timer, seconds, _STREAMS + _PRODUCTS + _HOST + sum(trial.share for trial in _trials()))
    report("bandwidth", 0.0)
    stated = stated_caches(timer.threads) if timer.device.type == "cpu" else []
    measured = streams(timer, budget.take(_STREAMS), working_sets(stated))
    report("matrix products", budget.done)
    multiplied = products(timer, budget.take(_PRODUCTS))
    tops = peaks(multiplied)
    kind, held = _kind(timer), caches(measured, stated)
    bare = Device(
        "this", device_name(kind), kind, tops, memory_bandwidth(measured, stated), memory_bytes(timer), held,
        native=kind == "cpu" and library() is not None,
    )  # fmt: skip
    probe = Probe(timer, beyond_caches(stated))
    kernel_times: list[KernelTime] = []
    for trial in _trials():
        for dtype in trial.dtypes:
            report(f"ops of the trial {trial.name}, {format_of(dtype).name}", budget.done)
            kernel_times += time_trial(trial, dtype, timer, probe, bare, budget.take(trial.share / len(trial.dtypes)))
    pace = median_pace([one.pace for one in kernel_times])
    report("between ops", budget.done)
    between: list[StepOverhead] = []
    for trial in (trial for trial in TRIALS if trial.name in _HOST_TRIALS and kind == "cpu"):
        model = trial.model(torch.float32, timer.device)
        between += overheads(model, timer, probe, pace, bare, budget.take(_HOST / len(_HOST_TRIALS)))
    host, host_error = fit_host(between) if between else (None, 0.0)
    observed = observations(kernel_times, pace)
    fitted = fit_all(observed)
    report("done", 1.0)
    return Calibration(
        title=bare.title,
        kind=bare.kind,
        threads=timer.threads,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        seconds=timer.wall() - begin,
        memory=bare.memory,
        streams=tuple(measured),
        bandwidth=bare.bandwidth,
        caches=held,
        products=multiplied,
        classes={name: _class(one) for name, one in sorted(fitted.items())},
        host=host,
        host_error=host_error,
        native=bare.native,
        pace=pace,
        residuals=_residuals(observed, fitted),
    )


def _trials() -> tuple[Trial | PictureTrial[Any, Any], ...]:
    """All models that are timed."""
    return (*TRIALS, *PICTURE_TRIALS)


class _Budget:
    """Divides the time that there is by shares. A part that took longer than it was given leaves less to the others."""

    def __init__(self, timer: Timer, seconds: float, shares: float) -> None:
        self._timer, self._end = timer, timer.wall() + seconds
        self._shares = self._left = shares

    @property
    def done(self) -> float:
        """The share of it all that was taken."""
        return 1 - self._left / self._shares

    def take(self, share: float) -> float:
        """Seconds for the next part."""
        seconds = max(0.0, self._end - self._timer.wall()) * share / self._left
        self._left -= share
        return seconds


def _class(fitted: Fitted) -> FittedClass:
    return FittedClass(fitted.efficiency, len(fitted.errors), fitted.median_error, fitted.worst_error)


def _residuals(observed: Mapping[Class, Sequence[Observation]], fitted: Mapping[str, Fitted]) -> tuple[Residual, ...]:
    residuals = []
    for (kernel, number_format), group in observed.items():
        name = class_name(kernel, number_format)
        errors = fitted[name].errors
        residuals += [
            Residual(name, o.where, o.seconds, o.seconds * (1 + e)) for o, e in zip(group, errors, strict=True)
        ]
    return tuple(residuals)


def _kind(timer: Timer) -> str:
    return "gpu" if timer.device.type == "cuda" else "cpu"


def memory_bytes(timer: Timer) -> float:
    """Bytes of the device's memory, as its driver shows them, or as this process may have them."""
    if timer.device.type == "cuda":
        return float(torch.cuda.get_device_properties(timer.device).total_memory)
    return total_memory()
