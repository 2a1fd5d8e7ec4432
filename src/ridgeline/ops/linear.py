"""Linear: y = x W^T + b. Whole, or a rank's columns or rows of it."""

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import WeightFormat, arithmetic
from ridgeline.ops.op import Op, weight
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.work import Work

Split = Literal["column", "row"]


class Linear(Op):
    """A matrix product with a stored weight [out, in] ([in, out] where the checkpoint stores it `transposed`).

    split: "column" holds a part of the outputs, "row" a part of the inputs (then an AllReduce adds the ranks up).
    parts: the outputs of each matrix that the checkpoint fused into this one. stored: a format narrower than the dtype,
    priced but not run.
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
        parts: Sequence[int] | None = None,
        stored: WeightFormat | None = None,
    ) -> None:
        super().__init__()
        self.inputs = shard.part(inputs, "inputs") if split == "row" else inputs
        self.outputs = sum(shard.part(n, "outputs") for n in parts or [outputs]) if split == "column" else outputs
        self.transposed, self.split, self.shard, self.parts, self.stored = transposed, split, shard, parts, stored
        shape = (self.inputs, self.outputs) if transposed else (self.outputs, self.inputs)
        self.weight = weight(*shape, dtype=dtype)
        self.bias = weight(self.outputs, dtype=dtype) if bias else None

    def take(self, name: str, full: Tensor) -> Tensor:
        """As Op.take."""
        if self.split is None or (name == "bias" and self.split == "row"):
            return full
        if self.split == "row":
            return self.shard.slice(full, 0 if self.transposed else 1)
        return self.shard.slice(full, 1 if self.transposed and name == "weight" else 0, self.parts)

    def forward(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]; of a row split, this rank's summand of them."""
        matrix = self.weight.t() if self.transposed else self.weight
        once = self.split == "row" and self.shard.rank > 0  # the sum over ranks has one bias
        return functional.linear(x_TI, matrix, None if once else self.bias)

    def cost(self, work: Work) -> Cost:
        """2 x rows x inputs x outputs FLOPs; the weight once, however many rows share it."""
        rows, width = self.rows(work), self.weight.element_size()
        return Cost(
            flops={self.number: 2.0 * rows * self.inputs * self.outputs},
            weight_bytes=self.stored_bytes(),
            activation_bytes=rows * (self.inputs + self.outputs) * width,
        )

    def kernel(self, work: Work) -> str:
        """A matrix times one row is another kernel than times several; so is one that is stored the other way."""
        rows = "vector" if self.rows(work) == 1 else "matrix"
        return f"{self.kind}.{rows}{'.transposed' if self.transposed else ''}"

    @property
    def number(self) -> str:
        """As Op.number."""
        return arithmetic(self.weight.dtype, self.stored)

    def stored_bytes(self) -> float:
        """As Op.stored_bytes; biases stay in the model's dtype."""
        if self.stored is None:
            return super().stored_bytes()
        bias = 0 if self.bias is None else self.bias.nbytes
        return self.stored.nbytes(self.outputs, self.inputs) + bias

    def signature(self) -> Hashable:
        return self.inputs, self.outputs, self.bias is None, self.weight.dtype, self.stored

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
