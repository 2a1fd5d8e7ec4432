"""Recurrent layers: ops that keep of a sequence a state of fixed size, which every position of it changes.

A step's rows of one sequence are run in chunks of at most `RECURRENT.size`: within a chunk pairs of positions meet in
products of matrices, between chunks only the state is passed on. A single position is a chunk of one.

Shapes: T rows of a step, B sequences with Q rows each, C channels, N numbers of a state, W width of a result.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.kv_layout import StateSpec
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import weight
from ridgeline.core.ops.work import RECURRENT, TOKENS, AttentionPattern, AttentionSum, RowAxis, Work


class RecurrenceContext(Protocol):
    """The part of a KVContext that a `Recurrence` calls."""

    def recur(self, op: "Recurrence", inputs: tuple[Tensor, ...]) -> Tensor:
        """Move the op's state of every sequence on by the step's rows of it, which `inputs` have [T, ...] -> [T, W]."""
        ...


class Recurrence(Op):
    """An op whose result at a position depends on the positions before it through a state alone.

    Its products are counted in the number format of the model, as kernels at hand make them; torch's path widens what
    comes in to the state's own.
    """

    kind = "recurrence"
    reads_context = True

    def __init__(self, layer: int, spec: StateSpec, width: int, dtype: torch.dtype) -> None:
        """layer: its place among what the model keeps. width: of a row of the result. dtype: of rows in and out."""
        super().__init__()
        self.layer, self.spec, self.width, self.dtype = layer, spec, width, dtype

    @property
    @override
    def reach(self) -> AttentionPattern:
        return self.spec.reach

    @property
    @override
    def kept_spec(self) -> StateSpec:
        return self.spec

    def run(self, inputs: tuple[Tensor, ...], kv: RecurrenceContext) -> Tensor:
        """Rows that come in, [T, ...] each -> [T, W], the states moved on."""
        if inputs[0].is_meta:
            return inputs[0].new_empty(len(inputs[0]), self.width, dtype=self.dtype)
        return kv.recur(self, inputs)

    @abstractmethod
    def advance(self, state_BN: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """States before, and rows [B, Q, ...] each that come next -> [B, Q, W], and the states after."""

    # -- cost ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def products(self, sums: AttentionSum) -> float:
        """FLOPs of the products over so many positions and pairs."""

    @property
    @abstractmethod
    def row_entries(self) -> int:
        """Numbers of a row, those that come in and those that go out."""

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """The products; a state read for every sequence that has one, and written for each; rows in and out."""
        sums = work.attention[self.reach].total
        return self._cost(sums) if sums.queries else NO_COST

    @override
    def cost_of(self, rows: int) -> Cost:
        """Rows do not say how many sequences they are of."""
        raise AssertionError("a recurrence is priced by its sequences and pairs, not by rows")

    def _cost(self, sums: AttentionSum) -> Cost:
        return Cost(
            {self.number_format: self.products(sums)},
            weight_bytes=self.stored_bytes(),
            kv_read_bytes=sums.keys * self.spec.slot_bytes,
            kv_write_bytes=sums.written * self.spec.slot_bytes,
            activation_bytes=sums.queries * self.row_entries * self.dtype.itemsize,
        )

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """As Op.launches: one call for the sequences with a single row, and one for each of the others."""
        attention = work.attention[self.reach]
        several = attention.few + attention.many
        classes = (("decode", 1, attention.one), ("prefill", several.sequences, several))
        return tuple(
            Launch(f"{self.kind}.{name}", self.number_format, calls, self._cost(sums))
            for name, calls, sums in classes
            if sums.sequences
        )

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.dtype).name


class ShortConvolution(Recurrence):
    """act of a convolution of each channel with its own last positions; the state is the last kernel - 1 rows."""

    def __init__(
        self,
        layer: int,
        parts: tuple[int, ...],
        kernel: int,
        dtype: torch.dtype,
        *,
        activation: str = "silu",
        bias: bool = False,
        by_head: int | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """parts: channels of all ranks that the checkpoint stores after each other, each divided over ranks. by_head:
        of how many heads each part is; its rows then lie head by head here: all parts of the first head, then of the
        next. None where they lie as they are stored.
        """
        own = tuple(shard.part(part, "channels") for part in parts)
        self.channels, self.kernel_size = sum(own), kernel
        super().__init__(layer, StateSpec((kernel - 1) * self.channels, dtype), self.channels, dtype)
        self.activation, self.function = activation, ACTIVATIONS[activation]
        self.weight = weight(self.channels, 1, kernel, dtype=dtype)
        self.bias = weight(self.channels, dtype=dtype) if bias else None
        self._stored, self._heads, self._shard = parts, by_head and shard.part(by_head, "heads"), shard

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take: the channels of this rank, in the order of the rows that come in."""
        own = self._shard.slice(full, 0, self._stored)
        if self._heads is None:
            return {name: own}
        heads, parts = self._heads, [part // self._shard.size for part in self._stored]
        by_head = [part.view(heads, -1, *part.shape[1:]) for part in torch.split(own, parts)]
        return {name: torch.cat(by_head, dim=1).flatten(0, 1)}

    @override
    def forward(self, x_TX: Tensor, kv: RecurrenceContext, *more: Tensor) -> Tensor:
        """x_TX [rows, ...], and further channels of the same rows, C numbers of each in all -> [rows, C]."""
        return self.run((x_TX, *more), kv)

    @override
    def advance(self, state_BN: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x_BQC = torch.cat([x.flatten(2) for x in inputs], dim=2) if len(inputs) > 1 else inputs[0].flatten(2)
        before_BCK = state_BN.view(len(state_BN), self.channels, self.kernel_size - 1)
        all_BCL = torch.cat([before_BCK, x_BQC.transpose(1, 2)], dim=2)
        y_BCQ = functional.conv1d(all_BCL, self.weight, self.bias, groups=self.channels)
        after_BCK = all_BCL[:, :, all_BCL.shape[2] - self.kernel_size + 1 :]
        return self.function(y_BCQ).transpose(1, 2), after_BCK.flatten(1)

    @override
    def products(self, sums: AttentionSum) -> float:
        """2 x kernel a number."""
        return 2.0 * self.kernel_size * self.channels * sums.queries

    @property
    @override
    def row_entries(self) -> int:
        return 2 * self.channels

    @override
    def signature(self) -> Hashable:
        return self.channels, self.kernel_size, self.bias is None, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.channels} channels, kernel {self.kernel_size}, {self.activation}"


def in_chunks(
    chunk: Callable[..., tuple[Tensor, Tensor]], state: Tensor, rows: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Run `chunk(state, *rows) -> result, state` over rows that lie along the third dimension, as those of the result
    do, RECURRENT.size at a time.
    """
    results = []
    for parts in zip(*(torch.split(each, RECURRENT.size, 2) for each in rows), strict=True):
        result, state = chunk(state, *parts)
        results.append(result)
    return (results[0] if len(results) == 1 else torch.cat(results, 2)), state


def through_state(
    state_BGKW: Tensor, q_BGQK: Tensor, k_BGQK: Tensor, u_BGRQV: Tensor, left_BGQR1: Tensor, decay_BGRQP: Tensor
) -> tuple[Tensor, Tensor]:
    """What a state of K x (R x V) answers to the queries of a chunk whose keys add u to it -> [B, G, Q, R, V], and the
    state after. left: of the state before the chunk at each position. decay: as of pair_decay.
    """
    k_BGKQ, heads, entries = k_BGQK.transpose(-1, -2), *u_BGRQV.shape[2::2]
    own_BGQRV = (((q_BGQK @ k_BGKQ)[:, :, None] * decay_BGRQP) @ u_BGRQV).transpose(2, 3)
    out_BGQRV = left_BGQR1 * (q_BGQK @ state_BGKW).view(*q_BGQK.shape[:3], heads, entries) + own_BGQRV
    kept_BG1W = left_BGQR1[:, :, -1:].expand(-1, -1, -1, -1, entries).flatten(3)
    written_BGQW = (decay_BGRQP[..., -1, :, None] * u_BGRQV).transpose(2, 3).flatten(3)
    return out_BGQRV, state_BGKW * kept_BG1W + k_BGKQ @ written_BGQW


def pair_decay(log_xQ: Tensor) -> Tensor:
    """Logarithms of what each position leaves of the state before it [..., Q] -> what is left at position q of what p
    wrote: [..., Q, P], 0 where p is later.
    """
    rows = log_xQ.shape[-1]
    later = torch.ones(rows, rows, dtype=torch.bool, device=log_xQ.device).triu()
    # Sums of what lies between, not differences of sums from the first on, which would lose digits.
    between_xQP = log_xQ[..., None].expand(*log_xQ.shape, rows).masked_fill(later, 0.0).cumsum(-2)
    return between_xQP.masked_fill(later.triu(1), float("-inf")).exp()
