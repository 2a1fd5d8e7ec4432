"""Distributions of the think time, from a response to the user's next request."""

import random
from dataclasses import dataclass

from ridgeline.util.document.humanize import say_seconds
from ridgeline.util.times import parse_time

_CONSTANT = "constant:"


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """A think time: exponential, as in the queueing model of an interactive system, or constant.

    An exponential think time has no memory, so users who once waited for each other spread out again. After equal think
    times, users whose responses end together also send their next requests together. Such a group only grows, so the
    latencies of a run would depend on its length.
    """

    mean: int = 0
    """The mean think time in nanoseconds; 0 for users who do not think."""
    constant: bool = False
    """Whether each think time is the mean."""

    def draw(self, draw: random.Random) -> int:
        """Return a think time in nanoseconds."""
        return self.mean if self.constant or not self.mean else round(draw.expovariate(1 / self.mean))

    def draw_start(self, draw: random.Random) -> int:
        """Return when a user sends the first request, in nanoseconds: after the rest of a think time."""
        return draw.randrange(self.mean) if self.constant and self.mean else self.draw(draw)

    @property
    def in_words(self) -> str:
        """The think time, such as `20 s on average (exponential)`."""
        return f"{say_seconds(self.mean / 1e9)}{'' if self.constant else ' on average (exponential)'}"


def parse_think_time(text: str | None, option: str) -> ThinkTime:
    """Parse a think time: `20s` for an exponential one with this mean, or `constant:20s`; None for no think time.

    Raises:
        ValueError: If the text is malformed; the message names the option.
    """
    if text is None:
        return ThinkTime()
    stated = text.strip()
    mean = parse_time(stated.removeprefix(_CONSTANT))
    if not mean:
        raise ValueError(
            f"{option} is {text!r}; write a time above 0 with its unit, like 500ms or 2s, up to a year (a mean), or "
            "constant:2s"
        )
    return ThinkTime(mean, stated.startswith(_CONSTANT))
