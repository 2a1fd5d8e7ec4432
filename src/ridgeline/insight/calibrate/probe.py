"""Probes of the machine's pace: three operations of constant cost that show whether it has changed.

Other load changes the speed of a machine by up to a third within minutes. Measurements next to a probe can be compared
with each other, and with a calibration whose probe is known.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch

from ridgeline.insight.calibrate.steps import TrialRunner
from ridgeline.insight.calibrate.timer import Timer, undisturbed
from ridgeline.insight.calibrate.trials import TRIALS, decode
from ridgeline.price.slowdown import Slowdown

_BUDGET = 0.01
_EDGE = 512


def undisturbed_pace(paces: Sequence[Slowdown]) -> Slowdown:
    """Return the undisturbed time of each of the three probes, from repeated results."""
    return _of_each(undisturbed, paces)


def mean_pace(paces: Sequence[Slowdown]) -> Slowdown:
    """Return the mean time of each of the three probes, over repeated results."""
    return _of_each(statistics.mean, paces)


def _of_each(of: Callable[[Sequence[float]], float], paces: Sequence[Slowdown]) -> Slowdown:
    return Slowdown(*map(of, zip(*map(astuple, paces), strict=True)))


def nothing_but_launches(timer: Timer, *, recorded: bool = False) -> tuple[Callable[[], object], int]:
    """Return a function that runs one decode step of a tiny model, and the step's number of ops.

    Args:
        timer: The timer of the device.
        recorded: Whether the step may be replayed as the engine does; else its ops are launched one by one.
    """
    model = TRIALS[0].model(torch.float32, timer.device)
    step = TrialRunner(model, 64).prepare(decode(1, 40), recorded=recorded)
    return step.run, len(model.ops())


class PaceProbe:
    """The probes of a machine's pace; `taken` holds all results.

    `launch` is a decode step of a tiny model, `compute` a matrix product, and `memory` a read of more than the caches
    hold.
    """

    def __init__(self, timer: Timer, read_bytes: int) -> None:
        """Prepare the probes, with a memory read of `read_bytes` bytes, more than any cache holds."""
        self._timer, self.taken = timer, list[Slowdown]()
        a = torch.randn(_EDGE, _EDGE, device=timer.device)
        x = torch.rand(read_bytes // 4, device=timer.device)
        self._calls: tuple[Callable[[], object], ...] = (nothing_but_launches(timer)[0], lambda: a @ a, x.sum)

    @torch.inference_mode()
    def __call__(self) -> Slowdown:
        """Measure and return the seconds of each of the three speed probes."""
        self.taken.append(Slowdown(*(self._timer.seconds(call, _BUDGET) for call in self._calls)))
        return self.taken[-1]
