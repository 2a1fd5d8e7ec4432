"""The gate of a feed-forward part: SiLU of one list, times another."""

import math


def gated(gate: list[float], up: list[float]) -> list[float]:
    """Return SiLU(gate) * up, entry by entry; SiLU(x) is x / (1 + e^-x)."""
    return [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
