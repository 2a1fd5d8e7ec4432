"""Turns: which of several requests is stepped next, so that none has the machine for itself.

It is the one that has had the fewest priced seconds. Those are the same however busy the machine is, and are known
before anything has run.

Whoever comes later begins at what each of the others would have had by now, had they shared the machine without turns:
the virtual time of fair queueing (Demers, Keshav and Shenker 1989). If it began at nothing, a newcomer would hold up a
long request until it had caught up; if it began at the fewest that anybody has had, a stream of short requests would
hold the long one up for ever. Whoever comes again and has had more than that begins where it left, because otherwise
many short visits would come to more than a share.
"""

from typing import Generic, TypeVar

Who = TypeVar("Who")


class FairQueue(Generic[Who]):
    """Who takes part, and what each has had."""

    def __init__(self) -> None:
        self._had: dict[Who, float] = {}
        self._now = 0.0  # priced seconds that each would have had

    def __len__(self) -> int:
        return len(self._had)

    def __contains__(self, who: Who) -> bool:
        return who in self._had

    def join(self, who: Who, had: float = 0.0) -> None:
        """From now on `who` takes turns. had: what `leave` gave, where it was here before."""
        self._had[who] = max(self._now, had)

    def leave(self, who: Who) -> float:
        """From now on `who` takes no turns; does nothing where it took none. Returns what it has had, for `join`."""
        return self._had.pop(who, 0.0)

    def next(self) -> Who:
        """Whose turn it is: of those that have had the fewest seconds, the one that has been there longest. At least
        one takes turns.
        """
        return min(self._had, key=lambda who: self._had[who])

    def took(self, who: Who, seconds: float) -> None:
        """It has had a turn of so many priced seconds."""
        self._had[who] += seconds
        self._now += seconds / len(self._had)
