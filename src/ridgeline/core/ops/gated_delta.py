"""The gated delta rule (Yang et al., arXiv:2412.06464), a linear attention whose state maps keys to values.

Each position replaces, in part, the value that the state maps its key to by its own value.

    S_t = a_t S_(t-1) + k_t u_t,  u_t = b_t (v_t - a_t k_t S_(t-1)),  out_t = q_t S_t

Within a chunk, the u of all positions are the solution of a triangular system, the same numbers but for rounding.

Shapes: as in recurrence.py, and G key heads, R value heads per key head, K and V entries of a key and of a value.
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

_EPS = 1e-6  # added to the squared length of keys and queries


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """The head counts and sizes of a gated delta rule."""

    key_heads: int
    """The number of this rank's key heads under the gated delta rule."""
    share: int
    """The number of value heads that share each key head."""
    key: int
    """The number of entries of each head's key."""
    value: int
    """The number of entries of each head's value."""

    @property
    def value_heads(self) -> int:
        """The number of this rank's value heads under the gated delta rule."""
        return self.key_heads * self.share


class GatedDeltaRule(Recurrence):
    """The gated delta rule of one layer, with L2-normalised queries and keys and one fp32 state per value head.

    Attributes:
        A_log: The logarithm of the decay rate of each value head: a = exp(-exp(A_log) softplus(x + dt_bias)).
        dt_bias: The bias in that formula, for each value head.
    """

    unnamed = True

    def __init__(self, layer: int, sizes: DeltaSizes, dtype: torch.dtype, shard: Shard = WHOLE) -> None:
        numbers = sizes.value_heads * sizes.key * sizes.value
        super().__init__(layer, StateSpec(numbers, torch.float32), sizes.value_heads * sizes.value, dtype)
        self.sizes, self.shard = sizes, shard
        self.row_entries = 2 * sizes.key_heads * sizes.key + sizes.value_heads * (2 * sizes.value + 2)
        self.A_log = weight(sizes.value_heads, dtype=dtype)
        self.dt_bias = weight(sizes.value_heads, dtype=dtype)

    @override
    def forward(
        self, q_TX: Tensor, k_TX: Tensor, v_TX: Tensor, b_TX: Tensor, a_TX: Tensor, kv: RecurrenceContext
    ) -> Tensor:
        """Return the gated delta rule's outputs for a step's rows: [rows, G x R x V].

        Args:
            q_TX: The queries [rows, ...] of G x K numbers.
            k_TX: The keys, of G x K numbers.
            v_TX: The values, of G x R x V numbers.
            b_TX: The weight of each position's value before the sigmoid, of G x R numbers.
            a_TX: The decay of each position before softplus, of G x R numbers.
            kv: The KV context of the step.
        """
        return self.run((q_TX, k_TX, v_TX, b_TX, a_TX), kv)

    @override
    def advance(self, state_BN: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Advance the gated delta rule's states in fp32, and return the outputs of the rows and the new states."""
        s, heads = self.sizes, (*inputs[0].shape[:2], self.sizes.key_heads)
        q, k, v, b, a = (x.float() for x in inputs)
        q_BGQK, k_BGQK = (x.reshape(*heads, s.key).transpose(1, 2) for x in (q, k))
        v_BGQRV = v.reshape(*heads, s.share, s.value).transpose(1, 2)
        b_BGQR, a_BGQR = (x.reshape(*heads, s.share).transpose(1, 2) for x in (b, a))
        rate_G1R, bias_G1R = (x.view(s.key_heads, 1, s.share) for x in (self.A_log.float().exp(), self.dt_bias.float()))
        log_BGQR = -rate_G1R * functional.softplus(a_BGQR + bias_G1R)
        # The state has a row per key entry, and a column per value entry of all heads that share the key.
        state_BGKW = state_BN.view(len(state_BN), s.key_heads, s.key, s.share * s.value)
        out_BGQRV, state_BGKW = in_chunks(
            _chunk, state_BGKW, (_unit(q_BGQK) / s.key**0.5, _unit(k_BGQK), v_BGQRV, log_BGQR, b_BGQR.sigmoid())
        )
        return out_BGQRV.transpose(1, 2).flatten(2).to(self.dtype), state_BGKW.flatten(1)

    @override
    def products(self, sums: AttentionSum) -> float:
        """Return the FLOPs of the gated delta rule's products, for these numbers of positions and pairs.

        They are 6 x key x value per position and value head, and those of pairs within a chunk. The former are the
        products of the state with key and query, and the update. The latter are the products of keys with earlier keys,
        the substitution that follows, the products of queries with keys, and the sums of updates.
        """
        s, earlier = self.sizes, sums.pairs - sums.queries
        across = 6.0 * s.value_heads * s.key * s.value * sums.queries
        return across + 2.0 * (s.key_heads * s.key + s.value_heads * s.value) * (sums.pairs + earlier)

    @override
    def signature(self) -> Hashable:
        return self.sizes, self.dtype

    @override
    def extra_repr(self) -> str:
        s = self.sizes
        return f"{s.value_heads} states of {s.key} x {s.value}"


def _unit(x_xK: Tensor) -> Tensor:
    """Scale vectors to length 1 (L2 normalisation)."""
    return x_xK * torch.rsqrt(x_xK.square().sum(dim=-1, keepdim=True) + _EPS)


def _chunk(
    state_BGKW: Tensor, q_BGQK: Tensor, k_BGQK: Tensor, v_BGQRV: Tensor, log_BGQR: Tensor, beta_BGQR: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gated delta rule's outputs for one chunk of positions, and the state after it.

    Args:
        state_BGKW: The state before the chunk.
        q_BGQK: The queries.
        k_BGQK: The keys.
        v_BGQRV: The values.
        log_BGQR: The logarithm of each position's decay of the state.
        beta_BGQR: The weight of each position's value.
    """
    decay_BGRQP = pair_decay(log_BGQR.transpose(2, 3))
    left_BGQR1 = log_BGQR.cumsum(2).exp()[..., None]  # the share of the state before the chunk
    known_BGQRV = left_BGQR1 * (k_BGQK @ state_BGKW).view(v_BGQRV.shape)
    u_BGRQV = (beta_BGQR[..., None] * (v_BGQRV - known_BGQRV)).transpose(2, 3)
    if k_BGQK.shape[2] > 1:
        # Each u depends on those of earlier positions, in proportion to the similarity of their keys.
        system_BGRQP = (
            beta_BGQR.transpose(2, 3)[..., None] * (k_BGQK @ k_BGQK.transpose(-1, -2))[:, :, None] * decay_BGRQP
        )
        u_BGRQV = torch.linalg.solve_triangular(system_BGRQP, u_BGRQV, upper=False, unitriangular=True)
    return through_state(state_BGKW, q_BGQK, k_BGQK, u_BGRQV, left_BGQR1, decay_BGRQP)
