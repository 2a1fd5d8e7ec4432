"""A mixture of gated MLPs, of which a router picks k a token (arXiv:1701.06538; Mixtral: arXiv:2401.04088)."""

from collections.abc import Hashable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.ops.activation import ACTIVATIONS
from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op, weight
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.work import Work


class Matrix(nn.Module):
    """One matrix of one expert, under the name that the checkpoint gives it."""

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype, shard_dim: int) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs, dtype=dtype)
        self._shard_dim = shard_dim

    def shard_dim(self, name: str) -> int | None:
        """As Linear.shard_dim."""
        return self._shard_dim


class Expert(nn.Module):
    """gate, up and down of one expert, named as the checkpoint names them."""

    def __init__(self, hidden: int, width: int, dtype: torch.dtype, names: tuple[str, str, str]) -> None:
        super().__init__()
        gate, up, down = names
        self.add_module(gate, Matrix(width, hidden, dtype, shard_dim=0))
        self.add_module(up, Matrix(width, hidden, dtype, shard_dim=0))
        self.add_module(down, Matrix(hidden, width, dtype, shard_dim=1))

    def matrices(self) -> tuple[Tensor, ...]:
        """The weights of gate, up and down."""
        return tuple(self.parameters())


class Experts(nn.ModuleList, Op):
    """The experts of one layer; a step reads the weights of each expert that some token picked, once."""

    kind = "experts"

    def __init__(
        self,
        count: int,
        active: int,
        hidden: int,
        width: int,
        activation: str,
        dtype: torch.dtype,
        *,
        renormalise: bool,
        names: tuple[str, str, str],
        shard: Shard = WHOLE,
    ) -> None:
        part = shard.part(width, "columns of an expert")
        super().__init__(Expert(hidden, part, dtype, names) for _ in range(count))
        self.count, self.active, self.hidden, self.width, self.dtype = count, active, hidden, part, dtype
        self.activation = ACTIVATIONS[activation]
        self.renormalise = renormalise

    def route(self, router_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Router logits [rows, experts] -> weights fp32 and ids int64 of the experts picked, each [rows, active]."""
        probabilities = router_TE.float().softmax(dim=-1)
        weights, picked = probabilities.topk(self.active, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, picked

    def forward(self, x_TD: Tensor, router_TE: Tensor) -> Tensor:
        """x_TD [rows, hidden], router_TE [rows, experts] -> [rows, hidden]."""
        weights, picked = self.route(router_TE)
        out_TD = torch.zeros_like(x_TD)
        if x_TD.is_meta:
            return out_TD  # which experts are hit depends on data; their cost is an expectation over the router
        for expert in torch.unique(picked).tolist():
            row, slot = (picked == expert).nonzero(as_tuple=True)
            gate, up, down = self[expert].matrices()
            x = x_TD[row]
            y = functional.linear(self.activation(functional.linear(x, gate)) * functional.linear(x, up), down)
            out_TD.index_add_(0, row, (y * weights[row, slot, None]).to(out_TD.dtype))
        return out_TD

    def touched(self, tokens: float) -> float:
        """Distinct experts that `tokens` tokens are expected to hit under a balanced router: E (1 - (1 - k/E)^T)."""
        missed: float = (1 - self.active / self.count) ** tokens
        return self.count * (1 - missed)

    def cost(self, work: Work) -> Cost:
        """FLOPs of k experts a token, bytes of the experts hit."""
        number = format_of(self.dtype)
        expert = 3 * self.hidden * self.width
        rows = work.tokens * self.active
        return Cost(
            flops={number.name: 2.0 * rows * expert},
            weight_bytes=self.touched(work.tokens) * expert * number.bytes,
            activation_bytes=(2 * work.tokens * self.hidden + 3 * rows * self.width) * number.bytes,
        )

    def signature(self) -> Hashable:
        return self.count, self.active, self.hidden, self.width, self.dtype

    def extra_repr(self) -> str:
        return f"{self.active} of {self.count}, {self.hidden} x {self.width}"
