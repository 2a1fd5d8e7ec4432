"""The CUDA backend: Triton kernels for the ops in which they are faster than the GPU's libraries, PyTorch for the rest.

Shapes: T rows of a step, R rows of logits, I inputs, O outputs, F columns of an MLP, D hidden, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.backends.cuda.available import LIBRARIES_BYTES, triton_kernels, triton_on
from ridgeline.backends.cuda.buckets import CapturedSteps, captures, most_captured_rows
from ridgeline.backends.cuda.cuda_coverage import COPY_BYTES, TAKES, covers, keeps
from ridgeline.backends.cuda.cuda_graphs import CudaGraphs
from ridgeline.backends.cuda.cuda_launches import launches
from ridgeline.backends.cuda.cuda_pages import CudaPages
from ridgeline.backends.kernel_support import takes_norm
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import Backend, ReplayedSteps
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.linear import Projections
from ridgeline.core.ops.matrix import Matrix, PlainMatrix
from ridgeline.core.ops.matrix.operands import DTYPES, Operands
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.paged_state import StatePages
from ridgeline.core.ops.step_graphs import StepGraphs
from ridgeline.core.ops.work import RowAxis, Work

if TYPE_CHECKING:
    from ridgeline.backends.cuda.triton import TritonKernels


class CudaBackend(Backend):
    """The backend for GPUs, for models in fp32 or bf16."""

    name = "cuda"
    kind = "gpu"
    takes = TAKES
    workspace: ClassVar[Mapping[str, int]] = {
        "CUDA's libraries": LIBRARIES_BYTES,
        "keys and values copied out of their pages": COPY_BYTES,
    }

    def __init__(self) -> None:
        # Ops reference their backend. It does not reference them, so that dropping a model frees its memory.
        self._joined = WeakKeyDictionary[Projections, Operands]()

    @staticmethod
    @override
    def serves(device: torch.device) -> bool:
        """Return whether our Triton kernels run on a device: on a GPU, or on a CPU in Triton's interpreter.

        They run on neither if Triton is not installed, or RIDGELINE_KERNELS is `off`.
        """
        return triton_on(device) is not None

    @cached_property
    def kernels(self) -> "TritonKernels":
        """The Triton kernels, loaded at first use, since pricing does not need them."""
        kernels = triton_kernels()
        assert kernels is not None, "binding a model needs compiled kernels"
        return kernels

    @override
    def prepare(self, model: nn.Module) -> None:
        """Bind a model to the GPU backend, and join the matrices of each op in memory for one product if possible.

        An op needs several matrices for it, all plain, and biases for all of them or for none.
        """
        assert isinstance(model, PricedModule)
        super().prepare(model)
        for _, op in model.ops():
            if isinstance(op, Projections) and (joined := _join(op)) is not None:
                self._joined[op] = joined

    @override
    def has_dtype(self, dtype: torch.dtype) -> bool:
        return dtype in DTYPES

    @override
    def parts_of(self, op: Op) -> tuple[str, ...] | None:
        if isinstance(op, AddRMSNorm) and takes_norm(op):
            return ("forward",)
        return ("keep", "attend") if isinstance(op, Attention) and keeps(op) else None

    @property
    @override
    def kernel_set(self) -> str:
        return self.kernels.name

    @override
    def covers(self, op: Op) -> bool:
        """Return whether GPU kernels compute an op completely; cuBLAS products of many rows count as kernels."""
        return covers(op)

    @override
    def launches(self, op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
        return launches(op, work, space)

    @override
    def replayed_steps(self, model: nn.Module) -> ReplayedSteps | None:
        return CapturedSteps(most_captured_rows(model)) if captures(model) else None

    # -- steps --------------------------------------------------------------------------------------------------------

    @override
    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> KVPages:
        return CudaPages(layers, groups, states)

    @override
    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        assert isinstance(model, Model), "only steps of language models can be replayed"
        assert isinstance(pages, CudaPages), "steps can only be captured over pages of this backend"
        return CudaGraphs(model, pages)

    # -- products -----------------------------------------------------------------------------------------------------

    @override
    def product(self, matrix: Matrix, x_TI: Tensor) -> Tensor:
        if x_TI.stride(-1) != 1:
            return matrix.reference_product(x_TI)
        rows_TI, operands = matrix.for_kernel(x_TI)
        if operands is None or not self.kernels.takes(operands):
            return matrix.reference_product(x_TI)
        return self.kernels.products(rows_TI, (operands,))[0]

    @override
    def products(self, op: Projections, x_TI: Tensor) -> Sequence[Tensor]:
        """Multiply rows with each matrix of an op, in one product if the matrices are next to each other in memory."""
        joined = self._joined.get(op)
        if joined is None or x_TI.stride(-1) != 1:
            return super().products(op, x_TI)
        (whole_TO,) = self.kernels.products(x_TI, (joined,))
        return torch.split(whole_TO, [matrix.outputs for matrix in op.matrices], dim=-1)

    @override
    def logits(self, matrix: Matrix, x_RI: Tensor) -> Tensor:
        """Return the logits of the LM head, in fp32 if the Triton kernels support its matrix."""
        operands = matrix.operands
        if operands is None or x_RI.stride(-1) != 1 or not self.kernels.takes(operands):
            return super().logits(matrix, x_RI)
        return self.kernels.products(x_RI, (operands,), torch.float32)[0]

    @override
    def gated(self, gate_TF: Tensor, up_TF: Tensor, activation: str) -> Tensor:
        """Return act(gate) * up in one pass over memory if there is a kernel for the activation."""
        both_TF = self.kernels.gated(gate_TF, up_TF, activation) if gate_TF.stride(-1) == 1 else None
        return super().gated(gate_TF, up_TF, activation) if both_TF is None else both_TF

    # -- between products ---------------------------------------------------------------------------------------------

    @override
    def norm(self, op: RMSNorm, x_xD: Tensor) -> Tensor:
        """Return the RMS norm of vectors, by our kernel if it rounds as PyTorch's does."""
        if not op.rounds_alike or x_xD.stride(-1) != 1:
            return super().norm(op, x_xD)
        return self.kernels.norm(x_xD, op.weight, op.eps, from_one=op.from_one)

    @override
    def add_norm(self, op: AddRMSNorm, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add y to the residual stream and return the sum and its RMS norm, in one kernel call if the op is fused."""
        if not op.fused or x_TD.stride(-1) != 1:
            return super().add_norm(op, x_TD, y_TD)
        return x_TD, self.kernels.norm(x_TD, op.weight, op.eps, from_one=op.from_one, added_ND=y_TD)

    # -- sampling -----------------------------------------------------------------------------------------------------

    @override
    def likeliest(self, logits_RV: Tensor) -> Tensor:
        """Return each row's token with the largest logit, and that logit twice, as float64 [R, 3].

        Many GPU programs read one row in parallel.
        """
        return self.kernels.likeliest(logits_RV)


def _join(op: Projections) -> Operands | None:
    """Place the plain matrices of an op next to each other in memory, so that one product returns all their results.

    A GPU needs as long to start a small product as to compute it. The matrices keep their names. Returns the operands
    of the product, or None, without a change, if the op has only one matrix, one is not plain, or only some have a
    bias.
    """
    weights = [own for own in map(_plain, op.matrices) if own is not None]
    biased = {own.bias is not None for own in weights}
    if len(weights) < max(2, len(op.names)) or len(biased) != 1:
        return None
    whole = torch.cat([own.weight for own in weights])
    biases = [own.bias for own in weights if own.bias is not None]
    bounds = [len(own.weight) for own in weights]
    for matrix, part in zip(op.matrices, torch.split(whole, bounds), strict=True):
        matrix.weight = nn.Parameter(part, requires_grad=False)
    return Operands(whole, torch.cat(biases) if biases else None)


def _plain(matrix: Matrix) -> Operands | None:
    """Return the operands of an unquantised matrix without a LoRA adapter; None for any other matrix.

    A matrix that is stored transposed has no operands either.
    """
    own = matrix.operands if isinstance(matrix, PlainMatrix) else None
    return own if own is not None and own.codes is None else None
