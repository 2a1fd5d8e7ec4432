"""The latents of a transformers class: a few numbers of a token, from which a matrix computes keys and values.

A class with multi-head latent attention (MLA) gives its cache the latent and the rotated part of the key, which all
heads share. It expands what the cache returns to each head's keys and values and attends to these. So an attention
module that is given a cache shows what a release keeps: `LatentCache` notes it while a class is traced. Afterwards our
`LatentAttention` op holds the matrix, and keeps and attends to the latents. The module's own code then expands only one
position, of whose keys and values nothing is used.

Shapes: T rows of a step, H heads, D head dim, C latent, R rotated part of a key, W width of a value, O outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature, unwrap
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_ops import ClassLinear
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention, LatentSizes
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.work import AttentionPattern

_CACHES = "cache", "past_key_values"
"""The names that attention modules have for their cache, as an argument."""


class LatentCache:
    """The cache of one attention module of a class, which holds what the module keeps of a step's rows.

    Attributes:
        inner: The class's own cache, if it runs with one; this cache then returns what that one returns.
        layer: The index of the layer of the class's own cache.
        given: The entries of the rows of the running call, as the module gives them; None before and after.
        returned: The entries that `update` returned last while the class is traced; None before and after.
        op_attends: Whether our op attends for the module, so that `update` returns only the first position.
    """

    def __init__(self) -> None:
        self.inner: Any = None
        self.layer = 0
        self.given: tuple[Tensor, Tensor] | None = None
        self.returned: tuple[Tensor, Tensor] | None = None
        self.op_attends = False
        self._place = 0

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the class's own cache."""
        return getattr(self.__dict__.get("inner"), name)

    def update(
        self, keys_1xTC: Tensor, values_1xTR: Tensor, layer: int, *others: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """Record the entries of a step's rows, and return those that the module expands or attends to."""
        self.given, self.layer = (keys_1xTC, values_1xTR), layer
        if self.inner is not None:
            keys_1xTC, values_1xTR = self.inner.update(keys_1xTC, values_1xTR, layer, *others, **more)
        if self.op_attends:
            return keys_1xTC[:, :, :1], values_1xTR[:, :, :1]
        self.returned = keys_1xTC, values_1xTR
        return self.returned

    def let_op_attend(self, place: int) -> None:
        """Return one position from now on, and keep no rows after a step.

        Args:
            place: The place of the latent among the two tensors; the other is the rotated part of the key.
        """
        self.op_attends, self._place, self.returned = True, place, None

    def take_rows(self) -> tuple[Tensor, Tensor]:
        """Return the latents [T, C] and rotated parts of keys [T, R] of the running call, and forget them."""
        assert self.given is not None, "a module with latents gives them to its cache before it attends"
        latent_TC, turned_TR = (self.given[place][0, 0] for place in (self._place, 1 - self._place))
        self.given = None
        return latent_TC, turned_TR


def latent_cache_of(module: nn.Module) -> LatentCache | None:
    """Return the cache that an attention module has from `noting_latents`; None if it has none."""
    return module.__dict__.get("latent_cache")


@dataclass(frozen=True, slots=True)
class LatentCall:
    """The latent of a traced attention call."""

    sizes: LatentSizes
    matrix: str
    """The name of the module's matrix that expands latents to keys and values."""
    place: int
    """The place of the latent among the two tensors that the module gives its cache."""


class ExpandedElsewhere(nn.Module):
    """The place of a class's matrix that expands latents, which `LatentAttention` holds: its results are not used."""

    def __init__(self, spec: MatrixSpec) -> None:
        super().__init__()
        self.outputs = spec.local_outputs

    @override
    def forward(self, latent_xC: Tensor) -> Tensor:
        """Return numbers of any value in the shape of the products, [..., O]."""
        return latent_xC.new_empty(*latent_xC.shape[:-1], self.outputs)


@contextmanager
def noting_latents(model: Any) -> Iterator[None]:
    """Give each attention module that may have latents a cache; those that have none lose it after the context."""
    hidden = getattr(model.config.get_text_config(), "hidden_size", 0)
    handles = {}
    for module in model.modules():
        if _may_expand(module, hidden) and (argument := _cache_argument(module)) is not None:
            module.__dict__["latent_cache"] = LatentCache()
            handles[module] = module.register_forward_pre_hook(partial(_give_cache, argument), with_kwargs=True)
    try:
        yield
    finally:
        for module, handle in handles.items():
            if not module.__dict__["latent_cache"].op_attends:
                handle.remove()
                del module.__dict__["latent_cache"]


def _cache_argument(module: nn.Module) -> tuple[int, str] | None:
    """Return the place and the name of a module's argument for its cache; None if it takes none."""
    names = list(signature(module.forward).parameters)
    return next(((names.index(name), name) for name in _CACHES if name in names), None)


def _may_expand(module: nn.Module, hidden: int) -> bool:
    """Return whether a module calls attention itself and has a matrix from fewer inputs than the hidden size to more.

    Other modules, such as those with a state, do other things with a cache than `update`.
    """
    specs = [each.matrix.spec for each in module.children() if isinstance(each, ClassLinear)]
    has_low_rank = any(spec.inputs < min(spec.outputs, hidden) for spec in specs)
    return has_low_rank and "ALL_ATTENTION_FUNCTIONS" in unwrap(type(module).forward).__code__.co_names


def _give_cache(
    argument: tuple[int, str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put our cache in the place of the class's own among the arguments of a module's call."""
    (place, name), cache = argument, module.__dict__["latent_cache"]
    if place < len(args):
        cache.inner = args[place]
        return (*args[:place], cache, *args[place + 1 :]), kwargs
    cache.inner = kwargs.get(name)
    return args, {**kwargs, name: cache}


def latent_of(module: nn.Module, q_1HTD: Tensor, k_1HTD: Tensor, v_1HTW: Tensor) -> LatentCall | None:
    """Return the latent from which a module computed the keys and values of a traced call; None if there is none.

    The module's matrices note their inputs while `joined_matrices` is open. Whether keys and values consist of the
    parts of the products in the usual order is left to the probe.
    """
    cache = latent_cache_of(module)
    if cache is None or cache.returned is None:
        return None
    heads, rows = q_1HTD.shape[1:3]
    for place in (0, 1):
        latent, turned = cache.returned[place], cache.returned[1 - place]
        rotary, value = turned.shape[-1], v_1HTW.shape[-1]
        sizes = LatentSizes(latent.shape[-1], k_1HTD.shape[-1] - rotary, rotary, value)
        all_heads_share = all(entries.shape[:3] == (1, 1, rows) for entries in cache.returned)
        is_smaller = sizes.kept < heads * (sizes.key + value)
        if not (all_heads_share and is_smaller and sizes.nope > 0 and k_1HTD.shape[1] == heads):
            continue
        for name, matrix in module.named_children():
            if not isinstance(matrix, ClassLinear):
                continue
            multiplied = any(_is_same(x, latent) for x in matrix.calls or ())
            if multiplied and matrix.matrix.outputs == heads * (sizes.nope + value) and not matrix.matrix.spec.bias:
                return LatentCall(sizes, name, place)
    return None


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors, one of which may be a view of the other, have the same rows."""
    return one.shape[-1] == other.shape[-1] and _origin(one) == _origin(other)


def _origin(tensor: Tensor) -> tuple[int, int]:
    """Return what tells the memory of a tensor from that of others, also on meta, where `data_ptr` is always 0."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def latent_op(
    layer: int, heads: int, call: LatentCall, module: nn.Module, pattern: AttentionPattern, scale: float | None,
    storage: StorageConfig,
) -> LatentAttention:  # fmt: skip
    """Return the op that keeps and attends to the latents of a module, and take the module's matrix for it.

    Args:
        layer: The index of the op's cache.
        heads: The number of heads.
        call: The latent.
        module: The attention module of the class.
        pattern: The keys that a query sees.
        scale: The factor on the scores; None for that of the keys' width.
        storage: The dtype and the KV format of the model.
    """
    cache, matrix, sizes = latent_cache_of(module), getattr(module, call.matrix), call.sizes
    assert cache is not None
    cache.let_op_attend(call.place)
    setattr(module, call.matrix, ExpandedElsewhere(matrix.matrix.spec))
    spec = KVSpec(1, sizes.kept, 0, pattern, storage.dtype, storage.kv)
    factor = sizes.key**-0.5 if scale is None else scale
    return LatentAttention(layer, heads, sizes, matrix.matrix.spec, spec, rope=None, scale=factor)


def kept_rows(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the latents [T, C] and rotated parts of keys [T, R] of the running call of a module, and forget them."""
    cache = latent_cache_of(module)
    assert cache is not None
    return cache.take_rows()
