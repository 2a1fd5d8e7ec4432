"""Fair queueing of models or requests that share a processor: the one with the fewest priced seconds runs next.

Priced seconds do not depend on how busy the machine is, and are known before a step runs.

A newcomer starts at the virtual time, which is what each member would have received by now under equal sharing (Demers,
Keshav and Shenker 1989). If it started at zero, it would block a long request until it had caught up. If it started at
the minimum of all members, a stream of short requests would block the long one for ever. A member that returns with
more than the virtual time continues where it left, because otherwise many short visits would add up to more than a fair
share.
"""

from typing import Generic, TypeVar

Who = TypeVar("Who")


class FairQueue(Generic[Who]):
    """A queue that picks the member with the fewest priced seconds so far."""

    def __init__(self) -> None:
        self._had: dict[Who, float] = {}
        self._now = 0.0  # the virtual time: priced seconds per member under equal sharing

    def __len__(self) -> int:
        return len(self._had)

    def __contains__(self, who: Who) -> bool:
        return who in self._had

    def join(self, who: Who, had: float = 0.0) -> None:
        """Add a member with the queue's present level of priced seconds, or with its own earlier ones if higher.

        Args:
            who: The member.
            had: The value from `leave` if it has been in the queue before.
        """
        self._had[who] = max(self._now, had)

    def leave(self, who: Who) -> float:
        """Remove a member and return its priced seconds, for a later `join`; return 0 if it is not queued."""
        return self._had.pop(who, 0.0)

    def next(self) -> Who:
        """Return the member with the fewest priced seconds, the longest queued among equals.

        The queue must not be empty.
        """
        return min(self._had, key=lambda who: self._had[who])

    def took(self, who: Who, seconds: float) -> None:
        """Charge a member for a turn of this many priced seconds."""
        self._had[who] += seconds
        self._now += seconds / len(self._had)
