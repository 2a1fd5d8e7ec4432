"""A mixture of gated MLPs, of which a router picks k a token (arXiv:1701.06538; Mixtral: arXiv:2401.04088)."""

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from ridgeline.ops.activation import ACTIVATIONS
from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import WeightFormat, arithmetic, format_of
from ridgeline.ops.matrix import MatrixSpec, matrix_of
from ridgeline.ops.op import Kernel, Op
from ridgeline.ops.shard import WHOLE, Shard


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
    ) -> None:
        """`names`: what the checkpoint calls an expert's gate, up and down matrices. `width`: of all ranks together."""
        super().__init__()
        self.count, self.active, self.hidden, self.dtype = count, active, hidden, dtype
        self.width = shard.part(width, "columns of an expert")
        self.activation, self.renormalise = ACTIVATIONS[activation], renormalise
        column = MatrixSpec(hidden, width, dtype, split="column", shard=shard)
        row = MatrixSpec(width, hidden, dtype, split="row", shard=shard)
        self.specs = dict(zip(names, (column, column, row), strict=True))
        self.stored: WeightFormat | None = None

    def store(self, stored: WeightFormat | None) -> None:
        """As Linear.store, of every expert."""
        assert not len(self), "experts are stored in another form before they are created"
        self.stored = stored

    @property
    def runs(self) -> bool:
        """As Matrix.runs, of its matrices."""
        with torch.device("meta"):
            return all(matrix_of(spec, self.stored).runs for spec in self.specs.values())

    def expand(self) -> None:
        """Create every expert's parameters on the current device."""
        if len(self):
            return
        for _ in range(self.count):
            expert = nn.Module()
            for name, spec in self.specs.items():
                expert.add_module(name, matrix_of(spec, self.stored))
            self.append(expert)

    def parameter_count(self) -> int:
        """As Stored.parameter_count, of all experts."""
        return self.count * 3 * self.hidden * self.width

    def stored_bytes(self) -> float:
        """As Stored.stored_bytes, of all experts."""
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
        if x_TD.is_meta:
            return x_TD.new_empty(x_TD.shape)  # which are hit depends on data; the cost is an expectation
        weights, picked = self.route(router_TE)
        out_TD = torch.zeros_like(x_TD)
        for expert in torch.unique(picked).tolist():
            row, slot = (picked == expert).nonzero(as_tuple=True)
            gate, up, down = (getattr(self[expert], name) for name in self.specs)
            x = x_TD[row]
            y = down.product(self.activation(gate.product(x)) * up.product(x))
            out_TD.index_add_(0, row, (y * weights[row, slot, None]).to(out_TD.dtype))
        return out_TD

    def touched(self, tokens: float) -> float:
        """Distinct experts that `tokens` tokens are expected to hit under a balanced router: E (1 - (1 - k/E)^T)."""
        missed: float = (1 - self.active / self.count) ** tokens
        return self.count * (1 - missed)

    def cost_of(self, rows: int) -> Cost:
        """FLOPs of k experts a token, bytes of the experts hit."""
        run = rows * self.active
        return Cost(
            flops={self.number_format: 2.0 * run * 3 * self.hidden * self.width},
            weight_bytes=self.touched(rows) * self._expert_bytes(),
            activation_bytes=(2 * rows * self.hidden + 3 * run * self.width) * format_of(self.dtype).bytes,
        )

    def kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.kernels_of: a call each touched expert."""
        return (Kernel(self.kind, self.number_format, self.touched(rows), self.cost_of(rows)),)

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return arithmetic(self.dtype, self.stored)

    def signature(self) -> Hashable:
        return self.count, self.active, self.hidden, self.width, self.dtype, self.stored

    def extra_repr(self) -> str:
        return f"{self.active} of {self.count}, {self.hidden} x {self.width}"
