"""The cross-attention weights of an encoder-decoder's output tokens over its encoder input.

Shapes: T positions of the decoder, E rows of the encoder, H heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import call_hooks
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.torch_attention import attention_weights
from ridgeline.core.ops.work import StepSegment
from ridgeline.insight.trace.token_candidates import Token


@dataclass(frozen=True, slots=True)
class CrossAttentionWeights:
    """The cross-attention weights of generated tokens over input tokens."""

    sources: tuple[Token, ...]
    """The input tokens of the encoder, which are the columns of the weights."""
    produced: tuple[Token, ...]
    """The generated tokens, which are the rows of the weights."""
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    """`weights[layer][row][column]`, averaged over heads; each row sums to 1."""
    heads: int
    """The number of attention heads of each layer."""


@torch.inference_mode()
def cross_attention(
    model: Model, encoder: Sequence[int], begun: Sequence[int], sources: Sequence[Token], produced: Sequence[Token]
) -> CrossAttentionWeights:
    """Run encoder and decoder once, without a KV cache, and return the cross-attention weights of generated tokens.

    Args:
        model: The encoder-decoder.
        encoder: The token ids that the encoder reads.
        begun: The token ids that the decoder starts with, before the first generated token.
        sources: The tokens of the encoder input.
        produced: The generated tokens.
    """
    ids = [*begun, *(token.id for token in produced[:-1])]
    kept: list[Tensor] = []

    def keep(_: str, op: Attention, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        kept.append(cross_weights(op, inputs[0], inputs[1])[len(begun) - 1 :])

    ops = [(path, op) for path, op in model.ops_of(Attention) if op.attention_pattern.kind == "cross"]
    kv = Uncached([StepSegment(len(ids), len(ids), len(encoder), runs_encoder=True)])
    with call_hooks(ops, keep):
        encoded_ED = model.encode(torch.tensor(encoder), torch.arange(len(encoder)), kv)
        model.hidden(torch.tensor(ids), torch.arange(len(ids)), kv, torch.arange(1), encoded_ED)
    weights = tuple(tuple(tuple(row) for row in mean_TE.tolist()) for mean_TE in kept)
    return CrossAttentionWeights(tuple(sources), tuple(produced), weights, ops[0][1].heads)


def cross_weights(op: Attention, q_THD: Tensor, k_EHD: Tensor) -> Tensor:
    """Return the attention weights of each query over all keys without a mask, in fp32, averaged over heads: [T, E]."""
    scores_HTE = (q_THD.float().transpose(0, 1) @ k_EHD.float().permute(1, 2, 0)) * op.scale
    everything_TE = torch.ones(scores_HTE.shape[1:], dtype=torch.bool)
    weights_HTE: Tensor = attention_weights(op, scores_HTE, everything_TE.long(), everything_TE)
    return weights_HTE.mean(0)
