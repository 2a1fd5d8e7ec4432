"""A single padded text, the input of the text encoders of diffusion pipelines."""

from collections.abc import Iterable

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.torch_attention import attend_segment
from ridgeline.core.ops.work import (
    CAUSAL,
    FULL,
    LOGITS,
    TOKENS,
    AttentionPattern,
    AttentionSum,
    AttentionWork,
    StepSegment,
    Work,
)


class PaddedText(Uncached):
    """A KVContext without a cache for one padded text, as in references that mask padding but read its states.

    Tokens attend as the op's mask defines. Padding attends to all of the text, but neither tokens nor padding attend to
    padding.
    """

    def __init__(self, text: int, rows: int) -> None:
        """Create the KV context of one padded text.

        Args:
            text: The number of rows before the padding.
            rows: The number of all rows.
        """
        assert 0 < text <= rows
        super().__init__([StepSegment(rows, rows)])
        self.text = text

    @override
    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Attend tokens causally to the text, and padding to the whole text; the op must be purely causal."""
        assert op.attention_pattern.kind == "causal", "padding is supported only for causal attention"
        assert k_NKD is not None, "no keys are cached from an earlier step"
        assert v_NKW is not None, "padding of latents is not supported"
        if q_THD.is_meta or self.text == len(q_THD):
            return super().attend(op, q_THD, k_NKD, v_NKW)
        k_KLD, v_KLW = k_NKD[: self.text].transpose(0, 1), v_NKW[: self.text].transpose(0, 1)
        own_THW = attend_segment(op, q_THD[: self.text], k_KLD, v_KLW)
        padding_THW = attend_segment(op, q_THD[self.text :], k_KLD, v_KLW, reach=FULL)
        return torch.cat([own_THW, padding_THW])


def padded_work(reaches: Iterable[AttentionPattern], text: int, rows: int) -> Work:
    """Return the size of a step (its rows and attention) over one padded text, all of whose states are needed.

    It covers what `PaddedText` runs, or `Uncached` if there is no padding.

    Args:
        reaches: The attention patterns of the model's layers.
        text: The number of tokens.
        rows: The number of rows, padding included.
    """
    if text == rows:
        return Work.of([StepSegment(rows, rows)], reaches, rows)
    assert set(reaches) == {CAUSAL}, "padding is supported only for causal attention"
    padding = rows - text
    parts = (StepSegment(text, text).attention(CAUSAL), AttentionSum(1, padding, padding * text, text, padding))
    return Work({TOKENS: rows, LOGITS: rows}, 1, {CAUSAL: AttentionWork.of(parts)})
