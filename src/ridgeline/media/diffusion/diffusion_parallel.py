"""Parallelism: one request on several GPUs, divided by guidance pass and by the sequence of tokens.

CFG-parallel: each half of the GPUs runs one guidance pass of a step, and they exchange their predictions. Ulysses
(Jacobs et al., arXiv:2309.14509): each GPU has an equal, padded share of the rows and all weights; around attention the
GPUs exchange rows for heads, so that each computes some heads over all rows. Neither changes the result.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from ridgeline.core.models.common.denoiser import CONDITIONS, TEXT
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import AttentionPattern, AttentionSum, AttentionWork, Work
from ridgeline.price.price import Price


@dataclass(frozen=True, slots=True)
class ParallelDegrees:
    """The degrees of parallelism of a diffusion request: by guidance pass and by sequence."""

    guidance: int = 1
    """The number of GPU groups that share the guidance passes: 2 if both run on different GPUs, else 1."""
    sequence: int = 1
    """The number of parts into which the rows of a pass are divided."""

    @property
    def gpus(self) -> int:
        """The number of GPUs for these degrees of parallelism."""
        return self.guidance * self.sequence

    @override
    def __str__(self) -> str:
        parts = ["guidance 2"] * (self.guidance > 1) + [f"sequence {self.sequence}"] * (self.sequence > 1)
        return " x ".join(parts) or "undivided"


WHOLE = ParallelDegrees()


def divisions(gpus: int, texts: int, heads: int) -> list[ParallelDegrees]:
    """Return the ways to divide a request among GPUs.

    Args:
        gpus: Number of GPUs.
        texts: Passes per step.
        heads: Heads of the denoiser's attention; each part of a sequence needs at least one.
    """
    found = [ParallelDegrees(1, gpus)]
    if texts == 2 and gpus % 2 == 0:
        found.insert(0, ParallelDegrees(2, gpus // 2))
    return [each for each in found if each.sequence <= heads]


class ParallelPass:
    """The share of one GPU in a denoiser pass that is divided by sequence."""

    def __init__(self, price: Price, parts: int) -> None:
        self._parts = parts
        self._attention = [
            (priced.op, priced.count)
            for priced in price.ops
            if isinstance(priced.op, Attention) and priced.op.attention_pattern.kind == "full"
        ]
        self._texts_are_whole = any(reach.kind == "cross" for reach in price.reaches)

    @property
    def heads(self) -> int:
        """The number of attention heads that GPUs can divide: the minimum over the ops that attend over all rows."""
        return min(op.heads for op, _ in self._attention)

    def of(self, work: Work) -> Work:
        """Return one GPU's share of a denoiser pass over one image: its own rows, and some heads over all rows.

        A text that is only attended to (cross-attention) is complete on every GPU.
        """
        if self._parts == 1:
            return work
        assert work.sequences == 1, "sequence parallelism divides one sequence, not a batch"
        whole = {CONDITIONS, TEXT} if self._texts_are_whole else {CONDITIONS}
        rows = {s: count if s in whole else math.ceil(count / self._parts) for s, count in work.rows.items()}
        return Work(rows, 1, {reach: self._part(reach, each) for reach, each in work.attention.items()})

    def _part(self, reach: AttentionPattern, attention: AttentionWork) -> AttentionWork:
        """Return the attention work of one GPU in a denoiser pass divided by sequence.

        For attention over all rows, the GPU computes its own heads over all rows. This is as much work as its own rows
        for all heads and is stated in that form. If the heads do not divide evenly, the share is that of the GPU with
        the most heads. For cross-attention, the GPU computes all heads for its own rows.
        """
        whole = attention.total
        own = math.ceil(whole.queries / self._parts)
        if reach.kind == "cross":
            return AttentionWork.of([AttentionSum(1, own, own * whole.keys, whole.keys, whole.written)])
        padded, heads = own * self._parts, self.heads
        share = math.ceil(heads / self._parts) / heads
        return AttentionWork.of([AttentionSum(1, own, math.ceil(padded**2 * share), own, own)])

    def messages(self, work: Work) -> list[Cost]:
        """Return the messages between GPUs in a pass of which `work` is one GPU's share.

        They are the queries, keys and values before attention over all rows, and its results after it.
        """
        if self._parts == 1:
            return []
        found: list[Cost] = []
        for op, count in self._attention:
            rows = work.attention[op.attention_pattern].total.queries
            if not rows:  # attention over texts alone runs once per request, not in a pass
                continue
            widths = (op.heads * op.spec.k_dim, *(op.spec.heads * n for n in (op.spec.k_dim, op.spec.v_dim)))
            for width in (*widths, op.heads * op.value_dim):
                message = Cost(communication={"all_to_all": float(rows * width * op.spec.dtype.itemsize)})
                found += [message] * count
        return found


def exchange(latents: Sequence[int]) -> Cost:
    """Return the cost of exchanging the predictions of both guidance passes between two groups of GPUs.

    After it all GPUs perform the same step. `latents` is the shape of one image's latents; predictions are in fp32.
    """
    return Cost(communication={"all_gather": float(2 * 4 * math.prod(latents))})


def heads_of(price: Price) -> int:
    """Return the number of heads with which a denoiser attends over all its rows; the minimum over several ops."""
    return ParallelPass(price, 1).heads


def message_bytes(costs: Iterable[Cost]) -> float:
    """Return the total bytes of messages between GPUs; each message counts with the bytes that a GPU has after it."""
    return sum(cost.communication_bytes for cost in costs)
