"""The autoscaling rule: the number of replicas for the active requests, used by both simulate and serve."""

import math
from dataclasses import dataclass, field

from ridgeline.util.json_data import json_name


@dataclass(frozen=True, slots=True)
class Scaling:
    """An autoscaling rule based on active requests."""

    least: int
    """The minimum number of replicas that the autoscaler keeps."""
    most: int
    """The maximum number of replicas that the autoscaler starts."""
    each: int
    """The target number of active requests per replica."""
    period: int
    """The nanoseconds between two checks of the autoscaler."""
    cooldown: int = field(metadata=json_name("calm"))
    """The nanoseconds without a change before a replica is stopped."""
    start_up: int
    """The nanoseconds from starting a replica until it accepts requests."""

    def wanted(self, under_way: int) -> int:
        """Return the number of replicas for a number of active requests."""
        return min(self.most, max(self.least, math.ceil(under_way / self.each)))

    def change(self, under_way: int, taking: int, starting: int, still: int) -> int:
        """Return the number of replicas to start at a check of the autoscaler, or -1 to stop one, or 0.

        None is stopped while others start, because only those that accept requests serve until then.

        Args:
            under_way: The number of active requests.
            taking: The number of replicas that accept requests.
            starting: The number of replicas that are starting.
            still: The nanoseconds since the number of replicas last changed.
        """
        missing = self.wanted(under_way) - taking - starting
        if missing >= 0:
            return missing
        return -1 if still >= self.cooldown and not starting else 0
