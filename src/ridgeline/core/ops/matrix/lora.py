"""A weight matrix with LoRA adapters (Hu et al., arXiv:2106.09685).

For the rows that use an adapter, y = x W^T + s (x A^T) B^T.

Shapes: T rows of a step, N rows with an adapter, I inputs, O outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.ops.matrix.low_rank import LoraWeights
from ridgeline.core.ops.matrix.matrix import Matrix
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.stored_module import StorageShare
from ridgeline.core.ops.work import RowAxis, adapter_axis


@dataclass(frozen=True, slots=True)
class AdapterSlice:
    """The slice, from `start` to `stop`, of one LoRA adapter's rows in the list of all rows that have an adapter."""

    number: int
    """The number that identifies the LoRA adapter, from 1."""
    start: int
    stop: int


class AdapterRows:
    """The rows of each LoRA adapter in the running step, shared by all adapted matrices of a model.

    Ops receive only tensors of rows, so they look up the adapters here. The code that runs a step calls
    `set_step` first.

    Attributes:
        adapter_rows_N: The rows with an adapter, adapter by adapter, int64.
        parts: The slice of `adapter_rows_N` for each adapter in the step; empty if the step uses no adapter.
        rest: The rows without an adapter, int64.
        whole: Whether every row has an adapter and `adapter_rows_N` lists all rows in order.
        count: The number of rows in the step.
    """

    def __init__(self) -> None:
        self.parts: Sequence[AdapterSlice] = ()
        self.adapter_rows_N = self.rest = torch.empty(0, dtype=torch.int64, device="cpu")
        self.whole = False
        self.count = 0

    def set_step(self, adapters: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        """Record which rows of a step use which LoRA adapter.

        Args:
            adapters: The adapter number of each sequence; 0 for none.
            counts: The number of rows of each sequence.
            device: The device of the index tensors.
        """
        if not any(adapters):
            self.parts = ()
            return
        rows: dict[int, list[int]] = {}
        first = 0
        for number, count in zip(adapters, counts, strict=True):
            rows.setdefault(number, []).extend(range(first, first + count))
            first += count
        rest = rows.pop(0, [])
        parts, own = list[AdapterSlice](), list[int]()
        for number, numbers in sorted(rows.items()):
            parts.append(AdapterSlice(number, len(own), len(own) + len(numbers)))
            own += numbers
        self.adapter_rows_N, self.rest = (
            torch.tensor(numbers, dtype=torch.int64, device=device) for numbers in (own, rest)
        )
        self.parts, self.count, self.whole = parts, first, own == list(range(first))

    def of(self, x_TI: Tensor) -> Tensor:
        """Select the rows of a tensor that have a LoRA adapter: [N, ...]."""
        assert len(x_TI) == self.count, f"{len(x_TI)} rows run, but adapters were chosen for {self.count}"
        return x_TI if self.whole else x_TI.index_select(0, self.adapter_rows_N)


class AdaptedMatrix(Matrix):
    """A matrix with the LoRA adapters that extend it, by number; its own weights stay unchanged."""

    def __init__(self, base: Matrix, rows: AdapterRows) -> None:
        nn.Module.__init__(self)
        self.spec, self.stored, self.inputs, self.outputs = base.spec, base.stored, base.inputs, base.outputs
        self.bias = None  # the base matrix adds its own
        self.unnamed, base.unnamed = base.unnamed, True
        self.base, self.rows = base, rows
        self._adapters: dict[int, LoraWeights] = {}

    def adapt(self, number: int, added: LoraWeights) -> None:
        """Attach an adapter's low-rank weights under its number."""
        added.backend = self.base.backend
        self._adapters[number] = added
        self.add_module(f"adapter_{number}", added)

    @override
    def low_rank(self, number: int) -> LoraWeights | None:
        return self._adapters.get(number)

    @property
    @override
    def operands(self) -> Operands | None:
        """The operands for kernels of the base matrix, without LoRA adapters."""
        return self.base.operands

    @property
    @override
    def has_no_adapter_rows(self) -> bool:
        """Whether the running step uses no LoRA adapter, so that the base matrix's product is the result."""
        return not self.rows.parts

    @override
    def product(self, x_TI: Tensor) -> Tensor:
        return self.add(self.base.product(x_TI), x_TI)

    def add(self, y_TO: Tensor, x_TI: Tensor) -> Tensor:
        """Add the LoRA adapters' contributions to the base product y_TO, in place and in its dtype, and return it."""
        if not self.rows.parts or x_TI.is_meta:
            return y_TO
        added_NO = self._added(self.rows.of(x_TI)).to(y_TO.dtype)
        return y_TO.add_(added_NO) if self.rows.whole else y_TO.index_add_(0, self.rows.adapter_rows_N, added_NO)

    @override
    def dequantised(self) -> Tensor:
        """Return the weights of the base matrix, without LoRA adapters."""
        return self.base.dequantised()

    @override
    def reference_product(self, x_TI: Tensor) -> Tensor:
        return self.product(x_TI)

    def adapted(self, x_NI: Tensor) -> Tensor:
        """Return the product with base matrix and LoRA adapters of rows that all have an adapter.

        The rows are those that `AdapterRows.of` selects.
        """
        return self.base.product(x_NI).add_(self._added(x_NI))

    def _added(self, x_NI: Tensor) -> Tensor:
        added_NO = x_NI.new_zeros(len(x_NI), self.outputs)
        for part in self.rows.parts:
            low_rank = self.low_rank(part.number)
            if low_rank is not None:
                added_NO[part.start : part.stop] = low_rank.added(x_NI[part.start : part.stop])
        return added_NO

    def of_step(self, rows: Mapping[RowAxis, int]) -> list[tuple[LoraWeights, int]]:
        """Return the low-rank weights of each LoRA adapter that a step uses, with its number of rows.

        Args:
            rows: The row counts of the step, by row axis.
        """
        counts = ((low_rank, rows.get(adapter_axis(number), 0)) for number, low_rank in self._adapters.items())
        return [(low_rank, count) for low_rank, count in counts if count]

    def shape(self) -> tuple[tuple[int, int], ...]:
        """Return the number (index) and the rank of each LoRA adapter of a matrix, on which its cost depends."""
        return tuple((number, low_rank.rank) for number, low_rank in self._adapters.items())

    @property
    @override
    def is_runnable(self) -> bool:
        return self.base.is_runnable

    @property
    @override
    def number_format(self) -> str:
        return self.base.number_format

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return the parameter count and bytes, by format, of the base matrix alone, which every step reads."""
        return self.base.storage_shares()

    @override
    def tensors(self) -> tuple[str, ...]:
        """Return no tensor names for an adapted matrix: its base matrix loads its own tensors."""
        return ()
