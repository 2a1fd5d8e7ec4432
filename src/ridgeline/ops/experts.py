"""A mixture of gated MLPs, of which a router picks k a token (arXiv:1701.06538; Mixtral: arXiv:2401.04088)."""

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ridgeline.ops.activation import ACTIVATIONS
from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import WeightFormat, arithmetic, format_of
from ridgeline.ops.matrix import Matrix, MatrixSpec, matrix_of
from ridgeline.ops.op import Kernel, Op, stored_name
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.stored import Share


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
        gathered: int = 1,
    ) -> None:
        """`names`: what the checkpoint calls an expert's gate, up and down matrices. `width`: of all ranks together.
        `gathered`: ranks whose rows, as many as this one's, come together here; priced, not run."""
        super().__init__()
        self.count, self.active, self.hidden, self.dtype = count, active, hidden, dtype
        self.gathered = gathered
        self.width = shard.part(width, "columns of an expert")
        self.activation, self.renormalise = ACTIVATIONS[activation], renormalise
        column = MatrixSpec(hidden, width, dtype, split="column", shard=shard)
        row = MatrixSpec(width, hidden, dtype, split="row", shard=shard)
        self.specs = dict(zip(names, (column, column, row), strict=True))
        self.stored: dict[str, WeightFormat | None] = dict.fromkeys(names)

    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        """As Linear.store, of each matrix of every expert by its name."""
        assert not len(self), "experts are stored in another form before they are created"
        self.stored = {name: stored[name] for name in self.specs}

    def expert(self) -> dict[str, Matrix]:
        """The matrices of one expert by their names, new and on the current device."""
        return {name: matrix_of(spec, self.stored[name]) for name, spec in self.specs.items()}

    @property
    def runs(self) -> bool:
        """As Stored.runs."""
        with torch.device("meta"):
            return all(matrix.runs for matrix in self.expert().values())

    def expand(self) -> None:
        """Create every expert's parameters on the current device."""
        if len(self):
            return
        for _ in range(self.count):
            expert = nn.Module()
            for name, matrix in self.expert().items():
                expert.add_module(name, matrix)
            self.append(expert)

    def shares(self) -> tuple[Share, ...]:
        """As Stored.shares, of all experts."""
        count = self.count * self.hidden * self.width
        return tuple(Share(self.stored[name], count, self.count * self._bytes(name)) for name in self.specs)

    def _bytes(self, name: str) -> float:
        """Bytes of the matrix of this name, of one expert."""
        stored, spec = self.stored[name], self.specs[name]
        if stored is None:
            return self.hidden * self.width * format_of(self.dtype).bytes
        return stored.nbytes(spec.own_outputs, spec.own_inputs)

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
        assert self.gathered == 1, "experts of several ranks' rows are priced, not run"
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
        return self._cost_of(rows, tuple(self.specs))

    def _cost_of(self, rows: int, names: Sequence[str]) -> Cost:
        """That of the matrices of these names, with as large a part of the activations."""
        rows *= self.gathered
        run, flops = rows * self.active, dict[str, float]()
        for name in names:
            number_format = arithmetic(self.dtype, self.stored[name])
            flops[number_format] = flops.get(number_format, 0.0) + 2.0 * run * self.hidden * self.width
        activations = (2 * rows * self.hidden + 3 * run * self.width) * format_of(self.dtype).bytes
        return Cost(
            flops=flops,
            weight_bytes=self.touched(rows) * sum(map(self._bytes, names)),
            activation_bytes=activations * len(names) / len(self.specs),
        )

    def kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.kernels_of: a call each touched expert, parted where its matrices are not all stored alike."""
        touched, alike = self.touched(rows * self.gathered), dict[str, list[str]]()
        for name, stored in self.stored.items():
            alike.setdefault(stored_name(stored), []).append(name)
        return tuple(
            Kernel(
                self.kind,
                arithmetic(self.dtype, self.stored[names[0]]),
                touched * len(names) / len(self.specs),
                self._cost_of(rows, names),
                stored=stored,
            )
            for stored, names in alike.items()
        )

    @property
    def number_format(self) -> str:
        """As Op.number_format: of its first matrix, where they differ."""
        return arithmetic(self.dtype, next(iter(self.stored.values())))

    def signature(self) -> Hashable:
        stored = tuple(self.stored.values())
        return self.count, self.active, self.hidden, self.width, self.dtype, stored, self.gathered

    def extra_repr(self) -> str:
        return f"{self.active} of {self.count}, {self.hidden} x {self.width}"
