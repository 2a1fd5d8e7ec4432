"""A mixture of gated MLPs, of which a router picks k a token (arXiv:1701.06538; Mixtral: arXiv:2401.04088)."""

from collections.abc import Hashable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.ops.activation import ACTIVATIONS
from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import WeightFormat, arithmetic, format_of
from ridgeline.ops.op import Kernel, Op, weight
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.work import Work


class Matrix(nn.Module):
    """One matrix of one expert, under the name that the checkpoint gives it."""

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype, shard: Shard, shard_dim: int) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs, dtype=dtype)
        self.shard, self.shard_dim = shard, shard_dim

    def take(self, name: str, full: Tensor) -> Tensor:
        """As Op.take."""
        return self.shard.slice(full, self.shard_dim)


class Experts(nn.ModuleList, Op):
    """The experts of one layer; a step reads the weights of each expert that some token picked, once.

    Priced from its shapes; `expand` creates the parameters of all experts when they are to be filled, because a model
    of 12,000 experts that is only priced should not wait for 36,000 modules.
    """

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
        stored: WeightFormat | None = None,
    ) -> None:
        """`names`: what the checkpoint calls an expert's gate, up and down matrices. `width`: of all ranks together."""
        super().__init__()
        self.count, self.active, self.hidden, self.dtype = count, active, hidden, dtype
        self.width = shard.part(width, "columns of an expert")
        self.activation, self.renormalise = ACTIVATIONS[activation], renormalise
        self.names, self.shard, self.stored = names, shard, stored

    def expand(self) -> None:
        """Create every expert's parameters on the current device."""
        if len(self):
            return
        gate, up, down = self.names
        for _ in range(self.count):
            expert = nn.Module()
            expert.add_module(gate, Matrix(self.width, self.hidden, self.dtype, self.shard, shard_dim=0))
            expert.add_module(up, Matrix(self.width, self.hidden, self.dtype, self.shard, shard_dim=0))
            expert.add_module(down, Matrix(self.hidden, self.width, self.dtype, self.shard, shard_dim=1))
            self.append(expert)

    def parameter_count(self) -> int:
        """As Op.parameter_count, of all experts."""
        return self.count * 3 * self.hidden * self.width

    def stored_bytes(self) -> float:
        """As Op.stored_bytes, of all experts."""
        return self.count * self._expert_bytes()

    def _expert_bytes(self) -> float:
        if self.stored is None:
            return 3 * self.hidden * self.width * format_of(self.dtype).bytes
        return 2 * self.stored.nbytes(self.width, self.hidden) + self.stored.nbytes(self.hidden, self.width)

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
            gate, up, down = self[expert].parameters()
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
        rows = work.tokens * self.active
        return Cost(
            flops={self.number: 2.0 * rows * 3 * self.hidden * self.width},
            weight_bytes=self.touched(work.tokens) * self._expert_bytes(),
            activation_bytes=(2 * work.tokens * self.hidden + 3 * rows * self.width) * format_of(self.dtype).bytes,
        )

    def kernels(self, work: Work) -> tuple[Kernel, ...]:
        """As Op.kernels: a call each touched expert."""
        return (Kernel(self.kernel(work), self.number, self.touched(work.tokens), self.cost(work)),)

    @property
    def number(self) -> str:
        """As Op.number."""
        return arithmetic(self.dtype, self.stored)

    def signature(self) -> Hashable:
        return self.count, self.active, self.hidden, self.width, self.dtype, self.stored

    def extra_repr(self) -> str:
        return f"{self.active} of {self.count}, {self.hidden} x {self.width}"
