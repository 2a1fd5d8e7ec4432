"""The row of a table that points most nearly in the direction of a vector."""

import math


def nearest(rows: list[list[float]], vector: list[float], without: list[int]) -> int:
    """Return the index of the row with the largest cosine to the vector, among those not in `without`.

    The cosine is the dot product divided by the product of both lengths. No row is all zeros.
    """

    def cosine(row: list[float]) -> float:
        return sum(r * v for r, v in zip(row, vector, strict=True)) / math.hypot(*row) / math.hypot(*vector)

    return max((n for n in range(len(rows)) if n not in without), key=lambda n: cosine(rows[n]))
