"""The batch at which decode turns from memory-bound to compute-bound, if there is one."""

import math


def users_at_the_ridge(weights: float, flops: float, kv: float, peak: float, bandwidth: float) -> int | None:
    """Return the smallest number of users whose decode step is compute-bound; None if there is no such number.

    A step reads `weights` bytes once, and `kv` bytes for each user; it does `flops` operations for each user. The GPU
    does `peak` operations and moves `bandwidth` bytes per second.
    """
    gained = flops / peak - kv / bandwidth  # seconds per user by which arithmetic catches up
    return None if gained <= 0 else max(1, math.ceil(weights / bandwidth / gained))
