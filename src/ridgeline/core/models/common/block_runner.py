"""Walk: how a pass goes through a denoiser's blocks.

Through all of them, unless whoever asks knows from earlier passes what most would give
(`media/diffusion/step_cache.py`).
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ridgeline.core.models.common.modulated import ResidualStream

Blocks = Callable[[ResidualStream], ResidualStream]
"""Some blocks in turn. They may write over what they are given."""


class BlockRunner(Protocol):
    """From what the first block is given to what the last norm is."""

    def __call__(self, entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
        """Run blocks on the stream that enters them.

        first: the first block in which a text acts on rows of latents. rest: all blocks after it. They are to be
        called in this order, each at most once. own: which rows of the stream that goes into either are of latents,
        picture after picture, as many of each; None where all are. The stream that `rest` gives, and the one returned,
        have rows of latents alone.
        """


def every_block(entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
    """The walk through all of them."""
    return rest(first(entered))
