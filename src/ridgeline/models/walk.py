"""Walk: how a pass goes through a denoiser's blocks.

Through all of them, unless whoever asks knows from earlier passes what most would give (`diffusion/step_cache.py`).
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ridgeline.models.modulated import Stream

Blocks = Callable[[Stream], Stream]
"""Some blocks in turn. They may write over what they are given."""


class Walk(Protocol):
    """From what the first block is given to what the last norm is."""

    def __call__(self, entered: Stream, own: Tensor | None, first: Blocks, rest: Blocks) -> Stream:
        """first: the first of the blocks over rows that texts act on; rest: all others. They are to be called in this
        order, once each at most. own: which rows of what either is given are of latents, picture after picture, of each
        as many; None for all. What `rest` gives has these alone, and so does what is returned."""


def every_block(entered: Stream, own: Tensor | None, first: Blocks, rest: Blocks) -> Stream:
    """The walk through all of them."""
    return rest(first(entered))
