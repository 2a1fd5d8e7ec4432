"""The memory from which the layers of a forward pass read earlier keys, values and states: pages, or none.

The paged context is in paged_attention.py.

Shapes: T rows of a step, N rows of keys, H heads, K kv heads, D head dim, W width of a value, E entries of a latent.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from ridgeline.core.ops.attention import Attention, AttentionContext
from ridgeline.core.ops.latent_attention import LatentAttention, LatentContext
from ridgeline.core.ops.recurrence import Recurrence, RecurrenceContext
from ridgeline.core.ops.torch_attention import attend_each
from ridgeline.core.ops.work import ENCODER, MAX_VERIFY_TOKENS, TOKENS, AttentionWork, RowAxis, StepSegment


class KVContext(AttentionContext, LatentContext, RecurrenceContext, Protocol):
    """The interface through which a forward pass stores and reads keys, values and states."""


class Uncached:
    """A KVContext without a cache: every segment is a whole sequence, which attends only to itself.

    Attributes:
        segments: The sequences.
        lengths: The number of rows of each sequence, by row axis; the rows of a sequence are consecutive.
    """

    def __init__(
        self, segments: Sequence[StepSegment], lengths: Mapping[RowAxis, Sequence[int]] = MappingProxyType({})
    ) -> None:
        """Create the KV context of a step without a cache.

        Args:
            segments: The sequences, each of which runs whole.
            lengths: The sequence lengths on further row axes, such as a denoiser's.

        Raises:
            ValueError: If a segment does not run all positions of its sequence.
        """
        if any(s.q_len != s.kv_len for s in segments):
            raise ValueError("without a cache every position of a sequence must run; give segments with q_len = kv_len")
        self.segments = segments
        own, encoded = [s.q_len for s in segments], [s.encoder_len for s in segments]
        self.lengths: Mapping[RowAxis, Sequence[int]] = {TOKENS: own, ENCODER: encoded, **lengths}

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Attend each sequence to itself, or to its encoder positions in cross-attention; nothing is stored."""
        assert k_NKD is not None, "no keys are cached from an earlier step"
        reach = op.attention_pattern
        seen = reach.key_axis if reach.kind == "cross" else reach.query_axis
        return attend_each(op, q_THD, k_NKD, v_NKW, self.lengths[reach.query_axis], self.lengths[seen])

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Attend each sequence to its own latents, which are expanded to keys and values if that needs fewer FLOPs."""
        if q_THD.is_meta:
            return q_THD.new_empty(*q_THD.shape[:2], op.sizes.value)
        one, few, many = op.expanded(AttentionWork.of(s.attention(op.attention_pattern) for s in self.segments))
        lengths = list(self.lengths[op.attention_pattern.query_axis])
        return torch.cat(
            [
                op.over_segment(
                    q, kept.transpose(0, 1), 0, expanded=one if n == 1 else few if n <= MAX_VERIFY_TOKENS else many
                )
                for n, q, kept in zip(lengths, torch.split(q_THD, lengths), torch.split(kept_T1E, lengths), strict=True)
            ]
        )

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run a recurrent op over each sequence from a state of zeros, and discard the final states."""
        zeros_1N = inputs[0].new_zeros(1, op.spec.numbers, dtype=op.spec.dtype)
        each = zip(*(torch.split(x, list(self.lengths[TOKENS])) for x in inputs), strict=True)
        return torch.cat([op.advance(zeros_1N, *(x[None] for x in own))[0][0] for own in each])
