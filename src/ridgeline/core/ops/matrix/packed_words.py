"""Integers of 4 or 8 bits packed into 32-bit words, as quantisers store them: the first in the lowest bits."""

import torch
from torch import Tensor

WORD = 32
"""The number of bits in a word of packed integers."""
SIGN_BIT = 0x80
"""The bit to invert to convert between signed bytes and unsigned bytes with zero at 128."""


def integers(words: Tensor, bits: int) -> Tensor:
    """Unpack words or bytes [..., n] to one uint8 per integer: [..., n x 32 / bits], or [..., n x 8 / bits]."""
    bytes_ = words.contiguous().view(torch.uint8)
    return bytes_ if bits == 8 else torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).flatten(-2)


def bytes_of(integers_xn: Tensor, bits: int) -> Tensor:
    """Pack uint8 integers [..., n] into bytes [..., n x bits / 8], the inverse of `integers`.

    The number of 4-bit integers must be even.
    """
    return integers_xn if bits == 8 else integers_xn[..., ::2] | (integers_xn[..., 1::2] << 4)


def words_for(count: int, bits: int) -> int:
    """Return the number of 32-bit words that hold `count` integers."""
    return -(-count * bits // WORD)
