"""The bridge from the attention of a transformers class to our `Attention` ops.

A class hands the queries, keys and values of each layer to the function that its config names, if its code calls
transformers' `AttentionInterface`. The bridge registers such a function. While a class is traced on the meta device,
the bridge notes each call; `attach` then makes an op for each. Calls are told apart by their order in a forward pass,
because some layers attend several times, and some modules are called by several layers.

Shapes: T rows of a step, H heads, K kv heads, D head dim, W width of a value.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_latents import LatentCall, kept_rows, latent_of, latent_op
from ridgeline.core.models.from_transformers.mask_patterns import PatternMask, pattern_mask
from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.work import FULL, AttentionPattern

IMPLEMENTATION = "ridgeline"
"""The name of our attention among transformers' attention implementations."""

# Arguments that change nothing in a forward pass without dropout, or that the mask already states.
_WITHOUT_EFFECT = frozenset(
    ("dropout", "sliding_window", "is_causal", "position_ids", "cache_position", "layer_idx", "use_cache")
)


class SharedAttention(Attention):
    """Attention to keys and values that an earlier layer computed and stored (Gemma 3n).

    It is called with these keys and values, and stores them a second time in the cache of that layer.
    """

    @property
    @override
    def cache_spec(self) -> None:
        return None


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
    sinks: bool
    given: tuple[Tensor, Tensor]
    """The keys and values on the meta device; another call that is given the same ones may share their cache."""
    latent: LatentCall | None = None
    """The latent from which the module computes keys and values; None if it keeps these themselves."""

    def shares(self, earlier: "AttentionCall") -> bool:
        """Return whether the call can read the cache of an earlier one: it is given the same, and sees as many keys."""
        same = all(own is other for own, other in zip(self.given, earlier.given, strict=True))
        return same and self.pattern == earlier.pattern and earlier.latent is None


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
        uses = Counter(call.module for call in self.calls)
        kept = list[AttentionCall]()  # the first call of each cache
        for call in self.calls:
            earlier = next((layer for layer, other in enumerate(kept) if call.shares(other)), None)
            if earlier is None:
                op = _op_of(len(kept), call, storage, alone=uses[call.module] == 1)
                kept.append(call)
            else:
                op = _plain_op(SharedAttention, earlier, call, storage)
            _add_child(call.module, op)
            self._ops.append(op)
        return [op.cache_spec for op in self._ops if op.cache_spec is not None]

    def attend(
        self, module: nn.Module, q_1HTD: Tensor, k_1KTD: Tensor, v_1KTW: Tensor, mask: Any, **others: Any
    ) -> Tensor:
        """Return the attention of one call, [1, T, H, W]; on a pass without KV context note the call."""
        if self._kv is None:
            call = _read_call(module, q_1HTD, k_1KTD, v_1KTW, mask, **others)
            self.calls.append(replace(call, latent=latent_of(module, q_1HTD, k_1KTD, v_1KTW)))
            return q_1HTD.new_empty(1, q_1HTD.shape[2], q_1HTD.shape[1], v_1KTW.shape[3])
        op = self._ops[self._next]
        self._next += 1
        sinks_H = others.get("s_aux")
        if sinks_H is not None:  # the class owns and loads this parameter, so it is no parameter of the op
            op.__dict__["sinks_H"] = sinks_H.to(op.dtype)  # some classes keep it in fp32
        q_THD = _rows(q_1HTD, op.dtype)
        if isinstance(op, LatentAttention):
            latent_TC, turned_TR = (x.to(op.dtype).contiguous() for x in kept_rows(module))
            out_TO = op(q_THD, latent_TC, turned_TR, self._kv, None)  # the class has rotated them
        else:
            out_TO = op(q_THD, _rows(k_1KTD, op.dtype), _rows(v_1KTW, op.dtype), self._kv)
        return out_TO.view(1, len(q_THD), op.heads, -1).to(q_1HTD.dtype)


def _op_of(layer: int, call: AttentionCall, storage: StorageConfig, *, alone: bool) -> Attention:
    """Return the op of a call.

    It keeps latents if the module computes keys from them, one layer alone calls the module, and scores are plain.
    """
    if call.latent is not None and alone and call.softcap is None and not call.sinks:
        return latent_op(layer, call.heads, call.latent, call.module, call.pattern, call.scale, storage)
    return _plain_op(Attention, layer, call, storage)


def _plain_op(kind: type[Attention], layer: int, call: AttentionCall, storage: StorageConfig) -> Attention:
    """Return an op of a class, for a call that attends to keys and values."""
    spec = KVSpec(call.kv_heads, call.k_dim, call.v_dim, call.pattern, storage.dtype, storage.kv)
    return kind(layer, call.heads, spec, scale=call.scale, softcap=call.softcap)


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
    return AttentionCall(
        module, heads, kv_heads, k_dim, v_dim, pattern, scale, softcap, s_aux is not None, (k_1KTD, v_1KTW)
    )


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
