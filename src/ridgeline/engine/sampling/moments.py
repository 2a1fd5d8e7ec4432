"""Step 3b of sampler.py: where the tokens that are moments are together likelier than any other, one of them is chosen.

Legend: R rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.engine.sampling.row import SampleRow
from ridgeline.engine.token_rules import unpacked


def with_moments(logits_RV: Tensor, rows: Sequence[SampleRow]) -> Sequence[SampleRow]:
    """The rows, with masks that leave moments alone where they outweigh all else. The logits of rows with a rule cross
    to the host; of others nothing is read."""
    if all(row.timestamps is None for row in rows):
        return rows
    return [
        row if row.timestamps is None else _narrowed(logits_RV[index].cpu().numpy(), row, row.timestamps)
        for index, row in enumerate(rows)
    ]


def _narrowed(logits_V: NDArray[np.float32], row: SampleRow, first: int) -> SampleRow:
    assert row.allowed is not None, "a row with moments has a mask"
    allowed_V = unpacked(row.allowed, len(logits_V))
    masked_V = np.where(allowed_V, logits_V, -np.inf).astype(np.float64)
    text, moments = masked_V[:first].max(), masked_V[first:]
    top = moments.max(initial=-np.inf)
    if not math.isfinite(top) or not top + np.log(np.exp(moments - top).sum()) > text:
        return row
    words = row.allowed.copy()
    words[: first // 32] = 0
    words[first // 32] &= np.uint32(0xFFFFFFFF << first % 32 & 0xFFFFFFFF)
    return replace(row, allowed=words)
