"""Products with weight matrices: one matrix (Linear, LMHead), or several with the same rows (Projections).

Shapes: T rows of a step, R rows whose logits are needed, I inputs, O outputs, V vocabulary.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import ClassVar, cast

import torch
from msgspec import structs
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import SOFTCAP_FLOPS, Cost
from ridgeline.core.ops.matrix import (
    AdaptedMatrix,
    AdapterRows,
    LoraWeights,
    Matrix,
    MatrixSpec,
    matrix_of,
)
from ridgeline.core.ops.number_formats import WeightFormat, format_of
from ridgeline.core.ops.op import Launch, Op, OpBackend, stored_name
from ridgeline.core.ops.stored_module import StorageShare
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import TOKENS, RowAxis, Work, adapter_axis


class MatrixOp(Op):
    """An op of one or several weight matrices, each of which may have LoRA adapters (`core/ops/matrix/lora.py`)."""

    kind = "linear"
    names: tuple[str, ...] = ("matrix",)
    """The names of an op's weight matrices, in the order of their results."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The weight matrices of an op, in the order of their results."""
        own = self._modules  # a price reads them thousands of times, and torch finds submodules as attributes slowly
        return tuple([cast(Matrix, own[name]) for name in self.names])

    @property
    @override
    def number_format(self) -> str:
        return self.matrices[0].number_format

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        return tuple(share for matrix in self.matrices for share in matrix.storage_shares())

    @override
    def signature(self) -> Hashable:
        return tuple((matrix.spec, matrix.stored) for matrix in self.matrices), self.adapters()

    @override
    def adaptable_matrices(self) -> Mapping[str, Matrix]:
        return dict(zip(self.names, self.matrices, strict=True))

    @override
    def attach_adapter(self, number: int, name: str, added: LoraWeights, rows: AdapterRows) -> None:
        matrix = getattr(self, name)
        if not isinstance(matrix, AdaptedMatrix):
            matrix = AdaptedMatrix(matrix, rows)
            self.add_module(name, matrix)
        matrix.adapt(number, added)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of matrix products: 2 x inputs x outputs FLOPs per row and matrix, and the weights read once.

        The rows are read once, whatever the number of matrices.
        """
        return products_cost(rows, self.matrices)

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """Return the cost of one call of an op with weight matrices, including the LoRA adapters of the step's rows."""
        cost = super().cost(work, space)
        for low_rank, rows in self.adapters_of(work):
            cost += low_rank.cost_of(rows)
        return cost

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return the kernel launches of one call of an op with weight matrices.

        They include two per matrix and LoRA adapter in the step.
        """
        return (*super().launches(work, space), *self.adapter_launches(work))

    def adapter_launches(self, work: Work) -> tuple[Launch, ...]:
        """Return the kernel launches of the LoRA adapters that a step uses."""
        return tuple(
            Launch(
                f"linear.{'vector' if rows == 1 else 'matrix'}", format_of(low_rank.lora_A.dtype).name, 2,
                low_rank.moved_by(rows), rows=rows,
            )
            for low_rank, rows in self.adapters_of(work)
        )  # fmt: skip

    def adapted_rows(self, work: Work) -> int:
        """Return the number of rows in a step whose LoRA adapter extends one of the op's matrices."""
        numbers = {n for m in self.matrices if isinstance(m, AdaptedMatrix) for n, _ in m.shape()}
        return sum(work.rows.get(adapter_axis(number), 0) for number in numbers)

    def adapters_of(self, work: Work) -> list[tuple[LoraWeights, int]]:
        """Return the low-rank weights of each LoRA adapter in a step, with the number of rows that use it."""
        adapted = [matrix for matrix in self.matrices if isinstance(matrix, AdaptedMatrix)]
        return [each for matrix in adapted for each in matrix.of_step(work.rows)]

    def adapters(self) -> Hashable:
        """Return the number (index) and rank of each LoRA adapter on each matrix, which the cost depends on."""
        return tuple(matrix.shape() if isinstance(matrix, AdaptedMatrix) else () for matrix in self.matrices)


