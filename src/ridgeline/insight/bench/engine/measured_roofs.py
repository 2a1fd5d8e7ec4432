"""The roofs (memory bandwidth and peak FLOP/s) of the machine while a workload runs.

They come from its calibration. If there is none, or probing is requested because other processes slow the machine down,
they are the mean of a probe before the run and one after it.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from ridgeline.insight.calibrate import estimate
from ridgeline.insight.calibrate.calibration_file import Uncalibrated, load
from ridgeline.insight.calibrate.gpu_calibration import probe_gpu
from ridgeline.insight.calibrate.local_device import this_accelerator
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Cache, Device

R = TypeVar("R")

_PROCESSOR = torch.device("cpu")


class RoofMeter:
    """A meter of the bandwidth and peak FLOP/s (roofs) of the CPU with a number of threads, or of a GPU.

    `calibrated` is the calibrated device, or None if each run is probed. `why` is the reason for a missing calibration;
    empty if probing was requested.
    """

    def __init__(self, threads: int, *, probe: bool = False, place: torch.device = _PROCESSOR) -> None:
        """Load the calibration of the CPU or a GPU, or prepare to probe it instead.

        Args:
            threads: The number of CPU threads.
            probe: Whether to probe even if there is a calibration.
            place: The CPU or a GPU.
        """
        self.threads = threads
        self.calibrated: Device | None = None
        self.why = ""
        if not probe:
            try:
                on_gpu = place.type == "cuda"
                self.calibrated = this_accelerator(place.index or 0) if on_gpu else load(threads).device()
            except Uncalibrated as error:
                self.why = str(error)
        self._timer = Timer(place, threads)
        self._last: Device | None = None

    def around(self, call: Callable[[], R]) -> tuple[R, Device]:
        """Return the result of a call and the device's roofs during it; the probe after it serves the next call too."""
        if self.calibrated is not None:
            return call(), self.calibrated
        before = self._last or self._probed()
        result = call()
        self._last = self._probed()
        return result, halfway(before, self._last)

    def _probed(self) -> Device:
        probed = probe_gpu if self._timer.device.type == "cuda" else estimate.probed
        return probed(self._timer, estimate.PROBE_SECONDS)


def halfway(one: Device, other: Device) -> Device:
    """Return the mean of the roofs of two probes, without caches that only one of them found."""
    others = {cache.name: cache for cache in other.caches}
    return replace(
        one,
        peaks={name: statistics.mean((rate, other.peaks[name])) for name, rate in one.peaks.items()},
        bandwidth=statistics.mean((one.bandwidth, other.bandwidth)),
        caches=tuple(
            Cache(
                cache.name,
                min(cache.nbytes, others[cache.name].nbytes),
                statistics.mean((cache.bandwidth, others[cache.name].bandwidth)),
            )
            for cache in one.caches
            if cache.name in others
        ),
    )
