"""Embeddings: one stored row a token id or a position."""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op, weight
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.work import Work


class Embedding(Op):
    """Gathers rows of a table [entries, width]: token embeddings, or learned positions (GPT-2).

    Of a shard's entries the others' rows are zero, for an AllReduce to add up.
    """

    kind = "embedding"

    def __init__(self, entries: int, width: int, dtype: torch.dtype, shard: Shard = WHOLE) -> None:
        super().__init__()
        self.shard = shard
        self.weight = weight(shard.part(entries, "embeddings"), width, dtype=dtype)

    def take(self, name: str, full: Tensor) -> Tensor:
        """As Op.take."""
        return self.shard.slice(full, 0)

    def forward(self, ids_T: Tensor) -> Tensor:
        """ids_T int64 [rows] -> [rows, width]."""
        if self.shard.size == 1:
            return functional.embedding(ids_T, self.weight)
        entries = self.weight.shape[0]
        local_T = ids_T - self.shard.rank * entries
        own_T = (local_T >= 0) & (local_T < entries)
        return functional.embedding(local_T.clamp(0, entries - 1), self.weight) * own_T[:, None]

    def cost(self, work: Work) -> Cost:
        """The rows gathered, not the table: a step of one token reads one row of 128,256."""
        row = self.weight.shape[1] * self.weight.element_size()
        return Cost(weight_bytes=work.tokens * row / self.shard.size, activation_bytes=work.tokens * row)

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.weight.dtype).name

    def signature(self) -> Hashable:
        return tuple(self.weight.shape), self.weight.dtype, self.shard.size

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"
