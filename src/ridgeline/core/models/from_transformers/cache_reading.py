"""The tensors that a class of transformers keeps of each sequence, read from its own cache after prompts on meta."""

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.kv_layout import CacheSpec, KVSpec, StateSpec
from ridgeline.core.ops.work import CAUSAL, AttentionPattern

Kept = list[dict[str, Tensor]]
"""The tensors that each layer keeps of a sequence, by the names of the cache's attributes."""

_PAIR = "keys", "values"
_NO_WINDOW = 2**30


def kept_tensors(cache: Any) -> Kept:
    """Return the tensors that each layer of a cache keeps; those of a cache without layers are those of one layer.

    Some caches keep a list of their own next to the layers, with a state for each layer.
    """
    if not hasattr(cache, "layers"):
        return [dict(_named(cache))]
    lists = {name: own for name, own in vars(cache).items() if name != "layers" and isinstance(own, list)}
    count = max(len(own) for own in (cache.layers, *lists.values()))
    kept: Kept = [dict(_named(vars(layer))) for layer in cache.layers]
    kept += [{} for _ in range(count - len(kept))]
    for name, own in lists.items():
        for layer, part in zip(kept, own, strict=False):
            layer.update(_named(part, name))
    return kept


def layer_specs(cache: Any, short: Kept, long: Kept, more: int, storage: StorageConfig) -> list[list[CacheSpec]]:
    """Return the formats of what each layer of a class keeps.

    What grows with the sequence is stored by position, and the rest is a state.

    Args:
        cache: A cache of the class, which states the sizes of windows.
        short: What the layers keep of a sequence.
        long: What they keep of a longer one.
        more: The number of positions that it is longer.
        storage: The dtype and the KV format of the model.
    """
    layers: Sequence[Any] = getattr(cache, "layers", [cache])
    each = zip_longest(layers, short, long)  # a cache may have no object for layers that keep a state only
    return [list(_specs(layer, less, full, more, storage)) for layer, less, full in each]


def _specs(
    layer: Any, short: dict[str, Tensor], long: dict[str, Tensor], more: int, storage: StorageConfig
) -> Iterator[CacheSpec]:
    growing = {name: full for name, full in long.items() if full.numel() > short[name].numel()}
    if all(name in long and (name in growing or long[name].numel() == 0) for name in _PAIR) and "keys" in growing:
        yield _pair_spec(layer, growing.pop("keys"), long["values"], storage)
        growing.pop("values", None)
    for name, full in growing.items():  # such as the keys of an index
        numbers = math.ceil((full.numel() - short[name].numel()) / more)
        yield KVSpec(1, numbers, 0, CAUSAL, full.dtype, storage.kv)
    states = [full for name, full in long.items() if full.numel() == short[name].numel() > 1]
    for dtype in dict.fromkeys(state.dtype for state in states if state.is_floating_point()):
        yield StateSpec(sum(state.numel() for state in states if state.dtype == dtype), dtype)


def _pair_spec(layer: Any, keys: Tensor, values: Tensor, storage: StorageConfig) -> KVSpec:
    """Return the format of a layer's keys and values, [1, heads, positions, entries] each."""
    pattern = _pattern(layer)
    heads, k_dim = keys.shape[1], keys.shape[-1]
    if values.numel() and values.shape[1] != heads:
        heads, k_dim, v_dim = 1, heads * k_dim, values.shape[1] * values.shape[-1]
    else:
        v_dim = values.shape[-1] if values.numel() else 0
    return KVSpec(heads, k_dim, v_dim, pattern, keys.dtype, storage.kv)


def open_window(layer: Any) -> None:
    """Make the window of a cache's layer longer than any trace; `layer_specs` still finds the stated one."""
    if getattr(layer, "sliding_window", None) is not None:
        layer.stated_window, layer.sliding_window = layer.sliding_window, _NO_WINDOW


def _pattern(layer: Any) -> AttentionPattern:
    window = getattr(layer, "stated_window", getattr(layer, "sliding_window", None))
    return CAUSAL if window is None else AttentionPattern("window", window)


def _named(nested: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with data in nested attributes, lists and mappings, each with a name."""
    if isinstance(nested, Tensor):
        yield path, nested
        return
    if isinstance(nested, dict):
        parts = nested.items()
    elif isinstance(nested, list | tuple):
        parts = enumerate(nested)  # type: ignore[assignment]
    else:
        parts = getattr(nested, "__dict__", {}).items()
    for name, part in parts:
        yield from _named(part, f"{path}.{name}" if path else str(name))
