"""The candidates of one row: the tokens that may still be drawn, with their weights, and the draw itself.

The draw inverts a cumulative sum over the vocabulary without computing it: a float64 cumsum of 152k weights takes as
long as the rest of the sampler together. Here the weights are summed in blocks of 128 (fp32, vectorised), the block
sums are accumulated in float64, and only the block with the drawn point is searched.

Legend: C candidates (all of the vocabulary until something cuts it down), B blocks of 128 of them (the last may be
short), K remaining ones.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

BLOCK = 128

BoolsC = NDArray[np.bool_]
FloatsC = NDArray[np.float32]
IdsC = NDArray[np.int64]
SumsB = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens of one row that may be drawn, in increasing order of id."""

    ids_C: IdsC | None
    """The token ids of the candidates; None while they are the whole vocabulary.

    Copying 152k ids would cost more than a draw.
    """
    logits_C: FloatsC
    """The logits of the candidates after bias, mask and penalties, before the temperature."""
    weights_C: FloatsC
    """The weights of the candidates, exp((logit - largest logit) / temperature): the largest is exactly 1."""
    kept_C: BoolsC | None
    """The mask of tokens that may be drawn; None for all.

    It is a mask because cutting 152k candidates down to 130k costs more.
    """
    sums_B: SumsB
    """The sums of the weights in each block, over the tokens that may be drawn."""

    @classmethod
    def of(cls, ids_C: IdsC | None, logits_C: FloatsC, weights_C: FloatsC, kept_C: BoolsC | None = None) -> Self:
        """Make candidates from logits and weights, and sum the weights."""
        return cls(ids_C, logits_C, weights_C, kept_C, block_sums(weights_C, kept_C))

    @property
    def total(self) -> float:
        """The total weight of the tokens that may be drawn."""
        return float(self.sums_B.sum())

    def token(self, index: int) -> int:
        """Return the token id of the candidate at `index`."""
        return index if self.ids_C is None else int(self.ids_C[index])

    def subset(self, index_K: IdsC) -> Self:
        """Return the candidate tokens at these increasing indices, without all others."""
        ids_K = index_K if self.ids_C is None else self.ids_C[index_K]
        return self.of(ids_K, self.logits_C[index_K], self.weights_C[index_K])

    def draw(self, uniform: float) -> int:
        """Return the index at which the cumulative weight first exceeds uniform (in [0, 1)) x total.

        The candidate's weight is over 0.
        """
        ends_B = np.cumsum(self.sums_B)
        assert ends_B[-1] > 0, "no token is left to sample"
        point = uniform * float(ends_B[-1])
        block = first_above(ends_B, point)
        before = float(ends_B[block - 1]) if block else 0.0
        inside = slice(block * BLOCK, (block + 1) * BLOCK)
        weights = self.weights_C[inside] if self.kept_C is None else self.weights_C[inside] * self.kept_C[inside]
        return inside.start + first_above(np.cumsum(weights, dtype=np.float64), point - before)


def weigh(logits_C: FloatsC, largest: np.float32, temperature: float, out_C: FloatsC) -> FloatsC:
    """Compute the weights exp((logits - largest) / temperature) of logits into `out_C` and return it."""
    np.subtract(logits_C, largest, out=out_C)
    if temperature != 1.0:
        np.divide(out_C, np.float32(temperature), out=out_C)
    return np.exp(out_C, out=out_C)


def block_sums(weights_C: FloatsC, kept_C: BoolsC | None = None) -> SumsB:
    """Return the sum of the weights in each block, float64[B]; with a mask, of the weights that it keeps."""
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
    """Return the first index at which a cumulative sum exceeds a point; the sum rises there."""
    index = int(np.searchsorted(ends, point, side="right"))
    if index == len(ends):
        # Rounding can put the point on or past the end: take the last index at which the sum rises.
        index = int(np.searchsorted(ends, ends[-1], side="left"))
    return index
