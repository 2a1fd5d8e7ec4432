"""Embeddings: tables with one stored row per token id or position.

Shapes: T rows of a step, N gathered rows, E entries of a table, D hidden.
"""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import Elementwise
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix, matrix_of
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.op import OpBackend, TypedOp
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare, weight
from ridgeline.core.ops.weight_slot import WeightSlot


class EmbeddingBackend(OpBackend):
    """The methods of a backend that embeddings call, implemented in PyTorch."""

    def gather(self, table_ED: Tensor, numbers_N: Tensor) -> Tensor:
        """Return the rows of a table with these indices, int64 [N]: [N, D]."""
        return functional.embedding(numbers_N, table_ED)


class Embedding(TypedOp):
    """A lookup in a table [entries, width], of token embeddings or learned positions (GPT-2).

    If ranks divide the entries, rows of other ranks are zero, so that an AllReduce adds up to the result.

    Attributes:
        scale: The factor on the rows, in the model's dtype (Gemma); None for none.
        stored: The weight format of the table; None for the model's dtype.
        weight: The table in the model's dtype, or in a format that is only priced.
        table: The quantised table, which replaces `weight` and which an LM head may share; None if there are no codes.
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
        self.set_weight_formats({"weight": None})

    @override
    def weight_slots(self) -> Mapping[str, WeightSlot]:
        return {"weight": WeightSlot("", "embedding", self.width, self.entries)}

    @override
    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
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
    def unfilled_copy(self) -> "Embedding":
        other = Embedding(self.entries, self.width, self.dtype, self.shard, scale=self.scale)
        other.set_weight_formats({"weight": self.stored})
        return other

    @property
    @override
    def is_runnable(self) -> bool:
        return self.stored is None or self.table is not None

    @override
    def tied_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters of an embedding table, by the names that the matrix of a tied LM head has for them."""
        return dict((self if self.table is None else self.table).named_parameters(recurse=False))

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        if self.table is not None:
            return self.table.storage_shares()
        count = self.own_entries * self.width
        nbytes = (
            count * self.dtype.itemsize if self.stored is None else self.stored.nbytes(self.own_entries, self.width)
        )
        return (StorageShare(self.stored, count, float(nbytes)),)

    @override
    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the embeddings of token ids or positions, int64 [rows]: [rows, width]."""
        if ids_T.is_meta:
            return torch.empty(len(ids_T), self.width, dtype=self.dtype, device="meta")
        x_TD = self._gather(ids_T)
        return x_TD if self.scale is None else x_TD * torch.tensor(self.scale, dtype=x_TD.dtype)

    def _gather(self, ids_T: Tensor) -> Tensor:
        """Return the embeddings of token ids or positions, with rows of zeros for entries that other ranks hold."""
        if self.shard.size == 1:
            return self._rows(ids_T)
        local_T = ids_T - self.shard.rank * self.own_entries
        own_T = (local_T >= 0) & (local_T < self.own_entries)
        return self._rows(local_T.clamp(0, self.own_entries - 1)) * own_T[:, None]

    def _rows(self, ids_T: Tensor) -> Tensor:
        """Return the rows with these indices of this rank's part of an embedding table."""
        if self.table is not None:
            return self.table.rows(ids_T)
        assert self.weight is not None
        return self.backend.gather(self.weight, ids_T)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of the table rows that a step gathers, not of the whole table: one token reads one row."""
        row = self.width * self.dtype.itemsize
        read = row if self.stored is None else self.stored.nbytes(1, self.width)
        return Cost(weight_bytes=rows * read / self.shard.size, activation_bytes=rows * row)

    @override
    def signature(self) -> Hashable:
        return self.own_entries, self.width, self.dtype, self.stored, self.shard.size, self.scale is None

    @override
    def extra_repr(self) -> str:
        return f"{self.own_entries} x {self.width}"


class IndexedEmbedding(Embedding):
    """An embedding whose index is computed from a number n: (n + offset) // every, modulo the number of entries.

    It serves learned positions that start at a later row (RoBERTa), and token types: ids of the second text are shifted
    by the vocabulary size, so the quotient tells which of two texts they belong to (BERT).
    """

    def __init__(self, entries: int, width: int, dtype: torch.dtype, *, offset: int = 0, every: int = 1) -> None:
        super().__init__(entries, width, dtype)
        self.offset, self.every = offset, every

    @override
    def forward(self, ids_T: Tensor) -> Tensor:
        return super().forward(ids_T if ids_T.is_meta else (ids_T + self.offset) // self.every % self.entries)


class PlacedEmbedding(Embedding):
    """A token embedding in which given rows, such as those of an image encoder, replace some tokens.

    An id below 0 selects such a row, -1 the first.
    """

    @override
    def forward(self, ids_T: Tensor, placed_ED: Tensor | None = None) -> Tensor:
        """Return the rows of token ids, int64 [rows], with given rows for negative ids: [rows, width].

        Args:
            ids_T: The token ids; -1 - i selects row i of `placed_ED`.
            placed_ED: The given rows [other rows, width]; None if all ids are tokens.
        """
        if placed_ED is None or ids_T.is_meta:
            return super().forward(ids_T)
        x_TD = super().forward(ids_T.clamp(min=0))
        placed_T = ids_T < 0
        x_TD[placed_T] = placed_ED[-1 - ids_T[placed_T]]
        return x_TD


class EitherEmbedding(Elementwise):
    """The choice between rows of two vocabularies: the first for ids below `entries`, the second for all others."""

    kind = "embedding"
    kernel_name = "elementwise.plain"
    FLOPS_PER_ELEMENT = 0

    def __init__(self, entries: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self.entries = entries

    @override
    def forward(self, first_TD: Tensor, second_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Return the embedding [rows, width] of each id, int64 [rows], from the table of the id's vocabulary."""
        if ids_T.is_meta:
            return first_TD.new_empty(first_TD.shape)
        return torch.where((ids_T < self.entries)[:, None], first_TD, second_TD)


