"""A mixture of experts (MoE): MLPs, gated or not, of which each token uses a few (Mixtral: arXiv:2401.04088).

The sparsely gated layer is that of arXiv:1701.06538.

Shapes: T rows of a step, D hidden, F columns of an expert, E experts, K experts per token, N = T x K rows by expert.
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
    """The number and the width of a layer's experts."""

    count: int
    """The number of experts of a layer."""
    active: int
    """The number of experts that each token is routed to."""
    width: int
    """The columns of one expert (its intermediate size), over all ranks."""


def _taken(matrix: Matrix) -> bool:
    """Return whether our fused expert kernel supports a matrix.

    It does not support W8A8, for which it would have to quantise rows that it is still computing.
    """
    own = matrix.operands if matrix.is_runnable else None
    return own is not None and (own.codes is None or own.codes.kind != "w8a8")


class ExpertsBackend(GateBackend):
    """The methods of a backend that experts call, implemented in PyTorch."""

    def experts(
        self, op: "Experts", x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None
    ) -> Tensor:
        """Return the weighted sum of each row's experts [T, D], added to `onto_TD` unless that is None.

        Args:
            op: The experts of a layer.
            x_TD: The hidden states.
            weights_TK: The routing weights, fp32.
            picked_TK: The ids of the experts that each row is routed to, int64.
            onto_TD: The rows to add the result to, or None.
        """
        return op.computed(x_TD, weights_TK, picked_TK, onto_TD)


