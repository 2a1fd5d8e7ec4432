"""The step cache: where a pass begins as an earlier one did, most of it is not run again, but taken from there.

It is the first-block cache (https://github.com/chengzeyi/ParaAttention, "First Block Cache"; `FirstBlockCacheConfig` of
diffusers), which has it from TeaCache (arXiv:2411.19108). The first block runs at each noise level. What it adds to the
rows of latents is compared with what it added in the last pass that ran whole:

    mean |now - then| / mean |then| < threshold

Where it is, all that the other blocks added then is added again; nothing is summed up from pass to pass, because the
comparison is with the last whole pass, not with the last one. It changes what is drawn.

Shapes: P pictures, N rows of latents of each, D hidden.
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
    """Raises ValueError for one that is no number, or negative."""
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"step cache {threshold}: give the change below which blocks are skipped, 0 or more, as 0.1")


class StepCache:
    """A cache for pictures that are drawn side by side.

    skipped: passes that ran the first block alone since `take` was last asked. A call of the denoiser counts as a pass
    for each picture in it, and where both passes of guidance are in it as two.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold, self.skipped = threshold, 0

    def take(self, pair: CFGParallelPair | None) -> int:
        """The passes skipped since they were last asked for, those of the other process too."""
        skipped, self.skipped = self.skipped, 0
        return skipped if pair is None else int(sum(pair.exchange(torch.tensor(skipped))))

    def walk(self, pictures: int) -> BlockRunner:
        """The walk of one sort of passes, each over so many pictures: those with the prompt, those with the negative
        prompt, or calls that have both. From one to the next only latents and noise level change.
        """
        return _CachedBlockRunner(self, pictures)


class _CachedBlockRunner:
    """The walk that skips. It keeps what each picture's last whole pass added to the rows of latents: `first` its first
    block, `rest` all others, each [P, N, D].
    """

    def __init__(self, cache: StepCache, pictures: int) -> None:
        self._cache, self._pictures = cache, pictures
        self._first: Tensor | None = None
        self._rest: Tensor | None = None

    def __call__(self, entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
        """As Walk.

        Each picture is judged alone, so that it is the same whatever is drawn beside it. Where one of a call is to be
        run whole, all are, and the others still take what was kept: a call has several pictures where further rows cost
        next to nothing (`batching.py`).
        """
        before_PND = self._sum(entered, own)
        stream = first(entered)
        after_PND = self._sum(stream, own)
        change_PND = after_PND - before_PND
        fresh = self._changed(change_PND)
        if not any(fresh):
            self._cache.skipped += self._pictures
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
        """The rows of latents as they stand, fp32 [P, N, D]: apart from the stream's, which blocks write over."""

        def each(x_ND: Tensor) -> Tensor:
            rows_ND = x_ND if own is None else x_ND[own]
            return rows_ND.view(self._pictures, -1, rows_ND.shape[-1]).to(torch.float32, copy=True)

        if stream.y_ND is None:
            return each(stream.x_ND)
        gate = 1.0 if stream.gate_RD is None else stream.gate_RD[:, None].float()
        return each(stream.x_ND).add_(each(stream.y_ND).mul_(gate))

    def _changed(self, change_PND: Tensor) -> list[bool]:
        """Of each picture, whether its first block adds something else than it did. The one place where the host waits
        for the device.
        """
        if self._first is None:
            return [True] * self._pictures
        then_PND = self._first.float()
        changes_P = (change_PND - then_PND).abs().mean((1, 2)) / then_PND.abs().mean((1, 2))
        fresh: list[bool] = (~(changes_P < self._cache.threshold)).tolist()
        return fresh

    def _again(self, after_PND: Tensor, like: ResidualStream) -> ResidualStream:
        """What the last norm is given where only the first block was run: its rows, and what the others had added."""
        assert self._rest is not None
        gate_PD = None if like.gate_RD is None else torch.ones_like(like.gate_RD)
        return ResidualStream(after_PND.to(like.x_ND.dtype).flatten(0, 1), self._rest.flatten(0, 1), gate_PD)

    def _chosen(self, fresh: Sequence[bool], new: Tensor | None, old: Tensor | None) -> Any:
        """Of each picture the new rows where it is fresh, else the old ones; whole where there is nothing to choose."""
        if new is None or old is None or all(fresh):
            return new
        chosen = torch.tensor(fresh, device=new.device)
        rows = chosen.repeat_interleave(len(new) // self._pictures)
        return torch.where(rows.view(-1, *[1] * (new.dim() - 1)), new, old)
