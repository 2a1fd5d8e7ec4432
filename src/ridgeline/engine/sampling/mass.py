"""Sums of weights in blocks, so that a cumulative sum over the vocabulary can be inverted without computing it.

A float64 cumsum of 152k weights takes as long as the rest of the sampler together. Here the weights are summed in
blocks of 128 (fp32, vectorised), the block sums are accumulated in float64, and only the block that holds the drawn
point is looked into.

Legend: C candidates, B blocks of 128 of them (the last may be short).
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 128

BoolsC = NDArray[np.bool_]
FloatsC = NDArray[np.float32]
SumsB = NDArray[np.float64]


def block_sums(weights_C: FloatsC, kept_C: BoolsC | None = None) -> SumsB:
    """Sums of the weights (those that are kept, if a mask is given) in each block, float64[B]; 0 if none is kept."""
    blocks, rest = divmod(len(weights_C), BLOCK)
    whole = blocks * BLOCK
    sums_B = np.empty(blocks + (rest > 0), np.float64)
    head = weights_C[:whole].reshape(blocks, BLOCK)
    if kept_C is None:
        sums_B[:blocks] = np.einsum("ij->i", head)
        tail = weights_C[whole:]
    else:
        sums_B[:blocks] = np.einsum("ij,ij->i", head, kept_C[:whole].astype(np.float32).reshape(blocks, BLOCK))
        tail = weights_C[whole:] * kept_C[whole:]
    if rest:
        sums_B[-1] = tail.sum()
    return sums_B


def first_above(ends: SumsB, point: float) -> int:
    """First index at which a cumulative sum exceeds the point. It rises there, so what it sums is positive there."""
    index = int(np.searchsorted(ends, point, side="right"))
    if index == len(ends):
        # Rounding can put the point on or past the end: take the last index at which the sum rises.
        index = int(np.searchsorted(ends, ends[-1], side="left"))
    return index
