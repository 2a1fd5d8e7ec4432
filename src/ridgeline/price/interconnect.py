"""The interconnect between devices, with all-reduce times by message size, number of devices and kernel kind.

A single latency and bandwidth do not suffice. A kernel that reads every peer at once, one that works in two halves, and
a ring each win at another size, so that a straight line is off by a third for messages of a megabyte.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

# "custom": an engine's own kernels, which read the memory of peer GPUs. "nccl": the vendor's library, NCCL or RCCL.
KINDS = ("custom", "nccl")


@dataclass(frozen=True, slots=True)
class Curve:  # also in formulas.js
    """The measured all-reduce seconds at increasing message sizes, with interpolation.

    Between two sizes, the logarithms of size and time are interpolated linearly. Below the first size, the time is
    constant (all latency). Beyond the last size, each byte costs as much as between the last two sizes.
    """

    nbytes: tuple[float, ...]
    """The message sizes in bytes, in increasing order."""
    seconds: tuple[float, ...]
    """The all-reduce seconds at each message size."""

    def at(self, nbytes: float) -> float:  # also in formulas.js
        """Return the seconds of an all-reduce of a message of `nbytes` bytes."""
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
        """Return the all-reduce curve for a link with `factor` times the bandwidth.

        Time beyond the latency is divided by `factor`.
        """
        first = self.seconds[0]
        return Curve(self.nbytes, tuple(first + (seconds - first) / factor for seconds in self.seconds))


@dataclass(frozen=True, slots=True)
class Interconnect:
    """A link between devices, such as NVLink or PCIe."""

    name: str
    bandwidth: float
    """The bandwidth of one device's link in one direction, in bytes per second."""
    all_reduce: Mapping[str, Mapping[int, Curve]] = field(default_factory=dict)
    """The all-reduce times by kernel kind ("custom" or "nccl") and number of devices."""

    def all_reduce_seconds(self, nbytes: float, ranks: int, kind: str = "custom") -> float:  # also in formulas.js
        """Return the seconds of an all-reduce of `nbytes` bytes.

        Numbers of devices between two measured ones are interpolated linearly in log2 of the number. Outside their
        range the nearest measured number is used.

        Args:
            nbytes: The size of the message in bytes.
            ranks: The number of devices.
            kind: The kernel kind; the first known kind replaces one without measurements.
        """
        known = self.all_reduce.get(kind)
        if not known:
            known = next(iter(self.all_reduce.values()))
        fewer = max((count for count in known if count <= ranks), default=min(known))
        more = min((count for count in known if count >= ranks), default=max(known))
        seconds = known[fewer].at(nbytes)
        if not fewer < ranks < more:
            return seconds
        part = math.log2(ranks / fewer) / math.log2(more / fewer)
        return seconds + part * (known[more].at(nbytes) - seconds)

    def over(self, factor: float) -> "Interconnect":
        """Return the same link between devices with `factor` times the bandwidth."""
        curves = {
            kind: {ranks: curve.over(factor) for ranks, curve in known.items()}
            for kind, known in self.all_reduce.items()
        }
        return Interconnect(self.name, self.bandwidth * factor, curves)


def latency_bandwidth_curve(latency: float, bandwidth: float) -> Curve:
    """Return the curve of a fixed latency and bandwidth, with a point for every doubling from 1 KiB to 1 GiB.

    From 1 KiB on it is within about 1.5 % of the straight line. Smaller messages take as long as 1 KiB.
    """
    sizes = tuple(2.0**power for power in range(10, 31))
    return Curve(sizes, tuple(latency + size / bandwidth for size in sizes))
