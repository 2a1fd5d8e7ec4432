"""Guidance on two processes (CFG-parallel): each runs one pass of a step, and they exchange their predictions.

Both have the whole model and take the same steps from the same noise, so both have the finished latents.
"""

from collections.abc import Callable

import torch
from torch import Tensor, distributed

from ridgeline.media.diffusion.guidance import DenoiserPass, Guidance, Text, combine_guidance


class CFGParallelPair:
    """The membership of this process in a pair that shares a request; rank 0 runs the prompt's passes.

    The pair is torch.distributed's default group of two processes.

    Raises:
        ValueError: If there is no such group.
    """

    def __init__(self) -> None:
        if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() != 2:
            raise ValueError(
                "CFG parallelism runs in two processes: start two, and call torch.distributed.init_process_group in "
                "each"
            )
        self.rank = distributed.get_rank()

    def check(self, seed: int, guidance: Guidance) -> None:
        """Check that both processes of the pair can share a request.

        Raises:
            ValueError: If the request has one pass per step, or the processes have different seeds.
        """
        check_divides(guidance)
        seeds = self.exchange(torch.tensor(seed, dtype=torch.int64))
        if seeds[0] != seeds[1]:
            raise ValueError(
                f"one CFG-parallel process has seed {seeds[0]}, the other {seeds[1]}: give both the same seed"
            )

    def exchange(self, mine: Tensor) -> tuple[Tensor, Tensor]:
        """Exchange a tensor between both processes and return both values, that of rank 0 first.

        Raises:
            ConnectionError: If the other process has ended.
        """
        first, second = torch.empty_like(mine), torch.empty_like(mine)
        try:
            distributed.all_gather([first, second], mine.contiguous())
        except RuntimeError as error:  # gloo raises it if the connection has ended
            raise ConnectionError(f"the other CFG-parallel process has ended: {error}") from error
        return first, second


def check_divides(guidance: Guidance) -> None:
    """Raise ValueError if guidance has only one pass per step."""
    if guidance.negative is None:
        raise ValueError("guidance is off, so a step is one pass, which CFG parallelism cannot divide: run one process")


def apply_guidance_parallel(
    denoiser: DenoiserPass[Text], guidance: Guidance, own: Text, pair: CFGParallelPair
) -> Callable[[Tensor, float], Tensor]:
    """Return the denoiser with guidance whose two passes run in two processes.

    `own` is the encoded text of this process's pass.
    """
    assert guidance.negative is not None, "guidance is off, so there is no second pass"

    def apart(x: Tensor, t: float) -> Tensor:
        return combine_guidance(*pair.exchange(denoiser(x, t, own)), guidance.scale)

    return apart
