"""Rate profiles: arrival rates that change over time.

The arrivals of a steady process are moved by a time change: an arrival occurs once the integrated rate reaches its time
in the steady process. Poisson arrivals stay Poisson (Cinlar 1975, time change).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ridgeline.insight.traffic.arrivals import SECOND
from ridgeline.util.times import parse_time

_FORMS = (
    "ramp:4:60s (to 4 times the rate in a minute), spike:4:60s:30s (4 times, from 60 s on, for 30 s) or day:0.2:600s "
    "(from 0.2 of the rate to the full rate and back in 600 s)"
)
_ROUNDS = 60  # bisection steps, enough for a nanosecond in a day


class Profile(Protocol):
    """A rate over time, as a multiple of a base rate."""

    def due(self, seconds: float) -> float:
        """Return the integral of the profile's relative rate from 0 to `seconds`.

        By that time, a steady process at the base rate has as many arrivals as the profile has by `seconds`.
        """

    @property
    def least(self) -> float:
        """The lowest rate of the profile as a multiple of the base rate."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A linear change of the rate to `times` the base rate, which then stays constant."""

    times: float
    seconds: float

    def due(self, seconds: float) -> float:
        """Return the integral of the ramp's relative rate from 0 to `seconds`, as `Profile.due` defines it."""
        rising = min(seconds, self.seconds)
        return rising + (self.times - 1) * rising**2 / (2 * self.seconds) + self.times * (seconds - rising)

    @property
    def least(self) -> float:
        """The lowest rate of the ramp as a multiple of the base rate."""
        return min(1.0, self.times)


@dataclass(frozen=True, slots=True)
class Spike:
    """A rate of `times` the base rate during an interval, and the base rate otherwise."""

    times: float
    start: float
    seconds: float

    def due(self, seconds: float) -> float:
        """Return the integral of the spike's relative rate from 0 to `seconds`, as `Profile.due` defines it."""
        return seconds + (self.times - 1) * min(max(0.0, seconds - self.start), self.seconds)

    @property
    def least(self) -> float:
        """The lowest rate of the profile as a multiple of the base rate."""
        return min(1.0, self.times)


@dataclass(frozen=True, slots=True)
class DayCycle:
    """A periodic rate between a share of the base rate and the full base rate, in the shape of a cosine."""

    share: float
    seconds: float

    def due(self, seconds: float) -> float:
        """Return the integral of the cycle's relative rate from 0 to `seconds`, as `Profile.due` defines it."""
        turn = 2 * math.pi / self.seconds
        return self.share * seconds + (1 - self.share) * (seconds - math.sin(turn * seconds) / turn) / 2

    @property
    def least(self) -> float:
        """The lowest rate of the cycle as a multiple of the base rate."""
        return min(1.0, self.share)


def shaped(moments: Iterable[int], profile: Profile) -> Iterator[int]:
    """Yield the arrival times of a steady process, in nanoseconds, changed to follow a rate profile."""
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
    """Parse a rate profile: `ramp:4:60s`, `spike:4:60s:30s` or `day:0.2:600s`.

    Raises:
        ValueError: If the text is malformed; the message shows the forms.
    """
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
