"""RMSNorm: what stands between the parts of every layer, so that numbers keep their size."""

import math


def normalised(x: list[float], weight: list[float], eps: float) -> list[float]:
    """X over the root of the mean of its squares, times a weight for each entry; `eps` is added to that mean."""
    scale = 1 / math.sqrt(sum(value * value for value in x) / len(x) + eps)
    return [value * scale * w for value, w in zip(x, weight, strict=True)]
