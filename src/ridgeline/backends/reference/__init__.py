"""The reference backend: plain PyTorch, the oracle of every test."""

from collections.abc import Mapping, Sequence

from ridgeline.ops.backend import Backend
from ridgeline.ops.kv import KVGroup
from ridgeline.ops.layer_pages import LayerPages
from ridgeline.ops.paged import Pages
from ridgeline.ops.paged_state import StatePages


class ReferenceBackend(Backend):
    """Ops in PyTorch, over pages of keys and values on any device. No step is replayed."""

    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> Pages:
        return Pages(layers, groups, states)
