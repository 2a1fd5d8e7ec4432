"""Products with stored matrices: one (Linear, Head), or several over the same rows at once (Projections).

Shapes: T rows of a step, R rows whose logits are wanted, I inputs, O outputs, V vocabulary.
"""

from abc import abstractmethod
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
    """An op of one or several stored matrices, any of which may have adapters beside it (`core/ops/matrix/lora.py`)."""

    kind = "linear"
    names: tuple[str, ...] = ("matrix",)
    """The names of its matrices, in the order of the results."""

    @property
    @abstractmethod
    def matrices(self) -> tuple[Matrix, ...]:
        """In the order of the results."""

    @override
    def adaptable(self) -> Mapping[str, Matrix]:
        return dict(zip(self.names, self.matrices, strict=True))

    @override
    def adapt(self, number: int, name: str, added: LoraWeights, rows: AdapterRows) -> None:
        matrix = getattr(self, name)
        if not isinstance(matrix, AdaptedMatrix):
            matrix = AdaptedMatrix(matrix, rows)
            self.add_module(name, matrix)
        matrix.adapt(number, added)

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """As Op.cost, and what the adapters of the step's rows add."""
        cost = super().cost(work, space)
        for low_rank, rows in self.adapters_of(work):
            cost += low_rank.cost_of(rows)
        return cost

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """As Op.launches; of each adapter two more."""
        return (*super().launches(work, space), *self.adapter_launches(work))

    def adapter_launches(self, work: Work) -> tuple[Launch, ...]:
        """Return the kernel calls of the adapters in a step."""
        return tuple(
            Launch(
                f"linear.{'vector' if rows == 1 else 'matrix'}", format_of(low_rank.lora_A.dtype).name, 2,
                low_rank.moved_by(rows), rows=rows,
            )
            for low_rank, rows in self.adapters_of(work)
        )  # fmt: skip

    def adapted_rows(self, work: Work) -> int:
        """How many rows of a step have an adapter that is beside one of its matrices."""
        numbers = {n for m in self.matrices if isinstance(m, AdaptedMatrix) for n, _ in m.shape()}
        return sum(work.rows.get(adapter_axis(number), 0) for number in numbers)

    def adapters_of(self, work: Work) -> list[tuple[LoraWeights, int]]:
        """What adapters add in a step, and to how many rows."""
        adapted = [matrix for matrix in self.matrices if isinstance(matrix, AdaptedMatrix)]
        return [each for matrix in adapted for each in matrix.of_step(work.rows)]

    def adapters(self) -> Hashable:
        """What their cost depends on, for a signature."""
        return tuple(matrix.shape() if isinstance(matrix, AdaptedMatrix) else () for matrix in self.matrices)


class Linear(MatrixOp):
    """A matrix product with a stored weight, whole or a rank's columns or rows of it.

    kernel_suffix: what the classes of its kernels end in, if they do more than the product. exempt: whether its numbers
    stay in the model's dtype whatever the other matrices are stored in, as quantisers leave routers and heads.
    """

    kernel_suffix: ClassVar[str] = ""

    def __init__(self, spec: MatrixSpec, *, exempt: bool = False) -> None:
        super().__init__()
        self.matrix, self.exempt = matrix_of(spec), exempt
        self.matrix.unnamed = True

    @override
    def places(self) -> Mapping[str, WeightSlot]:
        return {"matrix": self.matrix.spec.place("router" if self.exempt else "matrix")}

    @override
    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        self.matrix = matrix_of(self.matrix.spec, stored["matrix"])
        self.matrix.unnamed = True

    @property
    @override
    def matrices(self) -> tuple[Matrix, ...]:
        """The one."""
        return (self.matrix,)

    @property
    def stored(self) -> WeightFormat | None:
        """The format of its numbers; None for the model's dtype."""
        return self.matrix.stored

    @override
    def forward(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]; of a row split, this rank's summand of them."""
        return self.matrix.product(x_TI)

    @override
    def cost_of(self, rows: int) -> Cost:
        """2 x rows x inputs x outputs FLOPs; the weight once, however many rows share it."""
        return products_cost(rows, (self.matrix,))

    @override
    def kernel(self, rows: int) -> str:
        return product_kernel(self.kind, rows, self.matrix)

    @override
    def whole_launch(self, rows: int) -> Launch:
        return structs.replace(super().whole_launch(rows), rows=rows, matrices=(self.matrix,))

    @property
    @override
    def number_format(self) -> str:
        return self.matrix.number_format

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        return self.matrix.shares()

    @override
    def signature(self) -> Hashable:
        return self.matrix.spec, self.matrix.stored, self.adapters()

    @override
    def extra_repr(self) -> str:
        return self.matrix.extra_repr()


class HeadBackend(OpBackend):
    """The part of a backend that heads call, in PyTorch."""

    def logits(self, matrix: Matrix, x_RI: Tensor) -> Tensor:
        """Return the product of a head: [R, V], in the model's dtype, as the reference has it, or in fp32."""
        return matrix.product(x_RI)


