"""RMSNorm: the op between the parts of every layer that keeps numbers at their size."""

import math


def normalised(x: list[float], weight: list[float], eps: float) -> list[float]:
    """Return x divided by the root of the mean of its squares, times a weight for each entry.

    `eps` is added to the mean before the root.
    """
    scale = 1 / math.sqrt(sum(value * value for value in x) / len(x) + eps)
    return [value * scale * w for value, w in zip(x, weight, strict=True)]
