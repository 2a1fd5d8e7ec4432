"""Embeddings: one stored row a token id or a position.

Shapes: T rows of a step, N rows that are gathered, E entries of a table, D hidden.
"""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import Elementwise
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix, matrix_of
from ridgeline.core.ops.number_formats import WeightFormat, format_of
from ridgeline.core.ops.op import Op, OpBackend
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare, weight
from ridgeline.core.ops.weight_slot import WeightSlot


class EmbeddingBackend(OpBackend):
    """The part of a backend that embeddings call, in PyTorch."""

    def gather(self, table_ED: Tensor, numbers_N: Tensor) -> Tensor:
        """Return the rows of a table that have these numbers, int64 [N]: [N, D]."""
        return functional.embedding(numbers_N, table_ED)


class Embedding(Op):
    """Gathers rows of a table [entries, width]: token embeddings, or learned positions (GPT-2).

    scale: what rows are multiplied with, in the model's dtype (Gemma). Of a shard's entries the others' rows are zero,
    for an AllReduce to add up. stored: a narrower format of the table. table: of codes, which stands in for `weight`
    where ops run on the format; a head may be the same.
    """

    kind = "embedding"
    part = "embedding"
    backend: EmbeddingBackend = EmbeddingBackend()

    def __init__(
        self, entries: int, width: int, dtype: torch.dtype, shard: Shard = WHOLE, *, scale: float | None = None
    ) -> None:
        super().__init__()
        self.entries, self.width, self.dtype, self.shard, self.scale = entries, width, dtype, shard, scale
        self.own_entries = shard.part(entries, "embeddings")
        self.store({"weight": None})

    @override
    def places(self) -> Mapping[str, WeightSlot]:
        return {"weight": WeightSlot("", "embedding", self.width, self.entries)}

    @override
    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        self.stored = stored["weight"]
        self.weight: nn.Parameter | None = None
        self.table: QuantisedMatrix | None = None
        if self.stored is not None and self.stored.code:
            spec = MatrixSpec(self.width, self.entries, self.dtype, split="column", shard=self.shard)
            table = matrix_of(spec, self.stored)
            assert isinstance(table, QuantisedMatrix)
            table.unnamed = True
            self.table = table
        else:
            self.weight = weight(self.own_entries, self.width, dtype=self.dtype)

    @override
    def another(self) -> "Embedding":
        other = Embedding(self.entries, self.width, self.dtype, self.shard, scale=self.scale)
        other.store({"weight": self.stored})
        return other

    @property
    @override
    def runs(self) -> bool:
        return self.stored is None or self.table is not None

    @override
    def tied_parameters(self) -> Mapping[str, nn.Parameter]:
        """As Stored.tied_parameters: those of its rows, by the names that a matrix has for them."""
        return dict((self if self.table is None else self.table).named_parameters(recurse=False))

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        if self.table is not None:
            return self.table.shares()
        count = self.own_entries * self.width
        nbytes = (
            count * self.dtype.itemsize if self.stored is None else self.stored.nbytes(self.own_entries, self.width)
        )
        return (StorageShare(self.stored, count, float(nbytes)),)

    @override
    def take(self, name: str, full: Tensor) -> dict[str, Tensor]:
        return {name: self.shard.slice(full, 0)}

    @override
    def forward(self, ids_T: Tensor) -> Tensor:
        """ids_T int64 [rows] -> [rows, width]."""
        if ids_T.is_meta:
            return torch.empty(len(ids_T), self.width, dtype=self.dtype, device="meta")
        x_TD = self._gather(ids_T)
        return x_TD if self.scale is None else x_TD * torch.tensor(self.scale, dtype=x_TD.dtype)

    def _gather(self, ids_T: Tensor) -> Tensor:
        if self.shard.size == 1:
            return self._rows(ids_T)
        local_T = ids_T - self.shard.rank * self.own_entries
        own_T = (local_T >= 0) & (local_T < self.own_entries)
        return self._rows(local_T.clamp(0, self.own_entries - 1)) * own_T[:, None]

    def _rows(self, ids_T: Tensor) -> Tensor:
        if self.table is not None:
            return self.table.rows(ids_T)
        assert self.weight is not None
        return self.backend.gather(self.weight, ids_T)

    @override
    def cost_of(self, rows: int) -> Cost:
        """The rows gathered, not the table: a step of one token reads one row of 128,256."""
        row = self.width * self.dtype.itemsize
        read = row if self.stored is None else self.stored.nbytes(1, self.width)
        return Cost(weight_bytes=rows * read / self.shard.size, activation_bytes=rows * row)

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.own_entries, self.width, self.dtype, self.stored, self.shard.size, self.scale is None

    @override
    def extra_repr(self) -> str:
        return f"{self.own_entries} x {self.width}"


