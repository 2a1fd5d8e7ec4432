"""The answers of a trace to code that asks for values, and the copies of caches that a trace watches."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicSlidingWindowLayer

from ridgeline.core.models.from_transformers.aten_costs import traced
from ridgeline.core.models.from_transformers.cache_reading import kept_tensors, open_window
from ridgeline.core.models.from_transformers.cache_trace import watch_cache
from ridgeline.core.models.from_transformers.meta_tracing import AssumesTrue, UnknownCount
from ridgeline.core.models.from_transformers.not_bridged import NotBridged


class LayerCache:
    """A cache with the given layers, and lists of its own next to them."""

    def __init__(self, *layers: Any) -> None:
        self.layers = list(layers)
        self.states: list[Any] = []


def test_no_row_is_padding() -> None:
    ids_1T = torch.empty(1, 5, dtype=torch.int64, device="meta")
    with AssumesTrue():
        assert 0 not in ids_1T
        assert (ids_1T == 1).all()


@pytest.mark.parametrize(
    "use", [bool, int, lambda count: count == 0, lambda count: count + 1, lambda count: [0] * count]
)
def test_unknown_counts_cannot_be_used(use: Any) -> None:
    """Check that no code takes an expert for one without rows."""
    with AssumesTrue():
        counts = torch.empty(3, dtype=torch.int64, device="meta").tolist()
    assert len(counts) == 3
    assert isinstance(counts[0], UnknownCount)
    with pytest.raises(NotBridged, match="depends on the values of tensors"):
        use(counts[0])


def test_the_copy_of_a_watched_layer_keeps_its_own_keys() -> None:
    """Check layers that a class copies because it runs them twice (Inkling 2 Loop)."""
    first = DynamicSlidingWindowLayer(sliding_window=4)
    open_window(first)
    cache = LayerCache(first)
    keys_1KTD = torch.empty(1, 2, 9, 8, device="meta")
    with traced(nn.Module()) as trace:
        watch_cache(cache, trace)
        again = deepcopy(first)
        first.update(keys_1KTD, keys_1KTD)
        kept, _ = again.update(keys_1KTD[:, :, :3], keys_1KTD[:, :, :3])
    assert kept.shape == again.keys.shape == (1, 2, 3, 8)
    assert first.keys.shape == (1, 2, 9, 8)  # no window ends it


def test_states_in_a_list_next_to_the_layers() -> None:
    """Check a cache that keeps the states of some layers in a list of its own (MiniMax)."""
    cache = LayerCache()
    cache.states = [[], torch.zeros(1, 3)]
    assert [sorted(kept) for kept in kept_tensors(cache)] == [[], ["states"]]