class Experts(nn.ModuleList, Op):
    """The experts of one layer; a step reads the weights of each expert that is hit once.

    The cost follows from the shapes alone. `create_parameters` creates the parameters only for loading, because a model
    of 12,000 experts that is only priced should not wait for 36,000 modules.
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
        """Create the experts of one layer, without parameters.

        Args:
            sizes: The number and width of the experts.
            hidden: The hidden size of the model.
            activation: The activation between the matrices.
            dtype: The model's dtype.
            names: The checkpoint's names of an expert's gate, up and down matrices, or of up and down if there is no
                gate.
            bias: Whether the matrices have biases.
            layout: The layout in which the checkpoint stores all experts of a layer in one tensor; None if each expert
                has tensors of its own.
            adds: Whether the result is added to other rows.
            weighs_inputs: Whether the routing weight scales an expert's input instead of its result.
            shard: This rank's share of the columns.
            gathered: The number of ranks whose rows the call processes, each with as many as this one; above 1 it is
                only priced, not run.
        """
        super().__init__()
        self.gated = len(names) == 3
        assert self.gated or (len(names) == 2 and isinstance(activation, str)), "a gated activation needs a gate matrix"
        self.count, self.hidden, self.dtype = sizes.count, hidden, dtype
        self.gathered_ranks, self.layout, self.adds = gathered, layout, adds
        self.weighs_inputs = weighs_inputs
        self._whole_width, self.width = sizes.width, shard.part(sizes.width, "columns of an expert")
        self.activation = activation
        column = MatrixSpec(hidden, sizes.width, dtype, bias, split="column", shard=shard)
        row = MatrixSpec(sizes.width, hidden, dtype, bias, split="row", shard=shard)
        self.specs = dict(zip(names, (column, column, row)[-len(names) :], strict=True))
        self.pending_matrices = self.count * len(names)
        self.set_active(sizes.active)
        self.stored: dict[str, WeightFormat | None] = dict.fromkeys(names)
        self.has_operands = True
        self._waiting: dict[str, Tensor] = {}

    def set_active(self, active: int) -> None:
        """Set the number of experts that each token is routed to."""
        self.active = active
        self.experts: ExpectedExperts = ExpectedExperts(self.count, active)
        self.idle_parameters = (self.count - active) * self.expert_parameters

    # -- how they are stored ------------------------------------------------------------------------------------------

    @override
    def weight_slots(self) -> Mapping[str, WeightSlot]:
        """Return the weight slots, for which a recipe chooses formats, of one expert; all experts use the same."""
        return {name: spec.place("expert", f"0.{name}") for name, spec in self.specs.items()}

    @override
    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
        assert not len(self), "choose the storage of experts before you create them"
        self.stored = {name: stored[name] for name in self.specs}
        with torch.device("meta"):
            matrices = self.expert().values()
        self.has_operands = stored_alike(matrices) and all(map(_taken, matrices))

    def expert(self) -> dict[str, Matrix]:
        """Return new matrices for one expert on the current device, as a mapping from their names (gate, up, down)."""
        return {name: matrix_of(spec, self.stored[name]) for name, spec in self.specs.items()}

    @property
    @override
    def is_runnable(self) -> bool:
        with torch.device("meta"):
            return all(matrix.is_runnable for matrix in self.expert().values())

    @override
    def check_divisible(self) -> None:
        """Raise Indivisible if ranks would cut a quantisation group of an expert."""
        for matrix in self._prequantised():
            matrix.check_divisible()

    @property
    @override
    def repacked_bytes(self) -> float:
        """The additional bytes in memory of all experts if their weights are repacked."""
        return self.count * sum(matrix.repacked_bytes for matrix in self._prequantised())

    def _prequantised(self) -> list[PrequantisedMatrix]:
        """Return the matrices of one expert that the checkpoint stores quantised, on the meta device."""
        with torch.device("meta"):
            return [matrix for matrix in self.expert().values() if isinstance(matrix, PrequantisedMatrix)]

    @override
    def create_parameters(self) -> None:
        """Create the parameters of all experts, unless they exist."""
        if len(self):
            return
        for _ in range(self.count):
            expert = nn.Module()
            for name, matrix in self.expert().items():
                expert.add_module(name, matrix)
            self.append(expert)

    def matrices(self, expert: int) -> tuple[Matrix, ...]:
        """Return the matrices of one expert: gate (if it has one), up and down."""
        return tuple(getattr(self[expert], name) for name in self.specs)

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """Choose the layout in which this checkpoint stores the experts.

        Older tools write one tensor for each matrix of each expert, newer ones one tensor for each kind of matrix,
        which holds all experts of a layer. Llama 4 has the latter, transposed, or the former in checkpoints meant for
        quantisation. gpt-oss has the latter, with gate and up interleaved, in one of two number formats.
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
        """Return the names of the tensors with all experts of a layer, or of each expert's if they are separate."""
        return () if self.layout is None else self.layout.tensors(bias=next(iter(self.specs.values())).bias)

    @property
    @override
    def loads_submodules(self) -> bool:
        return self.layout is not None

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the model's dtype, to which floats of all experts' tensors are cast; bytes stay bytes."""
        return self.dtype

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Return the parameters of all experts from one checkpoint tensor that holds a matrix of each, by path.

        The result is empty if the tensor is only usable together with another that has not been read yet.
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
            .load_tensor(part.parameter, part.of(expert))
            .items()
        }

    @property
    def expert_parameters(self) -> int:
        """The number of parameters of one expert on this rank."""
        return sum(spec.local_outputs * (spec.local_inputs + spec.bias) for spec in self.specs.values())

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return the parameters and bytes of all experts, by matrix."""
        matrices = (
            StorageShare(
                self.stored[name], self.count * self.hidden * self.width, self.count * self._weight_bytes(name)
            )
            for name in self.specs
        )
        biases = self.count * sum(spec.local_outputs for spec in self.specs.values() if spec.bias)
        bias = (StorageShare(None, biases, biases * format_of(self.dtype).bytes),) if biases else ()
        return (*matrices, *bias)

    def _weight_bytes(self, name: str) -> float:
        """Return the bytes of one expert's weight matrix of this name, without the bias."""
        stored, spec = self.stored[name], self.specs[name]
        if stored is None:
            return self.hidden * self.width * format_of(self.dtype).bytes
        return stored.nbytes(spec.local_outputs, spec.local_inputs)

    def _bytes(self, name: str) -> float:
        """Return the bytes of one expert's matrix of this name, with its bias."""
        spec = self.specs[name]
        return self._weight_bytes(name) + spec.bias * spec.local_outputs * format_of(self.dtype).bytes

    # -- what they compute --------------------------------------------------------------------------------------------

    @override
    def forward(self, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None = None) -> Tensor:
        """Return the weighted sum of each row's experts [rows, hidden], added to `onto_TD` unless that is None.

        Args:
            x_TD: The hidden states [rows, hidden].
            weights_TK: The routing weights, fp32, from an ExpertRouter.
            picked_TK: The expert ids, int64, from an ExpertRouter.
            onto_TD: The rows to add the result to, or None.
        """
        if x_TD.is_meta:
            return x_TD.new_empty(x_TD.shape)  # the data decide which experts are hit; the cost is an expectation
        assert self.gathered_ranks == 1, "experts over the rows of several ranks can be priced, but not run"
        assert (onto_TD is not None) == self.adds
        return self.backend.experts(self, x_TD, weights_TK, picked_TK, onto_TD)

    def computed(self, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None) -> Tensor:
        """Compute the weighted sum of each row's experts in PyTorch.

        Rows are sorted by expert once, so that each expert that is hit runs once, over consecutive rows. The results of
        a token are summed in the order of its routing, whatever other tokens are in the batch.
        """
        if self.weighs_inputs:  # each selected expert has a row of its own
            x_ND = (x_TD[:, None] * weights_TK[:, :, None].to(x_TD.dtype)).flatten(0, 1)
            y_TKD = self._each(x_ND, picked_TK.view(-1, 1)).view(*picked_TK.shape, self.hidden).float()
        else:
            y_TKD = self._each(x_TD, picked_TK) * weights_TK[:, :, None]
        out_TD = y_TKD.sum(dim=1).to(x_TD.dtype)
        return out_TD if onto_TD is None else out_TD + onto_TD

    def _each(self, x_TD: Tensor, picked_TK: Tensor) -> Tensor:
        """Return the output of each selected expert for each row, before they are summed: [T, K, D]."""
        return self._alone(x_TD, picked_TK) if len(x_TD) == 1 else self._grouped(x_TD, picked_TK)

    def _alone(self, x_1D: Tensor, picked_1K: Tensor) -> Tensor:
        """Return the output of each selected expert for a single row: [1, K, D]."""
        return torch.stack([self._run(expert, x_1D) for expert in picked_1K[0].tolist()], dim=1)

    def _grouped(self, x_TD: Tensor, picked_TK: Tensor) -> Tensor:
        """Return the output of each selected expert for each row, computed expert by expert: [T, K, D]."""
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
        """Return the output of one expert for the rows that are routed to it: [R, D]."""
        return self.matrices(expert)[-1].product(self.activated(expert, x_RD))

    def activated(self, expert: int, x_RD: Tensor) -> Tensor:
        """Return the input of an expert's down matrix [R, F]: act(gate(x)) * up(x), or act(up(x)) without a gate."""
        *gates, up, _ = self.matrices(expert)
        if not gates:
            return ACTIVATIONS[str(self.activation)](up.product(x_RD))
        (gate,) = gates
        if isinstance(self.activation, ClampedGate):
            return self.activation(gate.product(x_RD), up.product(x_RD))
        return self.backend.gated_products(gate, up, self.activation, x_RD)

    # -- cost ---------------------------------------------------------------------------------------------------------

    def touched(self, tokens: float) -> float:
        """Return the expected number of distinct experts that `tokens` tokens hit."""
        return self.experts.expected_hits(tokens)

    @override
    def experts_hit(self, inputs: tuple[Any, ...]) -> int:
        return len(torch.unique(inputs[2]))

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        return (self.experts, GatheredRows()) if self.gathered_ranks > 1 else (self.experts,)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a layer's experts: FLOPs of `active` experts per token, and bytes of the experts hit."""
        return self._cost_of(rows, tuple(self.specs))

    def _cost_of(self, rows: int, names: Sequence[str]) -> Cost:
        """Return the cost of the experts' matrices with these names, with their share of the activation bytes."""
        rows *= self.gathered_ranks
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
        """Return an expert layer's launches: one per expert hit, divided over its matrices' weight formats."""
        touched, alike = self.touched(rows * self.gathered_ranks), dict[str, list[str]]()
        for name, stored in self.stored.items():
            alike.setdefault(stored_name(stored), []).append(name)
        return tuple(
            Launch(
                self.kind,
                arithmetic(self.dtype, self.stored[names[0]]),
                touched * len(names) / len(self.specs),
                self._cost_of(rows, names),
                weight_format=stored,
            )
            for stored, names in alike.items()
        )

    @property
    @override
    def number_format(self) -> str:
        """The number format in which the products with the experts' first matrix are computed."""
        return arithmetic(self.dtype, next(iter(self.stored.values())))

    @override
    def signature(self) -> Hashable:
        stored, bias = tuple(self.stored.values()), next(iter(self.specs.values())).bias
        sizes = self.count, self.active, self.hidden, self.width
        return *sizes, self.dtype, stored, bias, self.adds, self.gathered_ranks

    @override
    def extra_repr(self) -> str:
        return f"{self.active} of {self.count}, {self.hidden} x {self.width}"
