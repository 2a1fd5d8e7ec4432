"""The data of a roofline chart."""

from dataclasses import dataclass

from ridgeline.util.document.axes import Ends, ends_around


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a roofline chart: a class of ops in a step, a whole step, or a single matrix product."""

    kind: str
    step: str
    intensity: float
    flops_per_second: float
    """The measured or expected FLOP/s."""
    roof: float
    """The most FLOP/s that the roofline allows this point, with every byte in the memory that holds it."""
    measured: bool
    """Whether `flops_per_second` was measured; otherwise it is expected."""
    share: float | None = None
    """The share of the step's time; None for a point that is not part of a step."""

    @property
    def of_roof(self) -> float:
        """The share of its roof that the point reaches."""
        return self.flops_per_second / self.roof


@dataclass(frozen=True, slots=True)
class RoofCurve:
    """One roof of a roofline chart: a memory or a number format."""

    name: str
    rate: float
    """The bandwidth of the memory in bytes/s, or the peak of the number format in FLOP/s."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A roofline chart: points under roofs, as FLOP/s over FLOPs per byte, with two logarithmic axes.

    A memory is a slope (its bandwidth times the intensity), a number format a ceiling (its peak). The fastest of each
    comes first.
    """

    title: str
    slopes: tuple[RoofCurve, ...]
    ceilings: tuple[RoofCurve, ...]
    points: tuple[Point, ...]
    unplaced: tuple[str, ...] = ()
    """Classes without FLOPs, which have no point in the chart, with their measured or expected bandwidth."""

    @property
    def x(self) -> Ends:
        """The ends of the intensity axis: whole decades around all points and ridges, with a margin."""
        top, fastest, slowest = self.ceilings[0].rate, self.slopes[0].rate, self.slopes[-1].rate
        intensities = [*(point.intensity for point in self.points), top / slowest, self.ceilings[-1].rate / fastest]
        return ends_around([0.9 * min(intensities), 1.5 * max(intensities)])

    @property
    def y(self) -> Ends:
        """The ends of the FLOP/s axis: whole decades around all points and the highest ceiling, with a margin."""
        rates = [*(point.flops_per_second for point in self.points), self.ceilings[0].rate]
        return ends_around([0.9 * min(rates), 1.5 * max(rates)])

    @property
    def steps(self) -> list[str]:
        """The names of the steps in the order of their first points."""
        return list(dict.fromkeys(point.step for point in self.points))
