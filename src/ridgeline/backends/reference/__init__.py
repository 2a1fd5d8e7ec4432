"""The reference backend: plain PyTorch, against which the tests compare all other backends."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from ridgeline.core.ops.backend import Backend
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.paged_state import StatePages


class ReferenceBackend(Backend):
    """A backend that runs every op in PyTorch, with paged keys and values, on any device; it replays no steps."""

    @override
    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> KVPages:
        return KVPages(layers, groups, states)
