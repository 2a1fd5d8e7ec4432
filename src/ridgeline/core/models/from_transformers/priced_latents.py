"""The latent attention of a class that the engine cannot run: our ops attend in the place of the class's own code.

Such a class runs with its own cache and its own attention while it is traced. That code expands the latents of all
positions in every step, which engines do not do.

Shapes: T rows of a step, H heads, D head dim, C latent, R rotated part of a key, E = C + R, W width of a value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

from torch import Tensor, nn

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_latents import (
    LatentCall,
    kept_rows,
    latent_cache_of,
    latent_of,
    latent_op,
)
from ridgeline.core.ops.kv_layout import CacheSpec, KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.work import CAUSAL, AttentionPattern


class _MetaLatents:
    """The KV context of latent attention on the meta device, where nothing is stored."""

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Return a tensor in the shape of the result, [T, H, W]."""
        return q_THD.new_empty(*q_THD.shape[:2], op.sizes.value)


class PricedLatents:
    """The attention modules of a class that have latents, and the ops that attend for them in a price."""

    def __init__(self, model: nn.Module, storage: StorageConfig, seen: int | None) -> None:
        """Find nothing yet; the passes of a class inside `attending` find its latents.

        Args:
            model: The model of the class.
            storage: The dtype and the KV format.
            seen: The number of keys that an index chooses for each query; None if queries see all keys.
        """
        self._model, self._storage, self._seen = model, storage, seen
        self._calls: dict[nn.Module, tuple[int, LatentCall]] = {}
        self._ops: dict[nn.Module, LatentAttention] = {}

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Attend by our ops while the context is open, where the class attends to keys and values of latents.

        transformers looks up attention functions in one table. "eager" means the function in a class's own file unless
        the table has one of this name.
        """
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        if all(latent_cache_of(module) is None for module in self._model.modules()):
            yield
            return
        ALL_ATTENTION_FUNCTIONS["eager"] = self._attend
        try:
            yield
        finally:
            ALL_ATTENTION_FUNCTIONS.pop("eager")

    def _attend(
        self, module: nn.Module, q_1HTD: Tensor, k_1HLD: Tensor, v_1HLW: Tensor, *others: Any, **more: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as an implementation of transformers' attention, which a module calls."""
        op = self._ops.get(module)
        if op is not None:
            q_THD = q_1HTD[0].transpose(0, 1)
            return op(q_THD, *kept_rows(module), _MetaLatents(), None).view(1, len(q_THD), op.heads, -1), None
        latent = latent_of(module, q_1HTD, k_1HLD, v_1HLW)
        if latent is not None:
            self._calls[module] = q_1HTD.shape[1], latent
        own = unwrap(type(module).forward).__globals__["eager_attention_forward"]
        attended: tuple[Tensor, Tensor | None] = own(module, q_1HTD, k_1HLD, v_1HLW, *others, **more)
        return attended

    def attach(self, layers: list[list[CacheSpec]]) -> list[LatentAttention]:
        """Make the op of each attention module with latents, and put its format in the place of the class's pair.

        Args:
            layers: The formats of what each layer of the class's cache keeps.
        """
        for module, (heads, call) in self._calls.items():
            cache = latent_cache_of(module)
            assert cache is not None
            own = layers[cache.layer]
            pairs = (index for index, spec in enumerate(own) if isinstance(spec, KVSpec) and _is_pair(spec, call))
            index = next(pairs, None)
            if index is not None:
                op = latent_op(0, heads, call, module, own[index].reach, None, self._storage)
                if self._seen is not None and op.attention_pattern == CAUSAL:
                    op.attention_pattern = AttentionPattern("window", self._seen)  # as many keys, wherever they are
                own[index], self._ops[module] = op.spec, op
                module.add_module("attend", op)
        return list(self._ops.values())


def _is_pair(spec: KVSpec, call: LatentCall) -> bool:
    """Return whether a format is that of a call's latent and the rotated part of its key."""
    return spec.heads == 1 and {spec.k_dim, spec.v_dim} == {call.sizes.latent, call.sizes.rotary}
