"""What a step takes beside its ops: the scheduler, the batch, Python between two ops, the sampler.

Measured through the engine, which this layer does not know: it is given as a `Drive`. Greedy sampling, no text.
"""

import statistics
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
from ridgeline.roofline.price import Price

# Requests side by side, by the length of their prompts.
TRAFFIC = ((16,), (64,), (256,), (24,) * 4, (8,) * 16)
TOKENS = 6


class Drive(Protocol):
    """Runs requests through an engine; see engine/bare.py."""

    def __call__(
        self, model: Model, prompts: Sequence[int], tokens: int, now: Callable[[], float]
    ) -> Iterator[tuple[Work, float]]:
        """After each step: what it asked, and its seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Rest:
    """What a step of `ops` ops took beside them, of `whole` seconds in all. nbytes: that the ops moved, as far as a
    cache holds them."""

    work: Work
    ops: int
    nbytes: float
    seconds: float
    whole: float


def rests(
    model: Model, timer: Timer, drive: Drive, probe: Probe, pace: Pace, cached_bytes: float, budget: float
) -> list[Rest]:
    """Steps of all the traffic, again and again for `budget` seconds of the wall, once at least; as if at `pace`.

    What is left of a long step is a small difference of two times, each of them noisy: medians are subtracted. Runs
    that warm up are not counted: the first of each, and the first after a probe, which has had the caches to itself.
    """
    watch, price = Stopwatch(model, timer), Price(model)
    seen: dict[tuple[Sequence[int], int], list[_Seen]] = {}
    for prompts in TRAFFIC:
        list(drive(model, prompts, TOKENS, timer.now))
    begin = timer.wall()
    while not seen or timer.wall() - begin < budget:
        slower = probe().over(pace).launch
        list(drive(model, TRAFFIC[0], TOKENS, timer.now))
        for prompts in TRAFFIC:
            whole = list(drive(model, prompts, TOKENS, timer.now))
            inside = list(_ops_seconds(watch, drive(model, prompts, TOKENS, timer.now)))
            for index, ((work, seconds), ops) in enumerate(zip(whole, inside, strict=True)):
                seen.setdefault((prompts, index), []).append(_Seen(work, seconds / slower, ops / slower))
    return [_rest(runs, price.count, min(cached_bytes, price.step(runs[0].work).total_bytes)) for runs in seen.values()]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A step of one run: the seconds of all of it, and of its ops."""

    work: Work
    whole: float
    ops: float


def _rest(runs: Sequence[_Seen], ops: int, nbytes: float) -> Rest:
    """What `ops` ops, which moved so many bytes, leave of a step: medians of its runs."""
    whole, inside = statistics.median(run.whole for run in runs), statistics.median(run.ops for run in runs)
    return Rest(runs[0].work, ops, nbytes, max(0.0, whole - inside), whole)


def _ops_seconds(watch: Stopwatch, steps: Iterator[tuple[Work, float]]) -> Iterator[float]:
    """The seconds of each step's ops. The step itself is timed without the watch, which would be in
    the way between ops: there it takes longer than it does when it is all that runs."""
    with watch.on():
        watch.clear()
        for _ in steps:
            yield watch.spent
            watch.clear()


def fit_host(found: Sequence[Rest]) -> tuple[Host, float]:
    """The five constants, none below 0, that leave the least squares of errors relative to whole steps; and the median
    of those errors without their signs."""
    features = np.array([[1, r.ops, r.work.sequences, r.work.tokens, r.nbytes] for r in found], dtype=float)
    count = features.shape[1]
    whole = np.array([rest.whole for rest in found])
    scaled, target = features / whole[:, None], np.array([rest.seconds for rest in found]) / whole
    best, constants = float("inf"), np.zeros(count)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):  # of so few constants every choice of zeros can be tried
            solution = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)[0]
            squares = float(np.square(scaled[:, chosen] @ solution - target).sum())
            if (solution >= 0).all() and squares < best:
                best, constants = squares, np.zeros(count)
                constants[list(chosen)] = solution
    errors = np.abs(scaled @ constants - target)
    return Host(*(float(c) for c in constants)), float(np.median(errors))
