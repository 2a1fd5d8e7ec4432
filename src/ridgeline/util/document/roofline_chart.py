"""The roofline as data to be drawn."""

from dataclasses import dataclass

from ridgeline.util.document.axes import Ends, ends_around


@dataclass(frozen=True, slots=True)
class Point:
    """A class of ops in a step, or a whole step. measured: whether flops_per_second was measured or is only expected.
    roof: FLOP/s at its bound, with every byte where it lives. share: of the step's time, None for what is no part.
    """

    kind: str
    step: str
    intensity: float
    flops_per_second: float
    roof: float
    measured: bool
    share: float | None = None

    @property
    def of_roof(self) -> float:
        """Which share of its roof it reaches."""
        return self.flops_per_second / self.roof


@dataclass(frozen=True, slots=True)
class RoofCurve:
    """A memory (bytes a second) or a number format (FLOP/s)."""

    name: str
    rate: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points under roofs, FLOP/s over FLOPs a byte, both axes logarithmic: a memory is a slope (its bandwidth times the
    intensity), a number format a ceiling (its peak); the fastest of both come first.

    unplaced: classes without a FLOP, which have no place on it, and the bandwidth that they reached.
    """

    title: str
    slopes: tuple[RoofCurve, ...]
    ceilings: tuple[RoofCurve, ...]
    points: tuple[Point, ...]
    unplaced: tuple[str, ...] = ()

    @property
    def x(self) -> Ends:
        """The ends of the axis of intensities: whole decades around points and ridges, with room at the ends."""
        top, fastest, slowest = self.ceilings[0].rate, self.slopes[0].rate, self.slopes[-1].rate
        intensities = [*(point.intensity for point in self.points), top / slowest, self.ceilings[-1].rate / fastest]
        return ends_around([0.9 * min(intensities), 1.5 * max(intensities)])

    @property
    def y(self) -> Ends:
        """The ends of the axis of rates."""
        rates = [*(point.flops_per_second for point in self.points), self.ceilings[0].rate]
        return ends_around([0.9 * min(rates), 1.5 * max(rates)])

    @property
    def steps(self) -> list[str]:
        """The steps that the points belong to, in order."""
        return list(dict.fromkeys(point.step for point in self.points))
