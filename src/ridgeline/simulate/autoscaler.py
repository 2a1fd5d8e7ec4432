"""The autoscaler: it looks at the requests under way every so often, and says how many replicas are to come or go."""

from collections.abc import Iterable

from ridgeline.simulate.serving import Serving
from ridgeline.traffic.scaling import Scaling


class Autoscaler:
    """next: the moment of its next look. start_up: nanoseconds until a replica that it asks for takes requests."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling, self.next, self.start_up = scaling, scaling.period, scaling.start_up
        self._changed = 0  # when a replica was asked for, or had to go

    def look(self, replicas: Iterable[Serving]) -> int:
        """How many replicas are to be started now, or -1 where one is to go."""
        now, self.next = self.next, self.next + self._scaling.period
        there = [each for each in replicas if each.until is None]
        taking, starting = sum(each.taking for each in there), sum(each.starts(self.start_up, now) for each in there)
        change = self._scaling.change(sum(len(each.live) for each in there), taking, starting, now - self._changed)
        if change:
            self._changed = now
        return change