class Linear(MatrixOp):
    """A product with one weight matrix, whole or a rank's columns or rows of the matrix.

    Attributes:
        exempt: Whether the weight stays in the model's dtype whatever the other matrices are stored in, as quantisers
            leave routers and heads.
    """

    kernel_suffix: ClassVar[str] = ""
    """The suffix in the class name of a matrix product's kernel that also does other work."""

    def __init__(self, spec: MatrixSpec, *, exempt: bool = False) -> None:
        super().__init__()
        self.matrix, self.exempt = matrix_of(spec), exempt
        self.matrix.unnamed = True

    @override
    def weight_slots(self) -> Mapping[str, WeightSlot]:
        return {"matrix": self.matrix.spec.place("router" if self.exempt else "matrix")}

    @override
    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
        self.matrix = matrix_of(self.matrix.spec, stored["matrix"])
        self.matrix.unnamed = True

    @property
    def stored(self) -> WeightFormat | None:
        """The weight format of a linear layer's matrix; None for the model's dtype."""
        return self.matrix.stored

    @override
    def forward(self, x_TI: Tensor) -> Tensor:
        """Return x_TI [rows, inputs] times the weight: [rows, outputs], or this rank's summand after a row split."""
        return self.matrix.product(x_TI)

    @override
    def kernel(self, rows: int) -> str:
        return product_kernel(self.kind, rows, self.matrix)

    @override
    def whole_launch(self, rows: int) -> Launch:
        return structs.replace(super().whole_launch(rows), rows=rows, matrices=(self.matrix,))

    @override
    def extra_repr(self) -> str:
        return self.matrix.extra_repr()


class HeadBackend(OpBackend):
    """The methods of a backend that LM heads call, implemented in PyTorch."""

    def logits(self, matrix: Matrix, x_RI: Tensor) -> Tensor:
        """Return the logits of an LM head [R, V], in the model's dtype (as in PyTorch) or in fp32."""
        return matrix.product(x_RI)


