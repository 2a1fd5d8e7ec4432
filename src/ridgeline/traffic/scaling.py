"""Scaling: how many replicas there are to be, by the requests under way. simulate and serve keep to the same law."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas that come and go with the requests under way.

    least, most: replicas. each: requests under way that a replica is to have. period: nanoseconds between two looks.
    calm: nanoseconds without a change before one goes. start_up: nanoseconds from asking for one until it takes
    requests.
    """

    least: int
    most: int
    each: int
    period: int
    calm: int
    start_up: int

    def wanted(self, under_way: int) -> int:
        """Replicas for so many requests under way."""
        return min(self.most, max(self.least, math.ceil(under_way / self.each)))

    def change(self, under_way: int, staying: int, still: int) -> int:
        """How many are to be started at a look, or -1 where one is to go. staying: those that take requests, or will.
        still: nanoseconds since the last change."""
        wanted = self.wanted(under_way)
        if wanted >= staying:
            return wanted - staying
        return -1 if still >= self.calm else 0