class IndexedEmbedding(Embedding):
    """An Embedding whose row for a number n is (n + offset) // every, modulo its entries: learned positions that begin
    at a later row (RoBERTa), and token ids that say which of two texts they are of, those of the second being moved on
    by the size of the vocabulary (BERT's token types).
    """

    def __init__(self, entries: int, width: int, dtype: torch.dtype, *, offset: int = 0, every: int = 1) -> None:
        super().__init__(entries, width, dtype)
        self.offset, self.every = offset, every

    @override
    def forward(self, ids_T: Tensor) -> Tensor:
        return super().forward(ids_T if ids_T.is_meta else (ids_T + self.offset) // self.every % self.entries)


class PlacedEmbedding(Embedding):
    """An Embedding in which other rows may stand for some tokens, such as those that an encoder made of an image: an id
    below 0 is such a row, -1 the first.
    """

    @override
    def forward(self, ids_T: Tensor, placed_ED: Tensor | None = None) -> Tensor:
        """ids_T int64 [rows], placed_ED [other rows, width], None where all are tokens -> [rows, width]."""
        if placed_ED is None or ids_T.is_meta:
            return super().forward(ids_T)
        x_TD = super().forward(ids_T.clamp(min=0))
        placed_T = ids_T < 0
        x_TD[placed_T] = placed_ED[-1 - ids_T[placed_T]]
        return x_TD


class EitherEmbedding(Elementwise):
    """Of rows of two vocabularies, the first's where the id is one of the first `entries`, else the second's."""

    kind = "embedding"
    kernel_name = "elementwise.plain"
    FLOPS_PER_ELEMENT = 0

    def __init__(self, entries: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self.entries = entries

    @override
    def forward(self, first_TD: Tensor, second_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Two of [rows, width], ids_T int64 [rows] -> [rows, width]."""
        if ids_T.is_meta:
            return first_TD.new_empty(first_TD.shape)
        return torch.where((ids_T < self.entries)[:, None], first_TD, second_TD)


class SinusoidalPositions(Elementwise):
    """Rows plus the sines and cosines of their positions (Vaswani et al., arXiv:1706.03762), computed, not loaded: the
    sines are the first half of a row, as Marian has them, not every second number.
    """

    kind = "embedding"
    kernel_name = "elementwise.plain"
    FLOPS_PER_ELEMENT = 1
    table: Tensor

    def __init__(self, entries: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self.entries = entries
        with torch.device("cpu"):
            table = sinusoids(entries, width).to(dtype)
        self.register_buffer("table", table, persistent=False)

    @override
    def forward(self, x_TD: Tensor, positions_T: Tensor) -> Tensor:
        """x_TD [rows, width], positions_T int64 [rows] -> [rows, width]."""
        if x_TD.is_meta:
            return x_TD.new_empty(x_TD.shape)
        return x_TD + self.table.to(x_TD.device)[positions_T]

    @override
    def extra_repr(self) -> str:
        return f"{self.entries} x {self.width}"


class GridPositions(Elementwise):
    """Rows plus the sines and cosines of their columns, then of their lines (Dosovitskiy et al., arXiv:2010.11929, in
    two coordinates as He et al., arXiv:2111.06377, have them), half of a row each.

    Positions of a picture of any size are spread over those of the one that a model was first trained on (PixArt-alpha,
    arXiv:2310.00426, section 2.4), `base` to a side, and divided by `interpolation`.
    """

    kind = "embedding"
    kernel_name = "elementwise.angles"
    FLOPS_PER_ELEMENT = 3  # the angle, cos or sin counted as one, the sum

    def __init__(self, width: int, dtype: torch.dtype, base: int, interpolation: float) -> None:
        """width: a multiple of 4."""
        super().__init__(width, dtype)
        self.base, self.interpolation = base, interpolation

    @override
    def forward(self, x_ND: Tensor, places_N3: Tensor, lines: int, columns: int) -> Tensor:
        """x_ND [rows, width], places_N3 int64 [rows, 3]: frame, line and column of each, in a picture of so many ->
        [rows, width].
        """
        if x_ND.is_meta:
            return x_ND.new_empty(x_ND.shape)
        quarter = self.width // 4
        exponents_Q = torch.arange(quarter, dtype=torch.float64, device=x_ND.device) / quarter
        halves = []
        for places_N, count in ((places_N3[:, 2], columns), (places_N3[:, 1], lines)):
            spread_N = places_N.float() / (count / self.base) / self.interpolation  # in fp32, as the reference
            angles_NQ = spread_N[:, None].double() * (1.0 / 10_000**exponents_Q)
            halves += [angles_NQ.sin(), angles_NQ.cos()]
        return (x_ND + torch.cat(halves, dim=1).float()).to(x_ND.dtype)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.base, self.interpolation

    @override
    def extra_repr(self) -> str:
        return f"{self.base} x {self.base}, divided by {self.interpolation:g}"


def sinusoids(entries: int, width: int) -> Tensor:
    """fp32 [entries, width]: sin(p / 10000^(2i / width)) for each i below half the width, then the cosines."""
    position = torch.arange(entries, dtype=torch.float64)[:, None]
    angle = position / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cat([angle.sin(), angle[:, : width // 2].cos()], dim=1).float()
