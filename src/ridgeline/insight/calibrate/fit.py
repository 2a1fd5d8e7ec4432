"""Fitting the constants of a kernel class to what its kernels took.

    seconds = launch + (a^p + b^p)^(1/p),  a = FLOPs / (compute x peak),  b = bytes / (memory x bandwidth)

with p = 2; or p = 1 where a kernel reads and computes in turn, or p = 8 where the longer of both hides the other, if
that fits better. An observation is what all kernels of the class took in one step, because that is what a price adds
up; the fit makes the sum of the squared relative errors of the observations as small as it gets. Both shares are sought
on a grid that is refined, the launch follows from them; so does the one of recorded steps, in which a call is made
again without the Python that asks for it: of those the shares are the same. Where ops differ in how often they call the
kernel, the share of a launch that a further call costs is sought too, among four: what has just run is at hand, so it
costs less.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ridgeline.price.device import Efficiency

Floats = NDArray[np.float64]
Class = tuple[str, str]  # a kernel and the format it works on

_COARSE, _FINE, _ROUNDS = 25, 9, 8
_LEAST_SHARE = 3e-4
_BLENDS = (2.0, 1.0, 8.0)
_AGAIN = (1.0, 0.5, 0.2, 0.0)


@dataclass(frozen=True, slots=True)
class Observation:
    """The kernels of one class in one step. seconds: of all of them. calls, compute, memory: of each: how often it was
    launched, and its seconds under either roof. where: the trial and its step, for the residuals. recorded: whether the
    step was a recording, made again.
    """

    where: str
    seconds: float
    calls: tuple[float, ...]
    compute: tuple[float, ...]
    memory: tuple[float, ...]
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """The constants of a class, and the relative errors (predicted / measured - 1) of its observations, in order."""

    efficiency: Efficiency
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """Median of the errors without their signs."""
        return statistics.median(abs(error) for error in self.errors)

    @property
    def worst_error(self) -> float:
        """The largest error, with its sign."""
        return max(self.errors, key=abs)


class _Table:
    """Observations as arrays: K kernels of G observations; P pairs of shares that are tried at once. again: the share
    of a launch that a further call costs.
    """

    def __init__(self, observations: Sequence[Observation], again: float) -> None:
        self.again = again
        counts = [len(o.calls) for o in observations]
        self.first_G = np.concatenate(([0], np.cumsum(counts)[:-1]))
        self.compute_K = np.array([c for o in observations for c in o.compute])
        self.memory_K = np.array([m for o in observations for m in o.memory])
        self.seconds_G = np.array([o.seconds for o in observations])
        launches = Efficiency(1.0, 1.0, 1.0, again=again).launches
        slope_G = np.array([sum(map(launches, o.calls)) for o in observations]) / self.seconds_G
        recorded_G = np.array([o.recorded for o in observations])
        self.slopes = (np.where(recorded_G, 0.0, slope_G), np.where(recorded_G, slope_G, 0.0))

    def errors(self, compute_P: Floats, memory_P: Floats, blend: float) -> tuple[tuple[Floats, Floats], Floats]:
        """For each pair of shares the launches that leave the least squares, of steps that are asked for and of those
        that are recorded, [P] each, and the relative errors, [P, G]. A step is one or the other, so each sort has its
        own.
        """
        a_PK, b_PK = self.compute_K / compute_P[:, None], self.memory_K / memory_P[:, None]
        both_PK = (a_PK**blend + b_PK**blend) ** (1 / blend)
        roof_PG = np.add.reduceat(both_PK, self.first_G, axis=1) / self.seconds_G
        errors_PG, launches = roof_PG - 1, []
        for slope_G in self.slopes:
            squares = float(slope_G @ slope_G)
            launch_P = np.maximum(0.0, (1 - roof_PG) @ slope_G / (squares or 1.0))
            errors_PG = errors_PG + launch_P[:, None] * slope_G
            launches.append(launch_P)
        return (launches[0], launches[1]), errors_PG

    def launch(self, launches: tuple[Floats, Floats], best: int) -> float:
        """The launch where a step is asked for; where none was, that of the recorded ones, for want of another."""
        return float(launches[0 if self.slopes[0].any() else 1][best])


def fit(observations: Sequence[Observation]) -> FittedConstants:
    """The constants of one class. Of what fits alike the first is taken."""
    assert observations, "a class without observations has no constants"
    calls = {n for o in observations for n in o.calls}
    tables = [_Table(observations, again) for again in (_AGAIN if len(calls) > 1 else _AGAIN[:1])]
    found = [_search(table, blend) for table in tables for blend in _BLENDS]
    return min(found, key=lambda fitted: sum(error * error for error in fitted.errors))


def _search(table: _Table, blend: float) -> FittedConstants:
    coarse = np.geomspace(1.0, _LEAST_SHARE, _COARSE)
    compute = coarse if table.compute_K.any() else np.ones(1)
    memory = coarse if table.memory_K.any() else np.ones(1)
    for step in range(_ROUNDS):
        compute_P, memory_P = (grid.ravel() for grid in np.meshgrid(compute, memory))
        launches, errors_PG = table.errors(compute_P, memory_P, blend)
        best = int(np.square(errors_PG).sum(axis=1).argmin())
        found = (table.launch(launches, best), float(compute_P[best]), float(memory_P[best]))
        ratio = float(coarse[0] / coarse[1]) ** 0.5**step
        compute, memory = _closer(compute, found[1], ratio), _closer(memory, found[2], ratio)
    recorded = float(launches[1][best]) if table.slopes[1].any() else None
    efficiency = Efficiency(*found, again=table.again, blend=blend, recorded=recorded)
    return FittedConstants(efficiency, tuple(errors_PG[best].tolist()))


def _closer(grid: Floats, centre: float, ratio: float) -> Floats:
    """A finer grid from `ratio` times a value down to that part of it, not above 1."""
    return grid if len(grid) == 1 else np.geomspace(min(1.0, centre * ratio), centre / ratio, _FINE)


def fit_all(observed: Mapping[Class, Sequence[Observation]]) -> dict[str, FittedConstants]:
    """The constants of every class: those observed, by (kernel, format), and the general ones that stand in for kernels
    that nobody observed: a kernel in any format, its kind, and `default`.
    """
    found = {class_name(kernel, number_format): fit(list(group)) for (kernel, number_format), group in observed.items()}
    general: dict[str, list[Observation]] = {}
    for (kernel, number_format), group in observed.items():
        for name in _prefixes(kernel):
            if name != class_name(kernel, number_format):
                general.setdefault(name, []).extend(group)
    for name, group in general.items():
        if name not in found:
            found[name] = fit(group)
    return found


def least_squares(features: Floats, target: Floats) -> Floats:
    """Constants, none below 0, that leave the least squares: of so few every choice of zeros can be tried."""
    count = features.shape[1]
    best, constants = float("inf"), np.zeros(count)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            solution = np.linalg.lstsq(features[:, chosen], target, rcond=None)[0]
            squares = float(np.square(features[:, chosen] @ solution - target).sum())
            if (solution >= 0).all() and squares < best:
                best, constants = squares, np.zeros(count)
                constants[list(chosen)] = solution
    return constants


def class_name(kernel: str, number_format: str) -> str:
    """What a calibration calls the class of a kernel: with its number format, where it has one."""
    return f"{kernel}/{number_format}" if number_format else kernel


def _prefixes(kernel: str) -> Iterable[str]:
    """`linear.vector` -> `linear.vector`, `linear`, `default`."""
    while kernel:
        yield kernel
        kernel = kernel.rpartition(".")[0]
    yield "default"
