"""The fit of a kernel class's constants to measured kernel times.

    seconds = launch + (a^p + b^p)^(1/p),  a = FLOPs / (compute x peak),  b = bytes / (memory x bandwidth)

with p = 2; or p = 1 if a kernel reads and computes in turn, or p = 8 if the longer of both hides the other, whichever
fits best. An observation is the time of all kernels of the class in one step, because a price adds these up. The fit
minimises the sum of squared relative errors of the observations. Both efficiencies (compute, memory) are searched on a
grid that is refined; the launch time follows from them. Recorded steps, which are replayed without the Python that
launches each call, have a launch time of their own and the same efficiencies. If ops call the kernel different numbers
of times, the relative launch time of a further call is also chosen from four values: it is lower, because the code that
just ran is in the caches.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ridgeline.price.device import Efficiency

Floats = NDArray[np.float64]
Class = tuple[str, str]  # a kernel and its number format

_COARSE, _FINE, _ROUNDS = 25, 9, 8
_LEAST_SHARE = 3e-4
_BLENDS = (2.0, 1.0, 8.0)
_AGAIN = (1.0, 0.5, 0.2, 0.0)


@dataclass(frozen=True, slots=True)
class Observation:
    """The time of all kernels of one class in one step."""

    where: str
    """The names of the observed trial and step, for the report of the fit's errors."""
    seconds: float
    """The measured seconds of all kernels of the class in the step."""
    calls: tuple[float, ...]
    """The number of launches of each kernel in the step."""
    compute: tuple[float, ...]
    """The seconds that each kernel's FLOPs take at peak FLOP/s."""
    memory: tuple[float, ...]
    """The seconds that each kernel's bytes take at full memory bandwidth."""
    recorded: bool = False
    """Whether the step was replayed without the Python code that launches its ops."""


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """The constants of a class, and the relative errors (predicted / measured - 1) of its observations, in order."""

    efficiency: Efficiency
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """The median of the absolute relative errors of the fit."""
        return statistics.median(abs(error) for error in self.errors)

    @property
    def worst_error(self) -> float:
        """The relative error of the fit with the largest magnitude, with its sign."""
        return max(self.errors, key=abs)


class _Table:
    """The observations as arrays, for a relative launch time `again` of further calls.

    Shapes: K kernels of G observations; P pairs of efficiencies that are tried at once.
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
        """Return the best launch times for pairs of efficiencies, and the resulting relative errors.

        Returns:
            The launch times of eager and of recorded steps, [P] each (a step is one or the other), and the errors [P,
            G].
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
        """Return the launch time in eager steps, or in replayed steps if no eager step was observed."""
        return float(launches[0 if self.slopes[0].any() else 1][best])


def fit(observations: Sequence[Observation]) -> FittedConstants:
    """Fit the constants of one class; of equally good fits the first wins."""
    assert observations, "an op class without observations cannot be fitted"
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
    """Return a finer grid around a value, from `ratio` times above to `ratio` times below it, and at most 1."""
    return grid if len(grid) == 1 else np.geomspace(min(1.0, centre * ratio), centre / ratio, _FINE)


def fit_all(observed: Mapping[Class, Sequence[Observation]]) -> dict[str, FittedConstants]:
    """Fit the constants of every kernel class to its observations.

    Besides observed classes (kernel and format), the result has general ones for kernels that were not observed: a
    kernel in any format, its kind, and `default`.
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
    """Return the non-negative constants with the least squares, by trying every subset that may be positive.

    This is feasible because there are few constants.
    """
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
    """Return the name of a kernel's class: the kernel, with its number format if it has one."""
    return f"{kernel}/{number_format}" if number_format else kernel


def _prefixes(kernel: str) -> Iterable[str]:
    """Yield the kernel and its more general classes: `linear.vector` -> `linear.vector`, `linear`, `default`."""
    while kernel:
        yield kernel
        kernel = kernel.rpartition(".")[0]
    yield "default"
