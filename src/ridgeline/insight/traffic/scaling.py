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

    def change(self, under_way: int, taking: int, starting: int, still: int) -> int:
        """How many are to be started at a look, or -1 where one is to go, which none does while others start: those
        that take requests are all there is until then. taking, starting: replicas. still: nanoseconds since the last
        change.
        """
        missing = self.wanted(under_way) - taking - starting
        if missing >= 0:
            return missing
        return -1 if still >= self.calm and not starting else 0
