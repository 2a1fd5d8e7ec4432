"""A matrix with adapters beside it: LoRA (Hu et al., arXiv:2106.09685), y = x W^T + s (x A^T) B^T for the rows that an
adapter is asked for.

Shapes: T rows of a step, N those of them with an adapter, I inputs, O outputs.
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
    """The rows of one adapter among those that have one: from `start` to `stop`."""

    number: int
    start: int
    stop: int


class AdapterRows:
    """Which rows of the step that runs are whose: one object a model, which all its adapted matrices look at, because
    an op is given rows and nothing else. Whoever runs a step says it first (`choose`).

    own_N: int64, the rows with an adapter, adapter by adapter; parts: of each adapter in the step, where in own_N; none
    in a step that no adapter is in. rest: int64, the rows without. whole: all rows have one, and in order. count: how
    many rows there are.
    """

    def __init__(self) -> None:
        self.parts: Sequence[AdapterSlice] = ()
        self.own_N = self.rest = torch.empty(0, dtype=torch.int64, device="cpu")
        self.whole = False
        self.count = 0

    def choose(self, adapters: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        """A step of sequences with so many rows each; adapters: the number of each one's, 0 for none."""
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
        self.own_N, self.rest = (torch.tensor(numbers, dtype=torch.int64, device=device) for numbers in (own, rest))
        self.parts, self.count, self.whole = parts, first, own == list(range(first))

    def of(self, x_TI: Tensor) -> Tensor:
        """The rows with an adapter: [N, ...]."""
        assert len(x_TI) == self.count, f"{len(x_TI)} rows run, adapters were chosen for {self.count}"
        return x_TI if self.whole else x_TI.index_select(0, self.own_N)


class AdaptedMatrix(Matrix):
    """A matrix, and by their numbers the adapters that add to it. Its own numbers are left as they are."""

    def __init__(self, base: Matrix, rows: AdapterRows) -> None:
        nn.Module.__init__(self)
        self.spec, self.stored, self.inputs, self.outputs = base.spec, base.stored, base.inputs, base.outputs
        self.bias = None  # the base has it
        self.unnamed, base.unnamed = base.unnamed, True
        self.base, self.rows = base, rows
        self._adapters: dict[int, LoraWeights] = {}

    def adapt(self, number: int, added: LoraWeights) -> None:
        """Put an adapter beside it."""
        added.backend = self.base.backend
        self._adapters[number] = added
        self.add_module(f"adapter_{number}", added)

    @override
    def low_rank(self, number: int) -> LoraWeights | None:
        return self._adapters.get(number)

    @property
    @override
    def operands(self) -> Operands | None:
        """As Matrix.operands: those of the matrix without adapters."""
        return self.base.operands

    @property
    @override
    def alone(self) -> bool:
        """As Matrix.alone: in a step that no adapter is in."""
        return not self.rows.parts

    @override
    def product(self, x_TI: Tensor) -> Tensor:
        return self.add(self.base.product(x_TI), x_TI)

    def add(self, y_TO: Tensor, x_TI: Tensor) -> Tensor:
        """What adapters give for the rows that have one, added to the matrix's own product, in its place and dtype."""
        if not self.rows.parts or x_TI.is_meta:
            return y_TO
        added_NO = self._added(self.rows.of(x_TI)).to(y_TO.dtype)
        return y_TO.add_(added_NO) if self.rows.whole else y_TO.index_add_(0, self.rows.own_N, added_NO)

    @override
    def values(self) -> Tensor:
        """As Matrix.values: those of the matrix without adapters."""
        return self.base.values()

    @override
    def computed(self, x_TI: Tensor) -> Tensor:
        return self.product(x_TI)

    def adapted(self, x_NI: Tensor) -> Tensor:
        """The product of the rows that have an adapter, as `AdapterRows.of` gives them."""
        return self.base.product(x_NI).add_(self._added(x_NI))

    def _added(self, x_NI: Tensor) -> Tensor:
        added_NO = x_NI.new_zeros(len(x_NI), self.outputs)
        for part in self.rows.parts:
            low_rank = self.low_rank(part.number)
            if low_rank is not None:
                added_NO[part.start : part.stop] = low_rank.added(x_NI[part.start : part.stop])
        return added_NO

    def of_step(self, rows: Mapping[RowAxis, int]) -> list[tuple[LoraWeights, int]]:
        """What adapters add in a step with so many rows by space, and how many rows have it."""
        counts = ((low_rank, rows.get(adapter_axis(number), 0)) for number, low_rank in self._adapters.items())
        return [(low_rank, count) for low_rank, count in counts if count]

    def shape(self) -> tuple[tuple[int, int], ...]:
        """The adapters by number, and the rank of each: what their cost depends on."""
        return tuple((number, low_rank.rank) for number, low_rank in self._adapters.items())

    @property
    @override
    def runs(self) -> bool:
        return self.base.runs

    @property
    @override
    def number_format(self) -> str:
        return self.base.number_format

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares, of the matrix itself: that is what every step reads."""
        return self.base.shares()

    @override
    def tensors(self) -> tuple[str, ...]:
        """As Stored.tensors: the matrix itself has them."""
        return ()
