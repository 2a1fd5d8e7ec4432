"""Guidance on two processes (CFG-parallel): each runs one pass of a step, and they exchange what it predicts.

Both have all of the model, and take the same steps from the same noise, so that either has the finished latents.
"""

from collections.abc import Callable

import torch
from torch import Tensor, distributed

from ridgeline.media.diffusion.guidance import Guidance, Pass, Text, guided


class CFGParallelPair:
    """This process as one of two of torch.distributed's default group; the first runs the prompt's passes.

    Raises ValueError where there is no such group.
    """

    def __init__(self) -> None:
        if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() != 2:
            raise ValueError("a pair of guidance runs on two processes; start two, and init_process_group in each")
        self.rank = distributed.get_rank()

    def check(self, seed: int, guidance: Guidance) -> None:
        """Raises ValueError for a request of one pass a step, or one that the two do not have the same noise for."""
        check_divides(guidance)
        seeds = self.exchange(torch.tensor(seed, dtype=torch.int64))
        if seeds[0] != seeds[1]:
            raise ValueError(f"one process of the pair has seed {seeds[0]}, the other {seeds[1]}; give both one seed")

    def exchange(self, mine: Tensor) -> tuple[Tensor, Tensor]:
        """What either process has of a tensor: the first one's, then the second one's. Raises ConnectionError where
        the other is gone.
        """
        first, second = torch.empty_like(mine), torch.empty_like(mine)
        try:
            distributed.all_gather([first, second], mine.contiguous())
        except RuntimeError as error:  # gloo's, of a connection that has ended
            raise ConnectionError(f"the other process of the pair is gone: {error}") from error
        return first, second


def check_divides(guidance: Guidance) -> None:
    """Raises ValueError for guidance of one pass a step."""
    if guidance.negative is None:
        raise ValueError("guidance is off: a step is one pass, which a pair does not divide; run one process")


def guide_apart(
    denoiser: Pass[Text], guidance: Guidance, own: Text, pair: CFGParallelPair
) -> Callable[[Tensor, float], Tensor]:
    """As `guide` with a second pass, of which each process runs one. own: the encoded text of this one's."""
    assert guidance.negative is not None, "one pass is no pair"

    def apart(x: Tensor, t: float) -> Tensor:
        return guided(*pair.exchange(denoiser(x, t, own)), guidance.scale)

    return apart
