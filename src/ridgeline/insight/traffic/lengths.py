"""Distributions of prompt and response lengths in tokens."""

import math
import random
import re
from dataclasses import dataclass

MAX_TOKENS = 1 << 24  # the maximum of any length
_P99 = 2.326  # the 99th percentile of the normal distribution, in standard deviations
_COUNT = re.compile(r"(\d+)(k?)")
_FORMS = "512, 1k, uniform:50:200, or lognormal:512:0.5 (median, then sigma)"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A length distribution that always gives `tokens`."""

    tokens: int

    def draw(self, draw: random.Random) -> int:
        """Return the fixed length in tokens."""
        return self.tokens

    @property
    def p99(self) -> int:
        """The largest length in tokens, here the fixed one."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """A uniform distribution of lengths from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, draw: random.Random) -> int:
        """Return a random length in tokens."""
        return draw.randint(self.low, self.high)

    @property
    def p99(self) -> int:
        """The largest length in tokens, here `high`."""
        return self.high


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal distribution of lengths, with a median and the standard deviation `sigma` of the logarithm.

    Lengths are at least 1.
    """

    median: int
    sigma: float

    def draw(self, draw: random.Random) -> int:
        """Return a random length in tokens."""
        return self._at(draw.gauss(0.0, 1.0))

    @property
    def p99(self) -> int:
        """A length in tokens that only 1 % of draws exceed."""
        return self._at(_P99)

    def _at(self, deviations: float) -> int:
        """Return the length at a number of standard deviations from the median."""
        return min(MAX_TOKENS, max(1, round(self.median * math.exp(min(16.0, deviations * self.sigma)))))


Lengths = Fixed | Uniform | LogNormal


def parse_lengths(text: str, option: str) -> Lengths:
    """Parse a length distribution: `512`, `1k` (1,024), `uniform:50:200` or `lognormal:512:0.5`.

    Raises:
        ValueError: If the text is malformed; the message names the option.
    """
    kind, *parts = text.strip().split(":")
    try:
        if not parts:
            return Fixed(_count(kind))
        if kind == "uniform" and len(parts) == 2:
            low, high = map(_count, parts)
            if low <= high:
                return Uniform(low, high)
        if kind == "lognormal" and len(parts) == 2 and 0 <= float(parts[1]) <= 4:
            return LogNormal(_count(parts[0]), float(parts[1]))
    except ValueError:
        pass
    raise ValueError(f"{option} is {text!r}; write {_FORMS}")


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text)
    count = int(match[1]) * (1024 if match[2] else 1) if match is not None else 0
    if not 1 <= count <= MAX_TOKENS:
        raise ValueError(text)
    return count
