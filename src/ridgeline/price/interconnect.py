"""What joins cards, and how long an all-reduce over it takes: by size of the message, number of cards, kind of kernel.

One line through latency and bandwidth does not do: a kernel that reads every peer in one go, one that does so in two
halves, and a ring each win at another size, so that messages of a megabyte are off by a third.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

# An engine's own kernels, which read the other cards' memory; NCCL (RCCL) of the maker, for engines that have none.
KINDS = ("custom", "nccl")


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of an all-reduce at some sizes of its message, which rise. Between two of them both logarithms are on a
    line; below the first its seconds are all latency; beyond the last each byte costs what it does between the last
    two.
    """

    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, nbytes: float) -> float:
        """Seconds of a message of so many bytes."""
        sizes, seconds = self.nbytes, self.seconds
        above = bisect_right(sizes, nbytes)
        if above == 0:
            return seconds[0]
        if above == len(sizes):
            last = max(len(sizes) - 2, 0)
            rise = (seconds[-1] - seconds[last]) / (sizes[-1] - sizes[last]) if last < len(sizes) - 1 else 0.0
            return seconds[-1] + rise * (nbytes - sizes[-1])
        low, high = sizes[above - 1], sizes[above]
        part = math.log(nbytes / low) / math.log(high / low)
        return seconds[above - 1] * math.pow(seconds[above] / seconds[above - 1], part)

    def over(self, factor: float) -> "Curve":
        """The same over a link of `factor` times the bandwidth: what comes after the latency is divided."""
        first = self.seconds[0]
        return Curve(self.nbytes, tuple(first + (seconds - first) / factor for seconds in self.seconds))


@dataclass(frozen=True, slots=True)
class Interconnect:
    """What joins cards. bandwidth: bytes a second and direction, of one card. all_reduce: by kind of kernel and number
    of cards.
    """

    name: str
    bandwidth: float
    all_reduce: Mapping[str, Mapping[int, Curve]] = field(default_factory=dict)

    def all_reduce_seconds(self, nbytes: float, cards: int, kind: str = "custom") -> float:
        """Seconds of an all-reduce of `nbytes` over so many cards; of the other kind of kernel where this one is not
        known. Counts between two known ones are on a line over log2 of the count; beyond them, the nearest.
        """
        known = self.all_reduce.get(kind) or next(iter(self.all_reduce.values()))
        fewer = max((count for count in known if count <= cards), default=min(known))
        more = min((count for count in known if count >= cards), default=max(known))
        seconds = known[fewer].at(nbytes)
        if not fewer < cards < more:
            return seconds
        part = math.log2(cards / fewer) / math.log2(more / fewer)
        return seconds + part * (known[more].at(nbytes) - seconds)

    def over(self, factor: float) -> "Interconnect":
        """The same link with `factor` times the bandwidth."""
        curves = {
            kind: {cards: curve.over(factor) for cards, curve in known.items()}
            for kind, known in self.all_reduce.items()
        }
        return Interconnect(self.name, self.bandwidth * factor, curves)


def straight(latency: float, bandwidth: float) -> Curve:
    """The curve of `latency` seconds and then so many bytes a second: a point for every doubling from 1 KiB to 1 GiB,
    which is within 1.5 % of the line everywhere.
    """
    sizes = tuple(2.0**power for power in range(10, 31))
    return Curve(sizes, tuple(latency + size / bandwidth for size in sizes))