class SinusoidalPositions(Elementwise):
    """The addition of sinusoidal position embeddings (Vaswani et al., arXiv:1706.03762), computed and not loaded.

    The sines are the first half of a row, as in Marian, and not every second entry.
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
        """Return x_TD [rows, width] plus the sinusoids of int64 positions [rows]."""
        if x_TD.is_meta:
            return x_TD.new_empty(x_TD.shape)
        return x_TD + self.table.to(x_TD.device)[positions_T]

    @override
    def extra_repr(self) -> str:
        return f"{self.entries} x {self.width}"


class GridPositions(Elementwise):
    """The addition of two-dimensional sinusoidal position embeddings to the rows of an image's patches.

    Half of a row has the sines and cosines of its column, the other half those of its line (He et al.,
    arXiv:2111.06377, after Dosovitskiy et al., arXiv:2010.11929). The positions of an image of any size are scaled to
    those of the size that the model was first trained on (PixArt-alpha, arXiv:2310.00426, section 2.4), which has
    `base` patches per side, and divided by `interpolation`.
    """

    kind = "embedding"
    kernel_name = "elementwise.angles"
    FLOPS_PER_ELEMENT = 3  # angle, cos or sin as one, sum

    def __init__(self, width: int, dtype: torch.dtype, base: int, interpolation: float) -> None:
        """Create the op that adds sinusoidal positions to an image's patches.

        Args:
            width: The entries of a row, a multiple of 4.
            dtype: The dtype of the rows.
            base: The patches per side of the image size that the model was first trained on.
            interpolation: The divisor of the scaled positions.
        """
        super().__init__(width, dtype)
        self.base, self.interpolation = base, interpolation

    @override
    def forward(self, x_ND: Tensor, places_N3: Tensor, lines: int, columns: int) -> Tensor:
        """Return x_ND [rows, width] plus the embeddings of the patches' positions.

        Args:
            x_ND: The rows of the patches.
            places_N3: The frame, line and column of each patch, int64 [rows, 3].
            lines: The number of lines of patches in the image.
            columns: The number of columns of patches in the image.
        """
        if x_ND.is_meta:
            return x_ND.new_empty(x_ND.shape)
        quarter = self.width // 4
        exponents_Q = torch.arange(quarter, dtype=torch.float64, device=x_ND.device) / quarter
        halves = []
        for places_N, count in ((places_N3[:, 2], columns), (places_N3[:, 1], lines)):
            spread_N = places_N.float() / (count / self.base) / self.interpolation  # in fp32, as in the reference
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
    """Return sinusoidal position embeddings, fp32 [entries, width]: sines in the first half, then cosines.

    The sines are sin(p / 10000^(2i / width)) for each i below width / 2.
    """
    position = torch.arange(entries, dtype=torch.float64)[:, None]
    angle = position / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cat([angle.sin(), angle[:, : width // 2].cos()], dim=1).float()