class LMHead(Linear):
    """The language-model head: the projection from hidden states to logits in fp32.

    A tied head shares the embedding's parameter. The head reads it in full either way, so the cost is the same.

    Attributes:
        multiplier: The factor on the logits (Granite, Cohere).
        softcap: The bound of logits that are replaced by softcap x tanh(logits / softcap) (Gemma 2, arXiv:2408.00118);
            None for no cap.
        scale: The factor on the hidden states (T5, whose head is the embedding).
    """

    kind = "head"
    part = "head"
    backend: HeadBackend = HeadBackend()

    def __init__(
        self,
        spec: MatrixSpec,
        *,
        softcap: float | None = None,
        scale: float | None = None,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__(spec, exempt=True)
        self.softcap, self.scale, self.multiplier = softcap, scale, multiplier

    @override
    def weight_slots(self) -> Mapping[str, WeightSlot]:
        return {"matrix": self.matrix.spec.place("head")}

    @override
    def adaptable_matrices(self) -> Mapping[str, Matrix]:
        """Return no matrices: adapters do not extend the LM head."""
        return {}

    @override
    def forward(self, x_RI: Tensor) -> Tensor:
        """Return the logits of hidden states x_RI [logit rows, hidden]: fp32 [logit rows, vocabulary]."""
        if self.scale is not None and not x_RI.is_meta:
            x_RI = x_RI * self.scale
        logits_RV = self.matrix.product(x_RI) if x_RI.is_meta else self.backend.logits(self.matrix, x_RI)
        if self.multiplier != 1:
            logits_RV = logits_RV * self.multiplier
        if self.softcap is not None:
            logits_RV = (logits_RV / self.softcap).tanh() * self.softcap
        return logits_RV.float()

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of logits: the product, scaling the hidden states, the multiplier and the soft cap."""
        cost, each = super().cost_of(rows), self.flops_per_logit
        if self.scale is not None:
            cost += Cost({"fp32": float(rows * self.matrix.inputs)})
        return cost + Cost({"fp32": float(each * rows * self.matrix.outputs)}) if each else cost

    @property
    def flops_per_logit(self) -> int:
        """The FLOPs per logit after the LM head's product: the multiplier and the soft cap."""
        return (SOFTCAP_FLOPS if self.softcap is not None else 0) + (self.multiplier != 1)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.flops_per_logit, self.scale is None


class ProjectionsBackend(OpBackend):
    """The methods of a backend that projections call, implemented in PyTorch."""

    def products(self, op: "Projections", x_TI: Tensor) -> Sequence[Tensor]:
        """Return the products of the same rows with each weight matrix of an op: [T, O] each."""
        return [matrix.product(x_TI) for matrix in op.matrices]


class Projections(MatrixOp):
    """Several products of the same rows, such as queries, keys and values, which one fused kernel may compute.

    The matrices have the checkpoint's names. The op's own name is no part of their tensor names.
    """

    unnamed = True
    backend: ProjectionsBackend = ProjectionsBackend()

    def __init__(self, specs: Mapping[str, MatrixSpec]) -> None:
        """Create the weight matrices of several products with the same rows.

        Args:
            specs: The spec of each matrix by its name in the checkpoint, in the order of the results.
        """
        super().__init__()
        self.names = tuple(specs)
        for name, spec in specs.items():
            self.add_module(name, matrix_of(spec))
        assert len({matrix.inputs for matrix in self.matrices}) == 1, (
            "fused projections must have the same number of inputs"
        )

    def matrix(self, name: str) -> Matrix:
        """Return the weight matrix with this name."""
        return cast(Matrix, getattr(self, name))

    @override
    def weight_slots(self) -> Mapping[str, WeightSlot]:
        return {name: self.matrix(name).spec.place("matrix", name) for name in self.names}

    @override
    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
        for name, matrix in zip(self.names, self.matrices, strict=True):
            self.add_module(name, matrix_of(matrix.spec, stored[name]))

    @override
    def forward(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """Return the products of x_TI [rows, inputs] with each matrix, that of a fused matrix split into its parts."""
        return self.products(x_TI)

    def products(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """Multiply x_TI by each matrix of an op, split the results of fused matrices, and return all in order."""
        parts: list[Tensor] = []
        if x_TI.is_meta:
            results: Sequence[Tensor] = [matrix.product(x_TI) for matrix in self.matrices]
        else:
            results = self.backend.products(self, x_TI)
        for matrix, y_TO in zip(self.matrices, results, strict=True):
            parts += torch.split(y_TO, list(matrix.spec.own_parts), dim=-1) if matrix.spec.parts else (y_TO,)
        return tuple(parts)

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """Return the kernel launches of several products in PyTorch: one per matrix."""
        return tuple(self.product_launches(rows, "forward"))

    @override
    def whole_launch(self, rows: int) -> Launch:
        """Return the launch of one fused kernel for all matrices of an op, which must have the same weight format."""
        stored = _stored_name(self.matrices[0])
        cost = self.cost_of(rows)
        return Launch(self.kind, self.number_format, 1, cost, weight_format=stored, rows=rows, matrices=self.matrices)

    def product_launches(self, rows: int, part: str) -> Iterator[Launch]:
        """Yield the launches of an op's matrix products, one for all matrices of the same weight format.

        Args:
            rows: The number of rows.
            part: The method of the op that launches the products.
        """
        for stored, alike in groupby(sorted(self.matrices, key=_stored_name), key=_stored_name):
            matrices = tuple(alike)
            name, number_format = product_kernel(self.kind, rows, matrices[0]), matrices[0].number_format
            cost = products_cost(rows, matrices)
            yield Launch(name, number_format, len(matrices), cost, part, stored, rows=rows, matrices=matrices)

    @override
    def extra_repr(self) -> str:
        return f"{self.matrices[0].inputs} -> {' + '.join(str(matrix.outputs) for matrix in self.matrices)}"


def product_kernel(kind: str, rows: int, matrix: Matrix) -> str:
    """Return the class name of a matrix product's kernel, which states if it has one row and a transposed weight."""
    return f"{kind}.{'vector' if rows == 1 else 'matrix'}{'.transposed' if matrix.spec.transposed else ''}"


def products_cost(rows: int, matrices: tuple[Matrix, ...]) -> Cost:
    """Return the cost of the products of the same rows with several matrices."""
    inputs, outputs = matrices[0].inputs, sum(matrix.outputs for matrix in matrices)
    flops: dict[str, float] = {}
    for matrix in matrices:
        flops[matrix.number_format] = flops.get(matrix.number_format, 0.0) + 2.0 * rows * inputs * matrix.outputs
    return Cost(
        flops=flops,
        weight_bytes=sum(matrix.stored_bytes() for matrix in matrices),
        activation_bytes=rows * (inputs + outputs) * matrices[0].spec.dtype.itemsize,
    )


def _stored_name(matrix: Matrix) -> str:
    """Return the name of a matrix's weight format, or "" for the model's dtype."""
    return stored_name(matrix.stored)
