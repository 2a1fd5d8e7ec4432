"""The state space model of Mamba-2 (Dao and Gu, arXiv:2405.21060), whose state decays by one scalar per head.

Each position adds the outer product of B and its scaled input.

    S_t = a_t S_(t-1) + B_t (d_t x_t),  out_t = C_t S_t + D x_t,  a_t = exp(-exp(A_log) d_t)

Shapes: as in recurrence.py, and G groups of heads that share B and C, R heads of each, P entries of a head, N rows of a
state.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.kv_layout import StateSpec
from ridgeline.core.ops.recurrence import Recurrence, RecurrenceContext, in_chunks, pair_decay, through_state
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import weight
from ridgeline.core.ops.work import AttentionSum


@dataclass(frozen=True, slots=True)
class StateSpaceSizes:
    """The head counts and sizes of a Mamba-2 layer."""

    groups: int
    """The number of this rank's groups of Mamba-2 heads that share B and C."""
    share: int
    """The number of heads in each group that shares B and C."""
    head: int
    """The number of entries of a Mamba-2 head."""
    state: int
    """The number of rows of a Mamba-2 head's state."""

    @property
    def heads(self) -> int:
        """The number of Mamba-2 heads of this rank."""
        return self.groups * self.share


class StateSpace(Recurrence):
    """The selective scan of a Mamba-2 layer, with fp32 states.

    Attributes:
        A_log: The logarithm of each head's decay rate.
        dt_bias: The bias of each head's step size.
        D: The weight of each head's skip connection from input to output.
    """

    unnamed = True

    def __init__(
        self, layer: int, sizes: StateSpaceSizes, dtype: torch.dtype, least: float, shard: Shard = WHOLE
    ) -> None:
        """Create the Mamba-2 scan of one layer.

        Args:
            layer: The index of the op's cache among the model's KV caches and recurrent states.
            sizes: The head counts and sizes.
            dtype: The model's dtype.
            least: The smallest step size.
            shard: This rank's share of the heads.
        """
        numbers = sizes.heads * sizes.head * sizes.state
        super().__init__(layer, StateSpec(numbers, torch.float32), sizes.heads * sizes.head, dtype)
        self.sizes, self.least, self.shard = sizes, least, shard
        self.row_entries = 2 * sizes.heads * sizes.head + 2 * sizes.groups * sizes.state + sizes.heads
        self.A_log = weight(sizes.heads, dtype=dtype)
        self.dt_bias = weight(sizes.heads, dtype=dtype)
        self.D = weight(sizes.heads, dtype=dtype)

    @override
    def forward(self, x_TX: Tensor, b_TX: Tensor, c_TX: Tensor, step_TX: Tensor, kv: RecurrenceContext) -> Tensor:
        """Return the outputs of a Mamba-2 scan for a step's rows: [rows, G x R x P].

        Args:
            x_TX: The inputs [rows, ...] of G x R x P numbers.
            b_TX: B, of G x N numbers.
            c_TX: C, of G x N numbers.
            step_TX: The step size before softplus, of G x R numbers.
            kv: The KV context of the step.
        """
        return self.run((x_TX, b_TX, c_TX, step_TX), kv)

    @override
    def advance(self, state_BN: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Advance the states of a Mamba-2 layer in fp32, and return the outputs of the rows and the new states."""
        s, groups = self.sizes, (*inputs[0].shape[:2], self.sizes.groups)
        x, b, c, step = (each.float() for each in inputs)
        x_BGQRP = x.reshape(*groups, s.share, s.head).transpose(1, 2)
        b_BGQN, c_BGQN = (each.reshape(*groups, s.state).transpose(1, 2) for each in (b, c))
        rate_G1R, bias_G1R, beside_G1R = (
            each.view(s.groups, 1, s.share) for each in (self.A_log.float().exp(), self.dt_bias.float(), self.D.float())
        )
        step_BGQR = step.reshape(*groups, s.share).transpose(1, 2)
        step_BGQR = functional.softplus(step_BGQR + bias_G1R).clamp(min=self.least)
        state_BGNW = state_BN.view(len(state_BN), s.groups, s.state, s.share * s.head)
        brought_BGQRP = step_BGQR[..., None] * x_BGQRP
        out_BGQRP, state_BGNW = in_chunks(_chunk, state_BGNW, (c_BGQN, b_BGQN, brought_BGQRP, -rate_G1R * step_BGQR))
        out_BGQRP = out_BGQRP + beside_G1R[..., None] * x_BGQRP
        return out_BGQRP.transpose(1, 2).flatten(2).to(self.dtype), state_BGNW.flatten(1)

    @override
    def products(self, sums: AttentionSum) -> float:
        """Return the FLOPs of a Mamba-2 scan: 4 x head x state per position and head, and those of pairs in a chunk.

        The former are the update of the state and its product with C. The latter are the products of C with B in each
        group, and the sums of updates in each head.
        """
        s = self.sizes
        across = 4.0 * s.heads * s.head * s.state * sums.queries
        return across + 2.0 * (s.groups * s.state + s.heads * s.head) * sums.pairs

    @override
    def signature(self) -> Hashable:
        return self.sizes, self.dtype

    @override
    def extra_repr(self) -> str:
        s = self.sizes
        return f"{s.heads} states of {s.state} x {s.head}"


def _chunk(
    state_BGNW: Tensor, c_BGQN: Tensor, b_BGQN: Tensor, brought_BGQRP: Tensor, log_BGQR: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a Mamba-2 scan for one chunk of positions, and the state after it.

    Args:
        state_BGNW: The state before the chunk.
        c_BGQN: C, which reads the state.
        b_BGQN: B, along which the state is updated.
        brought_BGQRP: The inputs times their step sizes.
        log_BGQR: The logarithm of each position's decay of the state.
    """
    left_BGQR1, decay_BGRQS = log_BGQR.cumsum(2).exp()[..., None], pair_decay(log_BGQR.transpose(2, 3))
    return through_state(state_BGNW, c_BGQN, b_BGQN, brought_BGQRP.transpose(2, 3), left_BGQR1, decay_BGRQS)
