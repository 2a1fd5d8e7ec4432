"""Probes: three things that always cost the same, to see whether the machine is what it was.

What else a machine does changes how fast it is, by a third within minutes. Measurements with a probe beside each can be
set against one another, and against a calibration, whose probe is known.
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
    """The pace while nothing was in the way, of each."""
    return _of_each(undisturbed, paces)


def mean_pace(paces: Sequence[Slowdown]) -> Slowdown:
    """The mean of each."""
    return _of_each(statistics.mean, paces)


def _of_each(of: Callable[[Sequence[float]], float], paces: Sequence[Slowdown]) -> Slowdown:
    return Slowdown(*map(of, zip(*map(astuple, paces), strict=True)))


def nothing_but_launches(timer: Timer, *, recorded: bool = False) -> tuple[Callable[[], object], int]:
    """One decode step of a tiny model, and how many ops it has. recorded: as the engine runs it, if it records it; else
    each op is asked for.
    """
    model = TRIALS[0].model(torch.float32, timer.device)
    step = TrialRunner(model, 64).prepare(decode(1, 40), recorded=recorded)
    return step.run, len(model.ops())


class PaceProbe:
    """launch: one decode step of a tiny model. compute: a matrix product. memory: reading what no cache holds. taken:
    all that were.
    """

    def __init__(self, timer: Timer, read_bytes: int) -> None:
        """`read_bytes`: more than any cache holds."""
        self._timer, self.taken = timer, list[Slowdown]()
        a = torch.randn(_EDGE, _EDGE, device=timer.device)
        x = torch.rand(read_bytes // 4, device=timer.device)
        self._calls: tuple[Callable[[], object], ...] = (nothing_but_launches(timer)[0], lambda: a @ a, x.sum)

    @torch.inference_mode()
    def __call__(self) -> Slowdown:
        """Seconds of each, now."""
        self.taken.append(Slowdown(*(self._timer.seconds(call, _BUDGET) for call in self._calls)))
        return self.taken[-1]
