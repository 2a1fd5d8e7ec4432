"""Integers of 4 or 8 bits in words of 32, as quantisers pack them: the first in the lowest bits."""

import torch
from torch import Tensor

WORD = 32


def integers(words: Tensor, bits: int) -> Tensor:
    """Words or bytes [..., n] -> uint8, each integer by itself [..., n x 32 / bits, or n x 8 / bits]."""
    bytes_ = words.contiguous().view(torch.uint8)
    return bytes_ if bits == 8 else torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).flatten(-2)


def words_for(count: int, bits: int) -> int:
    """How many words hold so many integers."""
    return -(-count * bits // WORD)