class LMHead(Linear):
    """The last projection: hidden state -> logits in fp32.

    multiplier: of the logits (Granite, Cohere). softcap: they are squashed to (-softcap, softcap) by
    softcap x tanh(logits / softcap) (Gemma 2, arXiv:2408.00118). scale: of the hidden states (T5, whose head is the
    embedding). Tied to the embedding by sharing its parameter; it is read in full either way, so the cost is the same.
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
    def places(self) -> Mapping[str, WeightSlot]:
        return {"matrix": self.matrix.spec.place("head")}

    @override
    def adaptable(self) -> Mapping[str, Matrix]:
        """As Op.adaptable: none adds to the logits."""
        return {}

    @override
    def forward(self, x_RI: Tensor) -> Tensor:
        """x_RI [logit rows, hidden] -> fp32 [logit rows, vocabulary]."""
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
        """As Linear.cost_of, with the scale and what is done to every logit."""
        cost, each = super().cost_of(rows), self.flops_per_logit
        if self.scale is not None:
            cost += Cost({"fp32": float(rows * self.matrix.inputs)})
        return cost + Cost({"fp32": float(each * rows * self.matrix.outputs)}) if each else cost

    @property
    def flops_per_logit(self) -> int:
        """Of what comes after the product."""
        return (SOFTCAP_FLOPS if self.softcap is not None else 0) + (self.multiplier != 1)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.flops_per_logit, self.scale is None


class ProjectionsBackend(OpBackend):
    """The part of a backend that projections call, in PyTorch."""

    def products(self, op: "Projections", x_TI: Tensor) -> Sequence[Tensor]:
        """Return the product of the same rows with each matrix of an op: [T, O] each."""
        return [matrix.product(x_TI) for matrix in op.matrices]


class Projections(MatrixOp):
    """Several products of the same rows: queries, keys and values. One boundary, which a kernel may do at once.

    Its matrices have the names that the checkpoint gives them; its own name is left out of theirs.
    """

    unnamed = True
    backend: ProjectionsBackend = ProjectionsBackend()

    def __init__(self, specs: Mapping[str, MatrixSpec]) -> None:
        """specs: of each matrix, by its name in the checkpoint, in the order of the results."""
        super().__init__()
        self.names = tuple(specs)
        for name, spec in specs.items():
            self.add_module(name, matrix_of(spec))
        assert len({matrix.inputs for matrix in self.matrices}) == 1, "projections of one input"

    def matrix(self, name: str) -> Matrix:
        """The one of this name."""
        return cast(Matrix, getattr(self, name))

    @property
    @override
    def matrices(self) -> tuple[Matrix, ...]:
        """In the order of the results."""
        return tuple(map(self.matrix, self.names))

    @override
    def places(self) -> Mapping[str, WeightSlot]:
        return {name: self.matrix(name).spec.place("matrix", name) for name in self.names}

    @override
    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        for name, matrix in zip(self.names, self.matrices, strict=True):
            self.add_module(name, matrix_of(matrix.spec, stored[name]))

    @override
    def forward(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """x_TI [rows, inputs] -> [rows, outputs] of each matrix, a fused one in its parts."""
        return self.products(x_TI)

    def products(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """As forward."""
        parts: list[Tensor] = []
        if x_TI.is_meta:
            results: Sequence[Tensor] = [matrix.product(x_TI) for matrix in self.matrices]
        else:
            results = self.backend.products(self, x_TI)
        for matrix, y_TO in zip(self.matrices, results, strict=True):
            parts += torch.split(y_TO, list(matrix.spec.own_parts), dim=-1) if matrix.spec.parts else (y_TO,)
        return tuple(parts)

    @override
    def cost_of(self, rows: int) -> Cost:
        """The products, the rows read once."""
        return products_cost(rows, self.matrices)

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """As Op.launches_of: a call a matrix."""
        return tuple(self.product_launches(rows, "forward"))

    @override
    def whole_launch(self, rows: int) -> Launch:
        """As Op.whole_launch, of matrices that are stored alike."""
        stored = _stored_name(self.matrices[0])
        cost = self.cost_of(rows)
        return Launch(self.kind, self.number_format, 1, cost, stored=stored, rows=rows, matrices=self.matrices)

    def product_launches(self, rows: int, part: str) -> Iterator[Launch]:
        """Yield the calls of the products, those of all matrices that are stored alike together. part: as of Launch."""
        for stored, alike in groupby(sorted(self.matrices, key=_stored_name), key=_stored_name):
            matrices = tuple(alike)
            name, number_format = product_kernel(self.kind, rows, matrices[0]), matrices[0].number_format
            cost = products_cost(rows, matrices)
            yield Launch(name, number_format, len(matrices), cost, part, stored, rows=rows, matrices=matrices)

    @property
    @override
    def number_format(self) -> str:
        return self.matrices[0].number_format

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        return tuple(share for matrix in self.matrices for share in matrix.shares())

    @override
    def signature(self) -> Hashable:
        return tuple((matrix.spec, matrix.stored) for matrix in self.matrices), self.adapters()

    @override
    def extra_repr(self) -> str:
        return f"{self.matrices[0].inputs} -> {' + '.join(str(matrix.outputs) for matrix in self.matrices)}"


def product_kernel(kind: str, rows: int, matrix: Matrix) -> str:
    """The kernel of a product: a matrix times one row is another one than times several; so is one that is stored the
    other way.
    """
    return f"{kind}.{'vector' if rows == 1 else 'matrix'}{'.transposed' if matrix.spec.transposed else ''}"


def products_cost(rows: int, matrices: tuple[Matrix, ...]) -> Cost:
    """The cost of products of the same rows."""
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
    """The name of the format that its numbers are stored in; "" for the model's dtype."""
    return stored_name(matrix.stored)
