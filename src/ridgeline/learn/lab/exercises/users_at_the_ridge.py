"""The batch at which decode turns from memory to arithmetic, if there is one."""

import math


def users_at_the_ridge(weights: float, flops: float, kv: float, peak: float, bandwidth: float) -> int | None:
    """The fewest users whose decode step is compute-bound; None if no number of them is.

    A step reads `weights` bytes once, and `kv` bytes for each user; it does `flops` operations for each. The card does
    `peak` operations and moves `bandwidth` bytes a second.
    """
    gained = flops / peak - kv / bandwidth  # seconds by which arithmetic catches up, a user
    return None if gained <= 0 else max(1, math.ceil(weights / bandwidth / gained))
