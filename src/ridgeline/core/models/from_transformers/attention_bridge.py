"""The bridge from the attention of a transformers class to our `Attention` ops.

A class hands the queries, keys and values of each layer to the function that its config names, if its code calls
transformers' `AttentionInterface`. The bridge registers such a function. While a class is traced on the meta device,
the bridge notes each call; `attach` then makes an op for each. Calls are told apart by their order in a forward pass,
because some layers attend several times, and some modules are called by several layers.

Shapes: T rows of a step, H heads, K kv heads, D head dim, W width of a value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.mask_patterns import PatternMask, pattern_mask
from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.work import FULL, AttentionPattern

IMPLEMENTATION = "ridgeline"
"""The name of our attention among transformers' attention implementations."""

# Arguments that change nothing in a forward pass without dropout, or that the mask already states.
_WITHOUT_EFFECT = frozenset(
    ("dropout", "sliding_window", "is_causal", "position_ids", "cache_position", "layer_idx", "use_cache")
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of the attention of a class, as it was traced."""

    module: nn.Module
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    pattern: AttentionPattern
    scale: float | None
    softcap: float | None


class AttentionBridge:
    """The attention ops of one model, in the order in which the class calls attention."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []
        self._ops: list[Attention] = []
        self._kv: KVContext | None = None
        self._next = 0

    @contextmanager
    def forward(self, kv: KVContext | None) -> Iterator[None]:
        """Give the attention calls of one forward pass a KV context; None only notes the calls."""
        self._kv, self._next = kv, 0
        if kv is None:
            self.calls.clear()
        try:
            yield
        finally:
            self._kv = None

    def attach(self, storage: StorageConfig) -> list[KVSpec]:
        """Make an op for each noted call, as a submodule of the calling module, and return the ops' cache formats."""
        for layer, call in enumerate(self.calls):
            spec = KVSpec(call.kv_heads, call.k_dim, call.v_dim, call.pattern, storage.dtype, storage.kv)
            op = Attention(layer, call.heads, spec, scale=call.scale, softcap=call.softcap)
            _add_child(call.module, op)
            self._ops.append(op)
        return [op.spec for op in self._ops]

    def attend(
        self, module: nn.Module, q_1HTD: Tensor, k_1KTD: Tensor, v_1KTW: Tensor, mask: Any, **others: Any
    ) -> Tensor:
        """Return the attention of one call, [1, T, H, W]; on a pass without KV context note the call."""
        if self._kv is None:
            self.calls.append(_read_call(module, q_1HTD, k_1KTD, v_1KTW, mask, **others))
            return q_1HTD.new_empty(1, q_1HTD.shape[2], q_1HTD.shape[1], v_1KTW.shape[3])
        op = self._ops[self._next]
        self._next += 1
        sinks_H = others.get("s_aux")
        if sinks_H is not None:  # the class owns and loads this parameter, so it is no parameter of the op
            op.__dict__["sinks_H"] = sinks_H.to(op.dtype)  # some classes keep it in fp32
        q_THD, k_TKD, v_TKW = (_rows(x, op.dtype) for x in (q_1HTD, k_1KTD, v_1KTW))
        return op(q_THD, k_TKD, v_TKW, self._kv).view(1, len(q_THD), op.heads, op.value_dim).to(q_1HTD.dtype)


def _rows(x_1HTD: Tensor, dtype: torch.dtype) -> Tensor:
    """Return queries, keys or values row by row, [T, H, D], in a dtype."""
    return x_1HTD[0].transpose(0, 1).to(dtype).contiguous()


def _add_child(module: nn.Module, op: Attention) -> None:
    """Add an attention op to the module that calls it, as `attend`, or `attend_1` and so on for further calls."""
    number = 0
    while hasattr(module, name := f"attend_{number}" if number else "attend"):
        number += 1
    module.add_module(name, op)


def _read_call(
    module: nn.Module,
    q_1HTD: Tensor,
    k_1KTD: Tensor,
    v_1KTW: Tensor,
    mask: PatternMask | Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> AttentionCall:
    """Return an attention call, or raise NotBridged if its arguments ask for what the op does not compute."""
    unknown = [name for name, value in others.items() if name not in _WITHOUT_EFFECT and _has_effect(value)]
    if unknown:
        raise NotBridged(f"it calls attention with {', '.join(unknown)}, which the engine does not compute")
    if mask is not None and not isinstance(mask, PatternMask):
        raise NotBridged("it makes attention masks by code of its own")
    _, heads, rows, k_dim = q_1HTD.shape
    _, kv_heads, keys, v_dim = v_1KTW.shape
    if k_1KTD.shape != (1, kv_heads, rows, k_dim) or keys != rows or heads % kv_heads:
        raise NotBridged("its attention has other keys than those of a step's positions")
    pattern = FULL if mask is None else mask.pattern  # as in transformers' eager attention
    if pattern is None:
        raise NotBridged("its attention has a mask other than causal, sliding-window, chunked or full")
    scale = None if scaling is None else float(scaling)
    return AttentionCall(module, heads, kv_heads, k_dim, v_dim, pattern, scale, softcap)


def _has_effect(value: Any) -> bool:
    """Return whether the value of an unknown argument may have an effect."""
    return value is not None and value is not False


def register_attention() -> None:
    """Register our attention and its masks in transformers' tables, the only place where a class looks for them.

    Both functions are without state: the modules of a model hold its bridge (`bind_bridge`). Registering them again
    changes nothing.
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, pattern_mask)


def bind_bridge(model: nn.Module, bridge: AttentionBridge) -> None:
    """Make the modules of a class find a bridge when they call our attention."""
    for module in model.modules():
        module.__dict__["attention_bridge"] = bridge


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *positional: Any, **others: Any
) -> tuple[Tensor, None]:
    """Attend by the bridge of a class, as an implementation of transformers' attention."""
    names = ("scaling", "dropout")
    bridge = module.__dict__["attention_bridge"]
    return bridge.attend(
        module, query, key, value, attention_mask, **dict(zip(names, positional, strict=False)), **others
    ), None
