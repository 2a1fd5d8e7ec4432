"""What a step takes beside its ops: the scheduler, the batch, Python between two ops, the sampler.

Measured through the engine, which this layer does not know: it is given as a `Drive`. Greedy sampling, no text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np

from ridgeline.models.model import Model
from ridgeline.ops.work import Work
from ridgeline.roofline.calibrate.probe import Pace, Probe
from ridgeline.roofline.calibrate.steps import Stopwatch
from ridgeline.roofline.calibrate.timer import Timer
from ridgeline.roofline.device import Host

# Requests side by side, by the length of their prompts.
TRAFFIC = ((16,), (64,), (256,), (24,) * 4, (40,) * 16)
TOKENS = 8


class Drive(Protocol):
    """Runs requests through an engine; see engine/bare.py."""

    def __call__(
        self, model: Model, prompts: Sequence[int], tokens: int, now: Callable[[], float]
    ) -> Iterator[tuple[Work, float]]:
        """After each step: what it asked, and its seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Rest:
    """What a step of `ops` ops took beside them, of `whole` seconds in all."""

    work: Work
    ops: int
    seconds: float
    whole: float


def rests(model: Model, timer: Timer, drive: Drive, probe: Probe, pace: Pace, budget: float) -> list[Rest]:
    """Steps of all the traffic, again and again for `budget` seconds of the wall, once at least; as if at `pace`."""
    watch = Stopwatch(model, timer)
    found: list[Rest] = []
    begin = timer.wall()
    first = True
    with watch.on():
        while first or timer.wall() - begin < budget:
            for prompts in TRAFFIC:
                slower = probe().over(pace).launch
                watch.clear()
                for work, seconds in drive(model, prompts, TOKENS, timer.now):
                    whole = seconds - watch.calls * (watch.inside + watch.outside)
                    rest = max(0.0, seconds - watch.spent)
                    found.append(Rest(work, watch.calls, rest / slower, whole / slower))
                    watch.clear()
            first = False
    return found


def fit_host(found: Sequence[Rest]) -> tuple[Host, float]:
    """The four constants, none below 0, that leave the least squares of errors relative to whole steps; and the median
    of those errors without their signs."""
    features = np.array([[1, rest.ops, rest.work.sequences, rest.work.tokens] for rest in found], dtype=float)
    whole = np.array([rest.whole for rest in found])
    scaled, target = features / whole[:, None], np.array([rest.seconds for rest in found]) / whole
    best, constants = float("inf"), np.zeros(4)
    for count in range(1, 5):
        for chosen in combinations(range(4), count):  # of so few constants every choice of zeros can be tried
            solution = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)[0]
            squares = float(np.square(scaled[:, chosen] @ solution - target).sum())
            if (solution >= 0).all() and squares < best:
                best, constants = squares, np.zeros(4)
                constants[list(chosen)] = solution
    errors = np.abs(scaled @ constants - target)
    return Host(*(float(c) for c in constants)), float(np.median(errors))
