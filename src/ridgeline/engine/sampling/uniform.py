"""The uniform random numbers of the sampler: one for each (seed, position, choice), from a counter-based generator.

There is no generator state. A token's random number is a pure function of the request's seed, the token's absolute
position and the index of the completion. A request's tokens therefore do not depend on its neighbours in the batch, on
preemption or on the order in which steps ran.

The generator is Philox4x32-10 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC'11. Tests check it against the known answers published with it (Random123, kat_vectors).

Legend: R rows of the batch. Words are 32 bits wide and held in uint64, so that a 32 x 32 product is exact.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WordsR = NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)  # 2^32 times the golden ratio's fraction
_WEYL_1 = np.uint64(0xBB67AE85)  # 2^32 times the fraction of sqrt(3)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32(counter: Sequence[WordsR], key: Sequence[WordsR]) -> tuple[WordsR, WordsR, WordsR, WordsR]:
    """Compute four output words of Philox4x32-10.

    All words are uint64[R] below 2^32.

    Args:
        counter: Four counter words.
        key: Two key words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0, c1 = (product_1 >> _32) ^ c1 ^ k0, product_1 & _LOW
        c2, c3 = (product_0 >> _32) ^ c3 ^ k1, product_0 & _LOW
        k0 = (k0 + _WEYL_0) & _LOW
        k1 = (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


def uniform(seed_R: Sequence[int], position_R: Sequence[int], choice_R: Sequence[int]) -> NDArray[np.float64]:
    """Return one uniform number per row: float64[R] in [0, 1), multiples of 2^-53.

    The key is the seed mod 2^64 (-1 and 2^64 - 1 are one seed); the counter is the position's low and high word, the
    choice, and 0. Position and choice are not negative.
    """
    seeds = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seed_R], np.uint64)
    positions = np.array(position_R, np.uint64)
    choices = np.array(choice_R, np.uint64)
    counter = (positions & _LOW, positions >> _32, choices, np.zeros_like(choices))
    word_0, word_1, _, _ = philox4x32(counter, (seeds & _LOW, seeds >> _32))
    bits_53 = ((word_0 << _32) | word_1) >> np.uint64(11)
    return bits_53.astype(np.float64) * 2.0**-53
