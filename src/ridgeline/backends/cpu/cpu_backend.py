"""The CPU backend: the C++ library executes the ops for which it has kernels, and PyTorch the rest.

Shapes: T rows of a step, R rows of logits, N rows of any kind, I inputs, O outputs, F columns of an MLP, D hidden, E
entries of a table, H heads, K kv heads or experts a row.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.backends.cpu.cpu_attention import rotate
from ridgeline.backends.cpu.cpu_coverage import TAKES, covers, fuses, in_one_call
from ridgeline.backends.cpu.cpu_experts import LayerExperts, route
from ridgeline.backends.cpu.cpu_graphs import CpuGraphs
from ridgeline.backends.cpu.cpu_launches import launches
from ridgeline.backends.cpu.cpu_pages import CpuPages
from ridgeline.backends.cpu.cpu_weight_layout import lay_out
from ridgeline.backends.cpu.library import Call, Library, library
from ridgeline.backends.cpu.recorded_steps import RecordedSteps, records
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import Backend, ReplayedSteps, SamplingKernel
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.linear import Projections
from ridgeline.core.ops.matrix import AdaptedMatrix, Matrix, QuantisedMatrix, stored_alike
from ridgeline.core.ops.matrix.operands import DTYPES, Operands
from ridgeline.core.ops.nonlinearity import ClampedGate
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.paged_state import StatePages
from ridgeline.core.ops.rotary import Angles, RotaryTable
from ridgeline.core.ops.router import ExpertRouter
from ridgeline.core.ops.step_graphs import StepGraphs
from ridgeline.core.ops.work import RowAxis, Work


class CpuBackend(Backend):
    """The backend for this machine's CPU, for models in fp32 or bf16."""

    name = "cpu"
    kind = "cpu"
    takes = TAKES

    def __init__(self) -> None:
        # Ops reference their backend. It does not reference them, so that dropping a model frees its memory.
        self._parameters = WeakKeyDictionary[Experts, list[Mapping[str, Tensor | None]]]()
        self._experts = WeakKeyDictionary[Experts, tuple[list[int], LayerExperts]]()

    @staticmethod
    @override
    def serves(device: torch.device) -> bool:
        """Return whether a device is a CPU, and the C++ kernels are compiled and enabled."""
        return device.type == "cpu" and library() is not None

    @cached_property
    def library(self) -> Library:
        """The compiled C++ kernels, loaded at first use, since pricing does not need them."""
        kernels = library()
        assert kernels is not None, "binding a model needs compiled kernels"
        return kernels

    @override
    def prepare(self, model: nn.Module) -> None:
        """Bind a model to the CPU backend, and repack its quantised weights to the kernels' fastest layout."""
        assert isinstance(model, PricedModule)
        super().prepare(model)
        lay_out(model)

    @override
    def bind(self, part: nn.Module) -> None:
        """Make the C++ kernels execute the modules of a part of a model, with experts at their current addresses."""
        super().bind(part)
        self._parameters.clear()
        self._experts.clear()

    @override
    def has_dtype(self, dtype: torch.dtype) -> bool:
        return dtype in DTYPES

    @override
    def parts_of(self, op: Op) -> tuple[str, ...] | None:
        return ("forward",) if fuses(op) else None

    @property
    @override
    def kernel_set(self) -> str:
        return self.library.name

    @override
    def share_threads(self) -> None:
        """Set the C++ kernels' thread count to PyTorch's; the count is global in the process."""
        self.library.share_threads()

    @override
    def covers(self, op: Op) -> bool:
        return covers(op)

    @override
    def launches(self, op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
        return launches(op, work, space)

    @override
    def replayed_steps(self, model: nn.Module) -> ReplayedSteps | None:
        return RecordedSteps() if records(model) else None

    # -- steps --------------------------------------------------------------------------------------------------------

    # mypy 2.4 does not accept @override on a property that has a setter.
    @property  # type: ignore[explicit-override]
    def noted(self) -> list[Call] | None:
        """The list to which this thread appends its kernel calls for a recording, or None."""
        return self.library.recording

    @noted.setter
    def noted(self, calls: list[Call] | None) -> None:
        self.library.recording = calls

    @override
    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> KVPages:
        return CpuPages(self.library, layers, groups, states)

    @override
    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        assert isinstance(model, Model), "only steps of language models can be replayed"
        assert isinstance(pages, CpuPages), "steps can only be recorded over pages of this backend"
        return CpuGraphs(model, pages)

    # -- products -----------------------------------------------------------------------------------------------------

    @override
    def product(self, matrix: Matrix, x_TI: Tensor) -> Tensor:
        if x_TI.stride(-1) != 1:
            return matrix.reference_product(x_TI)
        rows_TI, operands = matrix.for_kernel(x_TI)
        return matrix.reference_product(x_TI) if operands is None else self.library.products(rows_TI, (operands,))[0]

    @override
    def products(self, op: Projections, x_TI: Tensor) -> Sequence[Tensor]:
        """Multiply rows with each matrix of an op, in one call if the kernels support them in one storage format.

        If the running step has rows with LoRA adapters on these matrices, each matrix has calls of its own.
        """
        if x_TI.stride(-1) == 1 and stored_alike(op.matrices):
            operands = [own for matrix in op.matrices if matrix.has_no_adapter_rows and (own := matrix.operands)]
            if len(operands) == len(op.matrices):
                return self.library.products(x_TI, operands)
        return super().products(op, x_TI)

    @override
    def logits(self, matrix: Matrix, x_RI: Tensor) -> Tensor:
        """Return the logits of the LM head, in fp32 if the C++ kernels support its matrix."""
        operands = matrix.operands
        if operands is None or x_RI.stride(-1) != 1:
            return super().logits(matrix, x_RI)
        return self.library.products(x_RI, (operands,), torch.float32)[0]

    @override
    def linear(self, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        """Return x W^T for a plain weight; the result of a row is the same in any batch."""
        if x_NI.stride(-1) != 1:
            return super().linear(x_NI, weight_OI)
        return self.library.products(x_NI, (Operands(weight_OI, None),))[0]

    @override
    def activated_products(self, op: ActivatedProjections, x_TI: Tensor) -> Tensor:
        """Return an MLP's activated products, in one kernel call for rows without a LoRA adapter."""
        if not op.fused or x_TI.stride(-1) != 1:
            return super().activated_products(op, x_TI)
        gate, up = op.matrices
        rows = next((matrix.rows for matrix in op.matrices if isinstance(matrix, AdaptedMatrix)), None)
        if rows is None or not rows.parts:
            return self._fused_gate(gate, up, op.activation, x_TI)
        x_NI = rows.of(x_TI)
        own_NF = op.activate(*(_adapted(matrix, x_NI) for matrix in op.matrices))
        if rows.whole:
            return own_NF
        y_TF = x_TI.new_empty(len(x_TI), op.width).index_copy_(0, rows.adapter_rows_N, own_NF)
        if len(rows.rest):  # the kernel of steps without adapters: a row must not depend on its batch
            rest_NF = self._fused_gate(gate, up, op.activation, x_TI.index_select(0, rows.rest))
            y_TF.index_copy_(0, rows.rest, rest_NF)
        return y_TF

    @override
    def gated_products(self, gate: Matrix, up: Matrix, activation: str, x_NI: Tensor) -> Tensor:
        """Return act(x gate) * (x up), in one call if the kernels support both matrices in one storage format."""
        if gate.operands and up.operands and stored_alike((gate, up)) and x_NI.stride(-1) == 1:
            return self._fused_gate(gate, up, activation, x_NI)
        return super().gated_products(gate, up, activation, x_NI)

    def _fused_gate(self, gate: Matrix, up: Matrix, activation: str, x_NI: Tensor) -> Tensor:
        """Multiply with a gate and an up matrix and apply the activation, in one call."""
        of_gate, of_up = gate.operands, up.operands
        assert of_gate is not None, "fused matrices must have operands"
        assert of_up is not None
        return self.library.gated_products(x_NI, of_gate, of_up, activation)

    # -- between products ---------------------------------------------------------------------------------------------

    @override
    def norm(self, op: RMSNorm, x_xD: Tensor) -> Tensor:
        """Return the RMS norm of vectors, by our kernel if it rounds as PyTorch's does."""
        if not op.rounds_alike or x_xD.stride(-1) != 1:
            return super().norm(op, x_xD)
        return self.library.norm(x_xD, op.weight, op.eps, from_one=op.from_one)

    @override
    def add_norm(self, op: AddRMSNorm, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add y to the residual stream and return the sum and its RMS norm, in one kernel call if the op is fused."""
        if not op.fused or x_TD.stride(-1) != 1:
            return super().add_norm(op, x_TD, y_TD)
        return x_TD, self.library.norm(x_TD, op.weight, op.eps, from_one=op.from_one, added_ND=y_TD)

    @override
    def angles(self, op: RotaryTable, positions_T: Tensor) -> Angles:
        return self.library.angles(positions_T, op.frequencies, op.rope.magnitude)

    @override
    def rotate(self, op: Attention, q_THD: Tensor, k_TKD: Tensor, angles: Angles, start: int) -> tuple[Tensor, Tensor]:
        """Apply the rotary embedding to queries and keys in one call, unless the op rotates adjacent pairs."""
        if op.rotates_neighbours or q_THD.stride(-1) != 1:
            return super().rotate(op, q_THD, k_TKD, angles, start)
        turned_THD, turned_TKD = rotate(self.library, (q_THD, k_TKD), angles, start)
        return turned_THD, turned_TKD

    @override
    def gather(self, table_ED: Tensor, numbers_N: Tensor) -> Tensor:
        if not table_ED.is_contiguous():
            return super().gather(table_ED, numbers_N)
        return self.library.gather(table_ED, numbers_N)

    @override
    def pick(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        return self.library.gather(x_TD, rows_R) if x_TD.is_contiguous() else super().pick(x_TD, rows_R)

    @override
    def gather_coded(self, table: QuantisedMatrix, numbers_N: Tensor) -> Tensor:
        operands = table.operands
        if operands is None:
            return super().gather_coded(table, numbers_N)
        return self.library.gather_codes(operands, table.inputs, table.spec.dtype, numbers_N)

    # -- mixtures of experts ------------------------------------------------------------------------------------------

    @override
    def route(self, op: ExpertRouter, x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Select experts in one kernel call that includes the router's product, if the rule selects by scores."""
        operands = op.matrix.operands
        if op.rule.by_logits or not op.matrix.has_no_adapter_rows or operands is None or x_TI.stride(-1) != 1:
            return super().route(op, x_TI)
        logits, rows_TI = torch.float32 if op.rule.wide else x_TI.dtype, x_TI.to(op.matrix.spec.dtype)
        return route(self.library, rows_TI, operands, logits, op.rule, op.e_score_correction_bias)

    @override
    def experts(
        self, op: Experts, x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None
    ) -> Tensor:
        """Return the results of a layer's experts, in one kernel call if the kernels support the layer.

        The description of the call is rebuilt if a parameter has moved.
        """
        if not in_one_call(op) or x_TD.stride(-1) != 1:
            return super().experts(op, x_TD, weights_TK, picked_TK, onto_TD)
        parameters = self._parameters.get(op)
        if parameters is None:
            parameters = self._parameters[op] = [matrix._parameters for expert in op for matrix in expert.children()]
        places = [each.data_ptr() for own in parameters for each in own.values() if each is not None]
        if op not in self._experts or self._experts[op][0] != places:
            self._experts[op] = places, layer_experts(self.library, op)
        return self._experts[op][1].run(x_TD, weights_TK, picked_TK, onto_TD)

    # -- sampling -----------------------------------------------------------------------------------------------------

    @property
    @override
    def sampling_kernel(self) -> SamplingKernel:
        return self.library.sample


def layer_experts(library: Library, op: Experts) -> LayerExperts:
    """Return a kernel of all experts of a layer, with the current addresses of their matrices."""
    operands = [[own for matrix in op.matrices(n) if (own := matrix.operands)] for n in range(op.count)]
    gate = op.activation
    by = (gate.alpha, gate.limit) if isinstance(gate, ClampedGate) else gate
    return LayerExperts(library, operands, by, op.hidden, op.dtype)


def _adapted(matrix: Matrix, x_NI: Tensor) -> Tensor:
    """Return a matrix's product with rows that use a LoRA adapter, which need not change this matrix."""
    return matrix.adapted(x_NI) if isinstance(matrix, AdaptedMatrix) else matrix.product(x_NI)
