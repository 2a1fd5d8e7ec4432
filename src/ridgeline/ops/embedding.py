"""Embeddings: one stored row a token id or a position."""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.op import Op, weight
from ridgeline.ops.work import Work


class Embedding(Op):
    """Gathers rows of a table [entries, width]: token embeddings, or learned positions (GPT-2)."""

    kind = "embedding"

    def __init__(self, entries: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight(entries, width, dtype=dtype)

    def forward(self, ids_T: Tensor) -> Tensor:
        """ids_T int64 [rows] -> [rows, width]."""
        return functional.embedding(ids_T, self.weight)

    def cost(self, work: Work) -> Cost:
        """The rows gathered, not the table: a step of one token reads one row of 128,256."""
        row = self.weight.shape[1] * self.weight.element_size()
        return Cost(weight_bytes=work.tokens * row, activation_bytes=work.tokens * row)

    def signature(self) -> Hashable:
        return self.weight.shape[1], self.weight.dtype

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"
