"""The simplest KV cache, for `lab kv-cache`, and a test of whether cached values ever change.

For each attention layer the cache has a tensor of keys and one of values, to which new positions are written.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.kv_layout import CacheSpec, KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.recurrence import Recurrence
from ridgeline.core.ops.torch_attention import attend_segment
from ridgeline.core.ops.work import StepSegment


class KVCache:
    """A KV cache: for each layer the keys and values of all positions so far, or its recurrent state."""

    def __init__(self, specs: Sequence[CacheSpec], most: int) -> None:
        keeping = {layer: spec for layer, spec in enumerate(specs) if isinstance(spec, KVSpec)}
        self.keys = {n: torch.zeros(spec.heads, most, spec.k_dim, dtype=spec.dtype) for n, spec in keeping.items()}
        self.values = {n: torch.zeros(spec.heads, most, spec.v_dim, dtype=spec.dtype) for n, spec in keeping.items()}
        self.states: dict[int, Tensor] = {}
        self.length = 0  # positions stored in every layer

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor | None, v_TKD: Tensor | None) -> Tensor:
        """Append the new keys and values and attend to all stored ones (T rows, H heads, K KV heads, D head dim)."""
        assert k_TKD is not None
        assert v_TKD is not None, "a cache of keys and values"
        end, layer = self.length + len(k_TKD), op.layer
        self.keys[layer][:, self.length : end] = k_TKD.transpose(0, 1)
        self.values[layer][:, self.length : end] = v_TKD.transpose(0, 1)
        return attend_segment(op, q_THD, self.keys[layer][:, :end], self.values[layer][:, :end])

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Append the new latents, which replace keys and values for all heads, and attend to all stored ones."""
        end, layer = self.length + len(kept_T1E), op.layer
        self.keys[layer][:, self.length : end] = kept_T1E.transpose(0, 1)
        return op.over_segment(q_THD, self.keys[layer][:, :end], 0, expanded=False)

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """Advance a recurrent state, which is all zeros before the first position."""
        state_1N = self.states.get(op.layer, torch.zeros(1, op.spec.numbers, dtype=op.spec.dtype))
        out_1TW, self.states[op.layer] = op.advance(state_1N, *(x[None] for x in inputs))
        return out_1TW[0]


class _Noting(Uncached):
    """An attention context that records keys and values in the order of the layers."""

    def __init__(self, length: int) -> None:
        super().__init__([StepSegment(length, length)])
        self.noted: list[Tensor] = []

    @override
    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        self.noted += [x for x in (k_NKD, v_NKW) if x is not None]
        return super().attend(op, q_THD, k_NKD, v_NKW)


@torch.inference_mode()
def changed(model: Model, tokens: Sequence[int]) -> float:
    """Return how much the keys and values of a text's first half change if the rest of the text follows.

    The result is the largest difference relative to the largest value. In fp32 it is only the rounding error of sums in
    another order.
    """
    half, whole = (_Noting(length) for length in (len(tokens) // 2, len(tokens)))
    for context, length in ((half, len(tokens) // 2), (whole, len(tokens))):
        model(torch.tensor(tokens[:length]), torch.arange(length), context, torch.tensor([length - 1]))
    pairs = zip(half.noted, whole.noted, strict=True)
    return max(float((one - other[: len(one)]).abs().max() / other.abs().max()) for one, other in pairs)
