"""Linear: y = x W^T + b. Column-split, row-split or whole."""

from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op, nbytes, weight
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.work import Work

Split = Literal["column", "row"]


class Linear(Op):
    """A matrix product with a stored weight [out, in] ([in, out] where the checkpoint stores it `transposed`).

    split="column" holds a part of the outputs, split="row" a part of the inputs (Megatron-LM, arXiv:1909.08053).
    """

    kind = "linear"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        dtype: torch.dtype,
        bias: bool = False,
        *,
        transposed: bool = False,
        split: Split | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__()
        self.inputs = shard.part(inputs, "inputs") if split == "row" else inputs
        self.outputs = shard.part(outputs, "outputs") if split == "column" else outputs
        self.transposed, self.split = transposed, split
        shape = (self.inputs, self.outputs) if transposed else (self.outputs, self.inputs)
        self.weight = weight(*shape, dtype=dtype)
        self.bias = weight(self.outputs, dtype=dtype) if bias else None

    def shard_dim(self, name: str) -> int | None:
        """The dimension of parameter `name` that ranks divide, None for one that every rank holds whole."""
        if self.split is None:
            return None
        if name == "bias":
            return 0 if self.split == "column" else None
        return 0 if (self.split == "column") != self.transposed else 1

    def forward(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]."""
        return functional.linear(x_TI, self.weight.t() if self.transposed else self.weight, self.bias)

    def cost(self, work: Work) -> Cost:
        """2 x rows x inputs x outputs FLOPs; the weight once, however many rows share it."""
        rows, width = self.rows(work), self.weight.element_size()
        return Cost(
            flops={format_of(self.weight.dtype).name: 2.0 * rows * self.inputs * self.outputs},
            weight_bytes=nbytes(self),
            activation_bytes=rows * (self.inputs + self.outputs) * width,
        )

    def signature(self) -> Hashable:
        return self.inputs, self.outputs, self.bias is None, self.weight.dtype

    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.outputs}"


class Head(Linear):
    """The last projection: hidden state -> logits in fp32, only for the rows that are wanted.

    Tied to the embedding by sharing its parameter; it is read in full either way, so the cost is the same.
    """

    kind = "head"
    row_space = "logits"

    def forward(self, x_RI: Tensor) -> Tensor:
        """x_RI [logit rows, hidden] -> fp32 [logit rows, vocabulary]."""
        return super().forward(x_RI).float()
