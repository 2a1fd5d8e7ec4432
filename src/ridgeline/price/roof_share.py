"""The share of a roof that a measurement has to reach before the roof explains its time."""

EXPLAINS = 0.3
"""The share of a roof from which on the roof is named as the limit.

At 30%, the hardware's minimum is nearly a third of the time, and a faster memory or faster arithmetic shortens it
noticeably. Below that, over 70% of the time is something else, such as Python between ops, kernel launches or a slow
kernel, and even hardware without limits would leave that.
"""


def explains(floor: float, measured: float) -> bool:
    """Return whether a roof's minimum time in seconds explains a measured one."""
    return floor >= EXPLAINS * measured
