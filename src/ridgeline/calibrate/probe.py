"""Probes: three things that always cost the same, to see whether the machine is what it was.

What else a machine does changes how fast it is, by a third within minutes. Measurements with a probe beside each can be
set against one another, and against a calibration, whose probe is known.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ridgeline.calibrate.steps import Stage
from ridgeline.calibrate.timer import Timer
from ridgeline.calibrate.trials import TRIALS, decode

_BUDGET = 0.01
_EDGE = 512


@dataclass(frozen=True, slots=True)
class Pace:
    """What launches, arithmetic and memory take: seconds of a probe, or how many times those of another."""

    launch: float
    compute: float
    memory: float

    def midpoint(self, other: "Pace") -> "Pace":
        """Halfway to another one: of what ran between two probes."""
        return Pace(
            (self.launch + other.launch) / 2, (self.compute + other.compute) / 2, (self.memory + other.memory) / 2
        )

    def over(self, other: "Pace") -> "Pace":
        """How many times longer than in another one."""
        return Pace(self.launch / other.launch, self.compute / other.compute, self.memory / other.memory)

    def of(self, seconds: float, compute: float, memory: float) -> float:
        """How many times longer something takes that takes `seconds`, of which so many under either roof: what no roof
        explains keeps the pace of launches."""
        rest = max(0.0, seconds - max(compute, memory))
        total = rest + compute + memory
        if not total:
            return self.launch
        return (rest * self.launch + compute * self.compute + memory * self.memory) / total


def median_pace(paces: Sequence[Pace]) -> Pace:
    """The median of each."""
    return Pace(
        statistics.median(pace.launch for pace in paces),
        statistics.median(pace.compute for pace in paces),
        statistics.median(pace.memory for pace in paces),
    )


def nothing_but_launches(timer: Timer, *, recorded: bool = False) -> tuple[Callable[[], object], int]:
    """One decode step of a tiny model, and how many ops it has. recorded: as the engine runs it, if it records it; else
    each op is asked for."""
    model = TRIALS[0].model(torch.float32, timer.device)
    step = Stage(model, 64).prepare(decode(1, 40), recorded=recorded)
    return step.run, len(model.ops())


class Probe:
    """launch: one decode step of a tiny model. compute: a matrix product. memory: reading what no cache holds."""

    def __init__(self, timer: Timer, read_bytes: int) -> None:
        """`read_bytes`: more than any cache holds."""
        self._timer = timer
        a = torch.randn(_EDGE, _EDGE, device=timer.device)
        x = torch.rand(read_bytes // 4, device=timer.device)
        self._calls: tuple[Callable[[], object], ...] = (nothing_but_launches(timer)[0], lambda: a @ a, x.sum)

    @torch.inference_mode()
    def __call__(self) -> Pace:
        """Seconds of each, now."""
        return Pace(*(self._timer.seconds(call, _BUDGET) for call in self._calls))
