"""The tensors of KV memory: for each layer [2, pages, kv_heads, page size, head_dim], keys before values."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.engine.kv.ledger import PageCopy
from ridgeline.ops.kv import KVSpec


class KVStore:
    """KV memory of a model. `group_of_layer`: which KV group each layer belongs to."""

    def __init__(
        self, specs: Sequence[KVSpec], group_of_layer: Sequence[int], pages: Sequence[int], page_size: int
    ) -> None:
        """`specs` and `pages`: each group's. One page more than `pages` is kept: the page of zeros, number 0."""
        for spec in specs:
            assert spec.k_dim == spec.v_dim, "one tensor holds both"
        self.group_of_layer, self.page_size = tuple(group_of_layer), page_size
        self.layers: list[Tensor] = []
        for group in self.group_of_layer:
            spec = specs[group]
            shape = (2, pages[group] + 1, spec.heads, page_size, spec.k_dim)
            self.layers.append(torch.zeros(shape, dtype=spec.dtype))

    def of_group(self, group: int) -> list[Tensor]:
        """The stores of a group's layers."""
        return [store for store, g in zip(self.layers, self.group_of_layer, strict=True) if g == group]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Make these copies, in order."""
        for copy in copies:
            for store in self.of_group(copy.group):
                store[:, copy.target] = store[:, copy.source]

    def blank(self, pages: Sequence[tuple[int, int]]) -> None:
        """Fill (group, page) pairs with zeros."""
        for group in {group for group, _ in pages}:
            index = torch.tensor([page for g, page in pages if g == group])
            for store in self.of_group(group):
                store[:, index] = 0
