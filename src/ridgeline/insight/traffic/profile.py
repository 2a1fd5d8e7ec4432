"""Profiles: how a rate changes over time. Arrivals of a steady process are moved so that they come at the rate of each
moment: when as many are due as have come, the next one does. Poisson arrivals stay Poisson (Cinlar 1975, time change).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ridgeline.insight.traffic.arrivals import SECOND
from ridgeline.util.times import parse_time

_FORMS = (
    "ramp:4:60s (to 4 times the rate in a minute), spike:4:60s:30s (4 times, from 60 s on, for 30 s) or day:0.2:600s "
    "(from 0.2 of the rate to all of it and back in 600 s)"
)
_ROUNDS = 60  # of bisection: to less than a nanosecond of a day


class Profile(Protocol):
    """Of a rate, as a multiple of it."""

    def due(self, seconds: float) -> float:
        """Seconds at the steady rate in which as many come as up to this moment."""

    @property
    def least(self) -> float:
        """The lowest multiple there is."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """From the rate to so many times it, evenly; then it stays there."""

    times: float
    seconds: float

    def due(self, seconds: float) -> float:
        """As Profile.due."""
        rising = min(seconds, self.seconds)
        return rising + (self.times - 1) * rising**2 / (2 * self.seconds) + self.times * (seconds - rising)

    @property
    def least(self) -> float:
        """As Profile.least."""
        return min(1.0, self.times)


@dataclass(frozen=True, slots=True)
class Spike:
    """So many times the rate for some seconds."""

    times: float
    start: float
    seconds: float

    def due(self, seconds: float) -> float:
        """As Profile.due."""
        return seconds + (self.times - 1) * min(max(0.0, seconds - self.start), self.seconds)

    @property
    def least(self) -> float:
        """As Profile.least."""
        return min(1.0, self.times)


@dataclass(frozen=True, slots=True)
class DayCycle:
    """From a share of the rate to all of it and back, again and again, as a cosine goes."""

    share: float
    seconds: float

    def due(self, seconds: float) -> float:
        """As Profile.due."""
        turn = 2 * math.pi / self.seconds
        return self.share * seconds + (1 - self.share) * (seconds - math.sin(turn * seconds) / turn) / 2

    @property
    def least(self) -> float:
        """As Profile.least."""
        return min(1.0, self.share)


def shaped(moments: Iterable[int], profile: Profile) -> Iterator[int]:
    """Moments of a steady process, in nanoseconds, as they come at a rate with a profile."""
    before = 0.0
    for moment in moments:
        wanted = moment / SECOND
        low, high = before, before + (wanted - profile.due(before)) / profile.least
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if profile.due(middle) < wanted else (low, middle)
        before = low
        yield round(high * SECOND)


def parse_profile(text: str) -> Profile:
    """Of `ramp:4:60s`, `spike:4:60s:30s`, `day:0.2:600s`. Raises ValueError with what to write."""
    kind, *parts = text.strip().split(":")
    try:
        if kind == "ramp" and len(parts) == 2:
            return Ramp(_multiple(parts[0]), _seconds(parts[1]))
        if kind == "spike" and len(parts) == 3:
            return Spike(_multiple(parts[0]), _seconds(parts[1]), _seconds(parts[2]))
        if kind == "day" and len(parts) == 2 and _multiple(parts[0]) <= 1:
            return DayCycle(_multiple(parts[0]), _seconds(parts[1]))
    except ValueError:
        pass
    raise ValueError(f"--profile is {text!r}; write {_FORMS}")


def _multiple(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 1000:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    if not (nanoseconds := parse_time(text)):
        raise ValueError(text)
    return nanoseconds / SECOND
