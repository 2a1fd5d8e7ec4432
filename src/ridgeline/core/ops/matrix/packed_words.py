"""Integers of 4 or 8 bits in words of 32, as quantisers pack them: the first in the lowest bits."""

import torch
from torch import Tensor

WORD = 32
SIGN_BIT = 0x80
"""Inverted, it makes a signed byte an unsigned one of which 128 stands for zero, and the other way round."""


def integers(words: Tensor, bits: int) -> Tensor:
    """Words or bytes [..., n] -> uint8, each integer by itself [..., n x 32 / bits, or n x 8 / bits]."""
    bytes_ = words.contiguous().view(torch.uint8)
    return bytes_ if bits == 8 else torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).flatten(-2)


def bytes_of(integers_xn: Tensor, bits: int) -> Tensor:
    """What `integers` takes apart: uint8 [..., n], an even number of those of 4 bits -> bytes [..., n x bits / 8]."""
    return integers_xn if bits == 8 else integers_xn[..., ::2] | (integers_xn[..., 1::2] << 4)


def words_for(count: int, bits: int) -> int:
    """How many words hold so many integers."""
    return -(-count * bits // WORD)
