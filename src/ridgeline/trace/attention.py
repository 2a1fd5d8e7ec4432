"""Whom a token looked at: the weights of one query in every layer and head.

Shapes: Q queries, L keys, H heads, K kv heads, G = H / K, D head dim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.ops.attention import Attention, causal_mask
from ridgeline.trace.capture import CapturedCall


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """weights[layer][head][position]: what share of its attention the token at `position` gave to each one up to
    itself; those of a head sum to 1."""

    position: int
    weights: tuple[tuple[tuple[float, ...], ...], ...]

    def top(self, layer: int, head: int, count: int) -> list[tuple[int, float]]:
        """The positions with the largest weights, largest first."""
        weights = self.weights[layer][head]
        return sorted(enumerate(weights), key=lambda item: -item[1])[:count]

    def mean(self, layer: int) -> list[float]:
        """The weights of a layer, averaged over its heads."""
        heads = self.weights[layer]
        return [sum(column) / len(heads) for column in zip(*heads, strict=True)]


def attention_weights(q_QHD: Tensor, k_LKD: Tensor, window: int | None) -> Tensor:
    """softmax(q k^T / sqrt(D)) of the last Q of L positions under the causal mask, in fp32: [H, Q, L]."""
    queries, heads, dim = q_QHD.shape
    keys, kv_heads, _ = k_LKD.shape
    q_KGQD = q_QHD.float().permute(1, 0, 2).reshape(kv_heads, heads // kv_heads, queries, dim)
    scores_KGQL = q_KGQD @ k_LKD.float().permute(1, 2, 0)[:, None] / math.sqrt(dim)
    hidden = ~causal_mask(queries, keys, window, q_QHD.device)
    return scores_KGQL.masked_fill(hidden, float("-inf")).softmax(-1).reshape(heads, queries, keys)


def attention_at(calls: Sequence[CapturedCall], position: int) -> AttentionWeights:
    """The weights of the query at `position`, from the attention ops of a pass over the whole sequence."""
    layers = []
    for call in calls:
        assert isinstance(call.op, Attention)
        q_THD, k_TKD = call.inputs[0], call.inputs[1]
        with torch.inference_mode():
            weights_H1L = attention_weights(q_THD[position : position + 1], k_TKD[: position + 1], call.op.spec.window)
        layers.append(tuple(tuple(head) for head in weights_H1L[:, 0].tolist()))
    return AttentionWeights(position, tuple(layers))
