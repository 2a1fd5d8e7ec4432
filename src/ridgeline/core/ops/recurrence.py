"""Recurrent layers: ops with a state of fixed size per sequence, which every position updates.

The rows of one sequence run in chunks of at most `RECURRENT.size`. Within a chunk, matrix products combine pairs of
positions; between chunks, only the state is passed on. A single position is a chunk of one.

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
from ridgeline.core.ops.op import Launch, TypedOp
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import weight
from ridgeline.core.ops.work import RECURRENT, TOKENS, AttentionPattern, AttentionSum, RowAxis, Work


class RecurrenceContext(Protocol):
    """The part of the KVContext interface that a `Recurrence` calls."""

    def recur(self, op: "Recurrence", inputs: tuple[Tensor, ...]) -> Tensor:
        """Advance a recurrent op's states by the step's rows `inputs`, [T, ...] each, and return the outputs [T, W]."""


class Recurrence(TypedOp):
    """The base class of ops whose result depends on earlier positions only through a state.

    The FLOPs of the products count in the model's number format, in which common kernels compute them. The PyTorch path
    converts its inputs to the dtype of the state.
    """

    kind = "recurrence"
    reads_context = True
    row_entries: int
    """The count of numbers per position that enter and leave a recurrent op."""

    def __init__(self, layer: int, spec: StateSpec, width: int, dtype: torch.dtype) -> None:
        """Create the recurrent op of one layer.

        Args:
            layer: The index of the op's cache among the model's KV caches and recurrent states.
            spec: The size and dtype of the state.
            width: The entries of a result row.
            dtype: The dtype of input and result rows.
        """
        super().__init__()
        self.layer, self.spec, self.width, self.dtype = layer, spec, width, dtype
        self.attention_pattern: AttentionPattern = spec.reach

    @property
    @override
    def cache_spec(self) -> StateSpec:
        return self.spec

    def run(self, inputs: tuple[Tensor, ...], kv: RecurrenceContext) -> Tensor:
        """Return a recurrent op's outputs [T, W] for input rows, [T, ...] each, and advance the states."""
        if inputs[0].is_meta:
            return inputs[0].new_empty(len(inputs[0]), self.width, dtype=self.dtype)
        return kv.recur(self, inputs)

    @abstractmethod
    def advance(self, state_BN: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return a recurrent op's outputs [B, Q, W] for the next rows of B sequences, and the states after them.

        Args:
            state_BN: The states before.
            inputs: The next rows, [B, Q, ...] each.
        """

    # -- cost ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def products(self, sums: AttentionSum) -> float:
        """Return the FLOPs of a recurrent op's products over these numbers of positions and of pairs of positions."""

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """Return the cost of a recurrent op in a step.

        It comprises the products, one state read per sequence that has one, one state written per sequence, and the
        rows that enter and leave.
        """
        sums = work.attention[self.attention_pattern].total
        return self._cost(sums) if sums.queries else NO_COST

    @override
    def cost_of(self, rows: int) -> Cost:
        """Raise AssertionError: the cost depends on the sequences, which a row count does not contain."""
        raise AssertionError("a recurrence is priced by its sequences and pairs, not by rows")

    def _cost(self, sums: AttentionSum) -> Cost:
        """Return the cost of a recurrent op for one class of sequences, given as attention sums."""
        return Cost(
            {self.number_format: self.products(sums)},
            weight_bytes=self.stored_bytes(),
            kv_read_bytes=sums.keys * self.spec.slot_bytes,
            kv_write_bytes=sums.written * self.spec.slot_bytes,
            activation_bytes=sums.queries * self.row_entries * self.dtype.itemsize,
        )

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return a recurrent op's launches: one for all sequences with a single row, and one for each other."""
        attention = work.attention[self.attention_pattern]
        several = attention.few + attention.many
        classes = (("decode", 1, attention.one), ("prefill", several.sequences, several))
        return tuple(
            Launch(f"{self.kind}.{name}", self.number_format, calls, self._cost(sums))
            for name, calls, sums in classes
            if sums.sequences
        )


class ShortConvolution(Recurrence):
    """A causal depthwise convolution over the last positions, followed by an activation.

    Its state is the last kernel - 1 rows.
    """

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
        """Create the short causal convolution of one layer.

        Args:
            layer: The index of the op's cache among the model's KV caches and recurrent states.
            parts: The channels, over all ranks, of each part that the checkpoint concatenates; ranks divide each part.
            kernel: The number of positions under the kernel.
            dtype: The model's dtype.
            activation: The name of the activation in config.json.
            bias: Whether there is a bias.
            by_head: The number of heads into which each part is divided; rows then have all parts of the first head,
                then of the next. None if rows have the order of the checkpoint.
            shard: This rank's share of the channels.
        """
        own = tuple(shard.part(part, "channels") for part in parts)
        self.channels, self.kernel_size, self.row_entries = sum(own), kernel, 2 * sum(own)
        super().__init__(layer, StateSpec((kernel - 1) * self.channels, dtype), self.channels, dtype)
        self.activation, self.function = activation, ACTIVATIONS[activation]
        self.weight = weight(self.channels, 1, kernel, dtype=dtype)
        self.bias = weight(self.channels, dtype=dtype) if bias else None
        self._stored, self._heads, self._shard = parts, by_head and shard.part(by_head, "heads"), shard

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Return the convolution weights of this rank's channels, in the order of the input rows."""
        own = self._shard.slice(full, 0, self._stored)
        if self._heads is None:
            return {name: own}
        heads, parts = self._heads, [part // self._shard.size for part in self._stored]
        by_head = [part.view(heads, -1, *part.shape[1:]) for part in torch.split(own, parts)]
        return {name: torch.cat(by_head, dim=1).flatten(0, 1)}

    @override
    def forward(self, x_TX: Tensor, kv: RecurrenceContext, *more: Tensor) -> Tensor:
        """Return the convolution of x_TX [rows, ...] and of further channels of the same rows: [rows, C]."""
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
        """Return the FLOPs of a short convolution, 2 x kernel per number."""
        return 2.0 * self.kernel_size * self.channels * sums.queries

    @override
    def signature(self) -> Hashable:
        return self.channels, self.kernel_size, self.bias is None, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.channels} channels, kernel {self.kernel_size}, {self.activation}"


def in_chunks(
    chunk: Callable[..., tuple[Tensor, Tensor]], state: Tensor, rows: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Run `chunk(state, *rows) -> result, state` over chunks of RECURRENT.size positions, and concatenate the results.

    Positions are the third dimension of rows and results.

    Args:
        chunk: The function for one chunk.
        state: The state before the first position.
        rows: The inputs.

    Returns:
        The results of all positions, and the state after the last.
    """
    results = []
    for parts in zip(*(torch.split(each, RECURRENT.size, 2) for each in rows), strict=True):
        result, state = chunk(state, *parts)
        results.append(result)
    return (results[0] if len(results) == 1 else torch.cat(results, 2)), state


def through_state(
    state_BGKW: Tensor, q_BGQK: Tensor, k_BGQK: Tensor, u_BGRQV: Tensor, left_BGQR1: Tensor, decay_BGRQP: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what a chunk's queries read from a recurrent state [B, G, Q, R, V], and the state after the chunk.

    Queries read the state before the chunk, and the updates u of earlier positions of the chunk.

    Args:
        state_BGKW: The state before the chunk, K x (R x V).
        q_BGQK: The queries.
        k_BGQK: The keys.
        u_BGRQV: The update of each position, which is added to the state along its key.
        left_BGQR1: The share of the state before the chunk that remains at each position.
        decay_BGRQP: The decay between pairs of positions, from `pair_decay`.
    """
    k_BGKQ, heads, entries = k_BGQK.transpose(-1, -2), *u_BGRQV.shape[2::2]
    own_BGQRV = (((q_BGQK @ k_BGKQ)[:, :, None] * decay_BGRQP) @ u_BGRQV).transpose(2, 3)
    out_BGQRV = left_BGQR1 * (q_BGQK @ state_BGKW).view(*q_BGQK.shape[:3], heads, entries) + own_BGQRV
    kept_BG1W = left_BGQR1[:, :, -1:].expand(-1, -1, -1, -1, entries).flatten(3)
    written_BGQW = (decay_BGRQP[..., -1, :, None] * u_BGRQV).transpose(2, 3).flatten(3)
    return out_BGQRV, state_BGKW * kept_BG1W + k_BGKQ @ written_BGQW


def pair_decay(log_xQ: Tensor) -> Tensor:
    """Return the share of position p's update that remains at position q: [..., Q, P], 0 if p is later.

    Args:
        log_xQ: The logarithm of each position's decay of the state [..., Q].
    """
    rows = log_xQ.shape[-1]
    later = torch.ones(rows, rows, dtype=torch.bool, device=log_xQ.device).triu()
    # Sum the positions between p and q. Differences of cumulative sums would lose digits.
    between_xQP = log_xQ[..., None].expand(*log_xQ.shape, rows).masked_fill(later, 0.0).cumsum(-2)
    return between_xQP.masked_fill(later.triu(1), float("-inf")).exp()
