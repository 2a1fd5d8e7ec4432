"""Rotary positions: a query or key, rotated by the position of its token."""

import math


def rotated(x: list[float], position: int, theta: float) -> list[float]:
    """Return x [d] with pairs (x[n], x[n + d/2]) rotated by the angle position / theta^(2n/d), counterclockwise.

    The rotation turns (a, b) into (a cos - b sin, b cos + a sin).
    """
    half = len(x) // 2
    result = [0.0] * len(x)
    for n in range(half):
        angle = position / theta ** (2 * n / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        result[n] = x[n] * cos - x[n + half] * sin
        result[n + half] = x[n + half] * cos + x[n] * sin
    return result
