"""Estimate: a figure three times, as floor, bound and expected."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ridgeline.roofline.price import StepPrice


@dataclass(frozen=True, slots=True)
class Estimate:
    """floor: what nothing can beat. bound: a perfect kernel for every op. expected: with the kernels there are.

    Of seconds the floor is the smallest figure; of rates derived from them the largest.
    """

    floor: float
    bound: float
    expected: float

    @classmethod
    def of(cls, steps: Iterable[StepPrice]) -> "Estimate":
        """The seconds of steps one after the other."""
        total = cls(0.0, 0.0, 0.0)
        for step in steps:
            total += cls(step.floor, step.bound, step.expected)
        return total

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.floor + other.floor, self.bound + other.bound, self.expected + other.expected)

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.floor - other.floor, self.bound - other.bound, self.expected - other.expected)

    def __mul__(self, factor: float) -> "Estimate":
        return self.map(lambda value: value * factor)

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """The same function of each figure."""
        return Estimate(function(self.floor), function(self.bound), function(self.expected))

    def per_second(self, count: float) -> "Estimate":
        """`count` a so many seconds, as a rate."""
        return self.map(lambda seconds: count / seconds)
