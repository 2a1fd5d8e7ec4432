"""A mixture of MLPs, gated or not, of which each token passes a few (arXiv:1701.06538; Mixtral: arXiv:2401.04088).

Shapes: T rows of a step, D hidden, F columns of an expert, E experts, K experts a token, N = T x K rows by expert.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.ops.activation import GateBackend
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, Feature, GatheredRows
from ridgeline.core.ops.expert_layout import INTERLEAVED, MXFP4_BLOCKS, STACKED, TURNED, UNGATED, ExpertLayout
from ridgeline.core.ops.matrix import Matrix, MatrixSpec, PrequantisedMatrix, matrix_of, stored_alike
from ridgeline.core.ops.nonlinearity import ACTIVATIONS, ClampedGate
from ridgeline.core.ops.number_formats import WeightFormat, arithmetic, format_of
from ridgeline.core.ops.op import Launch, Op, stored_name
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare
from ridgeline.core.ops.weight_slot import WeightSlot


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Experts of a layer, those that a token passes, and the columns of one, of all ranks together."""

    count: int
    active: int
    width: int


def _taken(matrix: Matrix) -> bool:
    """Whether our kernel of experts takes a matrix: not where it would have to round rows that it is still making."""
    own = matrix.operands if matrix.runs else None
    return own is not None and (own.codes is None or own.codes.kind != "w8a8")


class ExpertsBackend(GateBackend):
    """The part of a backend that experts call, in PyTorch."""

    def experts(
        self, op: "Experts", x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None
    ) -> Tensor:
        """Return the weighed sum of the experts of each row, added to `onto_TD` if there is one: [T, D]."""
        return op.computed(x_TD, weights_TK, picked_TK, onto_TD)


