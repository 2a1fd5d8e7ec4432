"""Rotary positions: a query or key, turned by where its token stands."""

import math


def rotated(x: list[float], position: int, theta: float) -> list[float]:
    """X [d] with pairs (x[n], x[n + d/2]) turned by the angle position / theta^(2n/d), counterclockwise.

    Turned so, (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    half = len(x) // 2
    result = [0.0] * len(x)
    for n in range(half):
        angle = position / theta ** (2 * n / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        result[n] = x[n] * cos - x[n + half] * sin
        result[n + half] = x[n + half] * cos + x[n] * sin
    return result
