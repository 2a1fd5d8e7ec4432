"""The attention weights of one query token in every layer and head.

Shapes: L keys, H heads, K kv heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.models.common.parameter_breakdown import layer_of
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.torch_attention import attention_weights, visible
from ridgeline.insight.trace.capture import CapturedCall


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """The attention weights of the token at `position` in all layers with attention."""

    position: int
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    """The weight of position p as `weights[i][head][p]`, in the i-th layer with attention.

    The weights of each head sum to 1, or to less if the model has attention sinks.
    """
    layers: tuple[int, ...]
    """The layer number of each entry of `weights`."""

    def top(self, index: int, head: int, count: int) -> list[tuple[int, float]]:
        """Return the `count` positions with the largest attention weights of a head, largest first.

        Args:
            index: The index of the layer in `weights`.
            head: The head.
            count: The number of positions.
        """
        weights = self.weights[index][head]
        return sorted(enumerate(weights), key=lambda item: -item[1])[:count]

    def mean(self, index: int) -> list[float]:
        """Return the attention weight of each position in layer `weights[index]`, averaged over its heads."""
        heads = self.weights[index]
        return [sum(column) / len(heads) for column in zip(*heads, strict=True)]


def query_weights(op: Attention, q_HD: Tensor, k_LKD: Tensor) -> Tensor:
    """Return the attention weights of the last of L positions over all positions, in fp32: [H, L]."""
    keys, groups = len(k_LKD), q_HD.shape[0] // k_LKD.shape[1]
    k_HLD = k_LKD.float().transpose(0, 1).repeat_interleave(groups, 0)
    scores_HL = (k_HLD @ q_HD.float()[:, :, None])[:, :, 0] * op.scale
    distance_L = torch.arange(1 - keys, 1)
    return attention_weights(
        op, scores_HL, distance_L, visible(op.attention_pattern, distance_L[-1:] + keys - 1, distance_L + keys - 1)
    )


def attention_at(calls: Sequence[CapturedCall[Attention]], position: int) -> AttentionWeights:
    """Return the attention weights of the query at `position`, from the attention calls of a full forward pass."""
    weights, layers = [], []
    for call in calls:
        with torch.inference_mode():
            q_THD, k_TKD = call.op.scored_queries_and_keys(call.inputs)
            weights_HL = query_weights(call.op, q_THD[position], k_TKD[: position + 1])
        weights.append(tuple(tuple(head) for head in weights_HL.tolist()))
        layers.append(layer_of(call.path) or 0)
    return AttentionWeights(position, tuple(weights), tuple(layers))