class Experts(nn.ModuleList, Op):
    """The experts of one layer; a step reads the weights of each expert that some token picked, once.

    Priced from its shapes; `create_parameters` creates the parameters of all experts when they are to be filled,
    because a model of 12,000 experts that is only priced should not wait for 36,000 modules.
    """

    kind = "experts"
    backend: ExpertsBackend = ExpertsBackend()

    def __init__(
        self,
        sizes: ExpertSizes,
        hidden: int,
        activation: str | ClampedGate,
        dtype: torch.dtype,
        *,
        names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
        bias: bool = False,
        layout: ExpertLayout | None = None,
        adds: bool = False,
        weighs_inputs: bool = False,
        shard: Shard = WHOLE,
        gathered: int = 1,
    ) -> None:
        """names: what the checkpoint calls an expert's gate, up and down matrices, or its up and down matrices where it
        has no gate. layout: how it stores the experts of a layer in one piece, None where each has tensors of its own.
        adds: whether their sum is added to something. weighs_inputs: whether an expert is given its row times the
        weight of the pick, and its result is not weighed. gathered: ranks whose rows, as many as this one's, come
        together here; priced, not run.
        """
        super().__init__()
        self.gated = len(names) == 3
        assert self.gated or (len(names) == 2 and isinstance(activation, str)), "a gate's activation wants a gate"
        self.count, self.active, self.hidden, self.dtype = sizes.count, sizes.active, hidden, dtype
        self.gathered, self.layout, self.adds = gathered, layout, adds
        self.weighs_inputs = weighs_inputs
        self.width = shard.part(sizes.width, "columns of an expert")
        self.activation = activation
        column = MatrixSpec(hidden, sizes.width, dtype, bias, split="column", shard=shard)
        row = MatrixSpec(sizes.width, hidden, dtype, bias, split="row", shard=shard)
        self.specs = dict(zip(names, (column, column, row)[-len(names) :], strict=True))
        self.stored: dict[str, WeightFormat | None] = dict.fromkeys(names)
        self.has_operands = True
        self._waiting: dict[str, Tensor] = {}

    # -- how they are stored ------------------------------------------------------------------------------------------

    @override
    def places(self) -> Mapping[str, WeightSlot]:
        """As Op.places, of the matrices of one expert, as which all are stored."""
        return {name: spec.place("expert", f"0.{name}") for name, spec in self.specs.items()}

    @override
    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        assert not len(self), "experts are stored in another form before they are created"
        self.stored = {name: stored[name] for name in self.specs}
        with torch.device("meta"):
            matrices = self.expert().values()
        self.has_operands = stored_alike(matrices) and all(map(_taken, matrices))

    def expert(self) -> dict[str, Matrix]:
        """The matrices of one expert by their names, new and on the current device."""
        return {name: matrix_of(spec, self.stored[name]) for name, spec in self.specs.items()}

    @property
    @override
    def runs(self) -> bool:
        with torch.device("meta"):
            return all(matrix.runs for matrix in self.expert().values())

    @override
    def refuse_division(self) -> None:
        """As Stored.refuse_division, of one expert, as which all are stored."""
        for matrix in self._prequantised():
            matrix.refuse_division()

    @property
    @override
    def repacked_bytes(self) -> float:
        """As Stored.repacked_bytes, of all experts."""
        return self.count * sum(matrix.repacked_bytes for matrix in self._prequantised())

    def _prequantised(self) -> list[PrequantisedMatrix]:
        """Those of one expert that checkpoints store in layouts of their own, on meta."""
        with torch.device("meta"):
            return [matrix for matrix in self.expert().values() if isinstance(matrix, PrequantisedMatrix)]

    @override
    def create_parameters(self) -> None:
        """As Stored.create_parameters, of every expert."""
        if len(self):
            return
        for _ in range(self.count):
            expert = nn.Module()
            for name, matrix in self.expert().items():
                expert.add_module(name, matrix)
            self.append(expert)

    @property
    @override
    def pending_matrices(self) -> int:
        return self.count * len(self.specs)

    def matrices(self, expert: int) -> tuple[Matrix, ...]:
        """Gate (where there is one), up and down of one expert."""
        return tuple(getattr(self[expert], name) for name in self.specs)

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """As Stored.match_checkpoint: the layout of the experts.

        Older tools write a tensor for each matrix of each expert, and newer ones a single tensor for a layer. Llama 4
        has the latter, transposed, or the former if it is meant to be quantised. gpt-oss has a single tensor for a
        layer, in one of two number formats.
        """
        layout, first = (STACKED, "gate_up_proj") if self.gated else (UNGATED, "up_proj")
        whole = dtype_of(first) is not None
        if self.layout is None and whole:
            self.layout = layout
        elif self.layout is TURNED and not whole:
            self.layout = None
        elif self.layout is INTERLEAVED and dtype_of("gate_up_proj_blocks") is not None:
            self.layout = MXFP4_BLOCKS

    @override
    def tensors(self) -> tuple[str, ...]:
        """As Stored.tensors: those of its layout, where it has one; then its matrices have none of their own."""
        return () if self.layout is None else self.layout.tensors(bias=next(iter(self.specs.values())).bias)

    @property
    @override
    def takes_all(self) -> bool:
        return self.layout is not None

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the model's dtype, to which the floats of every tensor of a layout are cast. Bytes stay bytes."""
        return self.dtype

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take: the parts of a tensor of all experts, by the path of each one's parameter. Nothing where it
        only says something together with another that has not come yet.
        """
        assert self.layout is not None
        self._waiting[name] = full
        parts = self.layout.parts(name, self._waiting, (self.count, self.hidden, self._whole_width), self.dtype)
        if parts is None:
            return {}
        for done in (name, name.replace("_blocks", "_scales"), name.replace("_scales", "_blocks")):
            self._waiting.pop(done, None)
        named = dict(zip(("gate", "up", "down")[-len(self.specs) :], self.specs, strict=True))
        return {
            f"{expert}.{named[part.matrix]}.{parameter}": tensor
            for part in parts
            for expert in range(self.count)
            for parameter, tensor in getattr(self[expert], named[part.matrix])
            .take(part.parameter, part.of(expert))
            .items()
        }

    @property
    def _whole_width(self) -> int:
        """Columns of an expert, of all ranks together."""
        return next(iter(self.specs.values())).outputs

    @property
    def expert_parameters(self) -> int:
        """Numbers that one expert has, of this rank."""
        return sum(self._count(spec) for spec in self.specs.values())

    @property
    @override
    def idle_parameters(self) -> int:
        return (self.count - self.active) * self.expert_parameters

    def _count(self, spec: MatrixSpec) -> int:
        return spec.own_outputs * (spec.own_inputs + spec.bias)

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares, of all experts."""
        matrices = (
            StorageShare(
                self.stored[name], self.count * self.hidden * self.width, self.count * self._weight_bytes(name)
            )
            for name in self.specs
        )
        biases = self.count * sum(spec.own_outputs for spec in self.specs.values() if spec.bias)
        bias = (StorageShare(None, biases, biases * format_of(self.dtype).bytes),) if biases else ()
        return (*matrices, *bias)

    def _weight_bytes(self, name: str) -> float:
        stored, spec = self.stored[name], self.specs[name]
        if stored is None:
            return self.hidden * self.width * format_of(self.dtype).bytes
        return stored.nbytes(spec.own_outputs, spec.own_inputs)

    def _bytes(self, name: str) -> float:
        """Bytes of the matrix of this name with its bias, of one expert."""
        spec = self.specs[name]
        return self._weight_bytes(name) + spec.bias * spec.own_outputs * format_of(self.dtype).bytes

    # -- what they compute --------------------------------------------------------------------------------------------

    @override
    def forward(self, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None = None) -> Tensor:
        """x_TD [rows, hidden], weights fp32 and ids int64 as a Router gives them -> the weighed sum of the experts of
        each row [rows, hidden], added to `onto_TD` where there is one.
        """
        if x_TD.is_meta:
            return x_TD.new_empty(x_TD.shape)  # which are hit depends on data; the cost is an expectation
        assert self.gathered == 1, "experts of several ranks' rows are priced, not run"
        assert (onto_TD is not None) == self.adds
        return self.backend.experts(self, x_TD, weights_TK, picked_TK, onto_TD)

    def computed(self, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None) -> Tensor:
        """As `forward`, in PyTorch.

        Rows are sorted by expert once, so that each expert that was hit is one call over rows that lie together; what a
        token gets is added up in the order of its picks, whoever else is in the step.
        """
        if self.weighs_inputs:  # each pick is a row of its own
            x_ND = (x_TD[:, None] * weights_TK[:, :, None].to(x_TD.dtype)).flatten(0, 1)
            y_TKD = self._each(x_ND, picked_TK.view(-1, 1)).view(*picked_TK.shape, self.hidden).float()
        else:
            y_TKD = self._each(x_TD, picked_TK) * weights_TK[:, :, None]
        out_TD = y_TKD.sum(dim=1).to(x_TD.dtype)
        return out_TD if onto_TD is None else out_TD + onto_TD

    def _each(self, x_TD: Tensor, picked_TK: Tensor) -> Tensor:
        """What each expert picked gives for each row: [T, K, D]."""
        return self._alone(x_TD, picked_TK) if len(x_TD) == 1 else self._grouped(x_TD, picked_TK)

    def _alone(self, x_1D: Tensor, picked_1K: Tensor) -> Tensor:
        """What each expert picked gives for one row: [1, K, D]."""
        return torch.stack([self._run(expert, x_1D) for expert in picked_1K[0].tolist()], dim=1)

    def _grouped(self, x_TD: Tensor, picked_TK: Tensor) -> Tensor:
        """What each expert picked gives for each row: [T, K, D]."""
        picked_N = picked_TK.flatten()
        order_N = picked_N.argsort(stable=True)
        sorted_ND = x_TD.index_select(0, order_N // picked_TK.shape[1])
        y_ND = x_TD.new_empty(len(picked_N), self.hidden)
        start = 0
        for expert, rows in enumerate(torch.bincount(picked_N, minlength=self.count).tolist()):
            if rows:
                y_ND[order_N[start : start + rows]] = self._run(expert, sorted_ND[start : start + rows])
                start += rows
        return y_ND.view(*picked_TK.shape, self.hidden)

    def _run(self, expert: int, x_RD: Tensor) -> Tensor:
        """One expert over its rows: down of what it activates [R, D]."""
        return self.matrices(expert)[-1].product(self.activated(expert, x_RD))

    def activated(self, expert: int, x_RD: Tensor) -> Tensor:
        """act(gate(x)) * up(x) of an expert [R, F]; act(up(x)) of one without a gate."""
        *gates, up, _ = self.matrices(expert)
        if not gates:
            return ACTIVATIONS[str(self.activation)](up.product(x_RD))
        (gate,) = gates
        if isinstance(self.activation, ClampedGate):
            return self.activation(gate.product(x_RD), up.product(x_RD))
        return self.backend.gated_products(gate, up, self.activation, x_RD)

    # -- cost ---------------------------------------------------------------------------------------------------------

    def touched(self, tokens: float) -> float:
        """Distinct experts that `tokens` tokens are expected to hit."""
        return self.experts.of(tokens)

    @property
    @override
    def experts(self) -> ExpectedExperts:
        return ExpectedExperts(self.count, self.active)

    @override
    def experts_hit(self, inputs: tuple[Any, ...]) -> int:
        return len(torch.unique(inputs[2]))

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        return (self.experts, GatheredRows()) if self.gathered > 1 else (self.experts,)

    @override
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
        streams = 3 if self.adds else 2
        activations = (streams * rows * self.hidden + len(self.specs) * run * self.width) * format_of(self.dtype).bytes
        return Cost(
            flops=flops,
            weight_bytes=self.touched(rows) * sum(map(self._bytes, names)),
            activation_bytes=activations * len(names) / len(self.specs),
        )

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """As Op.launches_of: a call each touched expert, parted where its matrices are not all stored alike."""
        touched, alike = self.touched(rows * self.gathered), dict[str, list[str]]()
        for name, stored in self.stored.items():
            alike.setdefault(stored_name(stored), []).append(name)
        return tuple(
            Launch(
                self.kind,
                arithmetic(self.dtype, self.stored[names[0]]),
                touched * len(names) / len(self.specs),
                self._cost_of(rows, names),
                stored=stored,
            )
            for stored, names in alike.items()
        )

    @property
    @override
    def number_format(self) -> str:
        """As Op.number_format: of its first matrix, where they differ."""
        return arithmetic(self.dtype, next(iter(self.stored.values())))

    @override
    def signature(self) -> Hashable:
        stored, bias = tuple(self.stored.values()), next(iter(self.specs.values())).bias
        sizes = self.count, self.active, self.hidden, self.width
        return *sizes, self.dtype, stored, bias, self.adds, self.gathered

    @override
    def extra_repr(self) -> str:
        return f"{self.active} of {self.count}, {self.hidden} x {self.width}"
