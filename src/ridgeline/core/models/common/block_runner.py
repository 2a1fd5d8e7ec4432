"""BlockRunner: the way in which a denoiser's pass runs its blocks.

A pass runs all of them, unless the caller reuses most of an earlier pass's result (`media/diffusion/step_cache.py`).
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ridgeline.core.models.common.modulated import ResidualStream

Blocks = Callable[[ResidualStream], ResidualStream]
"""A function that runs some of a denoiser's blocks in turn; it may overwrite its input."""


class BlockRunner(Protocol):
    """The function that runs a denoiser's blocks, from the first one in which a text acts on latents to the last."""

    def __call__(self, entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
        """Run a denoiser's blocks on a residual stream, and return the rows of latents that the final norm reads.

        Args:
            entered: The residual stream before the first block in which a text acts on latents.
            own: The rows of the incoming streams that are latents, image after image, equally many of each; None if all
                are.
            first: The function that runs this first block.
            rest: The function that runs all blocks after it. Call `first` before `rest`, and each at most once. `rest`
                returns rows of latents only.
        """


def every_block(entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
    """Run all blocks of a denoiser's pass, without a step cache."""
    return rest(first(entered))
