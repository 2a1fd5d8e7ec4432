"""The step cache: if a denoiser pass starts like an earlier one, it reuses that pass's effect of most blocks.

It is the first-block cache (https://github.com/chengzeyi/ParaAttention, "First Block Cache"; `FirstBlockCacheConfig` of
diffusers), which derives from TeaCache (arXiv:2411.19108). The first block runs at each noise level. Its contribution
to the rows of latents is compared with its contribution in the last complete pass:

    mean |now - then| / mean |then| < threshold

If this holds, the contribution of all other blocks in that pass is added again. Errors do not accumulate from pass to
pass, because the comparison is with the last complete pass and not with the previous pass. The cache changes the
resulting image.

Shapes: P images, N rows of latents of each, D hidden.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.core.models.common.block_runner import BlockRunner, Blocks
from ridgeline.core.models.common.modulated import ResidualStream
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair


def check_threshold(threshold: float) -> None:
    """Raise ValueError if a threshold is not a finite number or is negative."""
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(
            f"the step cache's threshold is {threshold}; give the relative change below which blocks are skipped, 0 or "
            "more, like 0.1"
        )


class StepCache:
    """A step cache for the images of one batch.

    Attributes:
        threshold: Relative change of the first block's contribution below which the other blocks are skipped.
        skipped: Passes that ran only the first block since the last `take`. A denoiser call counts as one pass for each
            of its images, or as two for each image if it contains both guidance passes.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold, self.skipped = threshold, 0

    def take(self, pair: CFGParallelPair | None) -> int:
        """Return the number of denoiser passes that the step cache skipped since the last call of this method.

        With a `pair` it includes the passes of the other process.
        """
        skipped, self.skipped = self.skipped, 0
        return skipped if pair is None else int(sum(pair.exchange(torch.tensor(skipped))))

    def block_runner(self, images: int) -> BlockRunner:
        """Return the block runner for one kind of pass over `images` images.

        There is one for the passes with the prompt, one for those with the negative prompt, or one for calls that
        contain both. Between two passes of a runner only the latents and the noise level change.
        """
        return _CachedBlockRunner(self, images)


class _CachedBlockRunner:
    """A block runner that skips blocks, based on the contributions of each image's last complete pass.

    `_first` is the contribution of the first block to the rows of latents and `_rest` that of all others, each [P, N,
    D].
    """

    def __init__(self, cache: StepCache, images: int) -> None:
        self._cache, self._images = cache, images
        self._first: Tensor | None = None
        self._rest: Tensor | None = None

    def __call__(self, entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
        """Run the first block, and the other blocks only if its contribution changed; see `BlockRunner`.

        Each image is judged alone, so its result does not depend on the batch. If one image of a call needs the
        complete pass, all run it, but the others still use the cached contributions: a call only has several images if
        further rows cost almost nothing (`batching.py`).
        """
        before_PND = self._sum(entered, own)
        stream = first(entered)
        after_PND = self._sum(stream, own)
        change_PND = after_PND - before_PND
        fresh = self._changed(change_PND)
        if not any(fresh):
            self._cache.skipped += self._images
            return self._again(after_PND, stream)
        last = rest(stream)
        rest_PND = self._sum(last) - after_PND
        if not all(fresh):
            old = self._again(after_PND, last)
            last = ResidualStream(*(self._chosen(fresh, *both) for both in zip(last, old, strict=True)))
        self._first = self._chosen(fresh, change_PND.to(last.x_ND.dtype), self._first)
        self._rest = self._chosen(fresh, rest_PND.to(last.x_ND.dtype), self._rest)
        return last

    def _sum(self, stream: ResidualStream, own: Tensor | None = None) -> Tensor:
        """Return a copy of the rows of latents in fp32 [P, N, D]; a copy, because blocks overwrite the stream."""

        def each(x_ND: Tensor) -> Tensor:
            rows_ND = x_ND if own is None else x_ND[own]
            return rows_ND.view(self._images, -1, rows_ND.shape[-1]).to(torch.float32, copy=True)

        if stream.y_ND is None:
            return each(stream.x_ND)
        gate = 1.0 if stream.gate_RD is None else stream.gate_RD[:, None].float()
        return each(stream.x_ND).add_(each(stream.y_ND).mul_(gate))

    def _changed(self, change_PND: Tensor) -> list[bool]:
        """Return for each image whether its first block's contribution changed by at least the threshold.

        This is the only place where the host waits for the device.
        """
        if self._first is None:
            return [True] * self._images
        then_PND = self._first.float()
        changes_P = (change_PND - then_PND).abs().mean((1, 2)) / then_PND.abs().mean((1, 2))
        fresh: list[bool] = (~(changes_P < self._cache.threshold)).tolist()
        return fresh

    def _again(self, after_PND: Tensor, like: ResidualStream) -> ResidualStream:
        """Return the input of the denoiser's last norm after a skipped pass: its rows plus the cached contribution."""
        assert self._rest is not None
        gate_PD = None if like.gate_RD is None else torch.ones_like(like.gate_RD)
        return ResidualStream(after_PND.to(like.x_ND.dtype).flatten(0, 1), self._rest.flatten(0, 1), gate_PD)

    def _chosen(self, fresh: Sequence[bool], new: Tensor | None, old: Tensor | None) -> Any:
        """Return the new rows of the images that ran completely and the cached rows of the others.

        Without cached rows, or if all images ran completely, the result is `new`.
        """
        if new is None or old is None or all(fresh):
            return new
        chosen = torch.tensor(fresh, device=new.device)
        rows = chosen.repeat_interleave(len(new) // self._images)
        return torch.where(rows.view(-1, *[1] * (new.dim() - 1)), new, old)
