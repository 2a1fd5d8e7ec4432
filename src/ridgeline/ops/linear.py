"""Products with stored matrices: one (Linear, Head), or several over the same rows at once (Projections)."""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import cast

import torch
from msgspec import structs
from torch import Tensor, nn

from ridgeline.ops.cost import SOFTCAP_FLOPS, Cost
from ridgeline.ops.formats import WeightFormat, format_of
from ridgeline.ops.kernels import Operands, kernels_of
from ridgeline.ops.matrix import (
    AdaptedMatrix,
    AdapterRows,
    LowRank,
    Matrix,
    MatrixSpec,
    PlainMatrix,
    matrix_of,
    stored_alike,
)
from ridgeline.ops.op import Kernel, Op, stored_name
from ridgeline.ops.place import Place
from ridgeline.ops.stored import Share
from ridgeline.ops.work import TOKENS, Space, Work, adapter_space

INTEGERS = "int8"
"""The format of products with codes that are interleaved: rows are rounded to it (kernels/native/interleaved.h)."""

FEW_ROWS = 8
"""Most rows for which our products read a matrix as it comes; for more they lay it out first (STREAMED_ROWS of
kernels/native/product.h)."""

WHOLE_TILE = 4
"""Rows from which a tile of our products is bound by its arithmetic. One of two or three rows is bound by what it loads
and fetches ahead, and takes as long as one of four: these have a kernel class of their own, named after the two."""

_BLOCK = 1024  # inputs after which our products add up the lanes of each output's sum (native/product.h, 16 lanes)
_LANE_SUMS = {"bf16": 3 * 64.0, "fp32": 3 * 32.0}
"""FLOPs that the instructions which add up the lanes of a sum could have done: three an output (native/lanes.h)."""


class Multiplies(Op):
    """An op of one or several stored matrices, any of which may have adapters beside it (`ops/matrix/adapted.py`)."""

    kind = "linear"
    names: tuple[str, ...] = ("matrix",)
    """The names of its matrices, in the order of the results."""

    @property
    @abstractmethod
    def matrices(self) -> tuple[Matrix, ...]:
        """In the order of the results."""

    def interleaved(self, *, card: bool) -> bool:
        """Whether its kernel reads codes side by side (Matrix.interleaves): of those that rows are multiplied with at
        once all have them so, or none."""
        return not card and all(matrix.interleaves for matrix in self.matrices)

    def adaptable(self) -> Mapping[str, Matrix]:
        """As Op.adaptable."""
        return dict(zip(self.names, self.matrices, strict=True))

    def adapt(self, number: int, name: str, added: LowRank, rows: AdapterRows) -> None:
        """As Op.adapt."""
        matrix = getattr(self, name)
        if not isinstance(matrix, AdaptedMatrix):
            matrix = AdaptedMatrix(matrix, rows)
            self.add_module(name, matrix)
        matrix.adapt(number, added)

    def cost(self, work: Work, space: Space = TOKENS) -> Cost:
        """As Op.cost, and what the adapters of the step's rows add."""
        cost = super().cost(work, space)
        for low_rank, rows in self.adapters_of(work):
            cost += low_rank.cost_of(rows)
        return cost

    def kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """As Op.kernels; of each adapter two more."""
        return (*super().kernels(work, space), *self.adapter_kernels(work))

    def native_kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """As Op.native_kernels; of each adapter two more."""
        return (*super().native_kernels(work, space), *self.adapter_kernels(work, natively=True))

    def card_kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """As Op.card_kernels; of each adapter two more."""
        return (*super().card_kernels(work, space), *self.adapter_kernels(work))

    def adapter_kernels(self, work: Work, *, natively: bool = False) -> tuple[Kernel, ...]:
        """The kernels of the adapters in a step. natively: where our kernels run."""
        return tuple(
            Kernel(_adapter_kernel(rows, natively), format_of(low_rank.lora_A.dtype).name, 2, low_rank.moved_by(rows))
            for low_rank, rows in self.adapters_of(work)
        )

    def adapted_rows(self, work: Work) -> int:
        """How many rows of a step have an adapter that is beside one of its matrices."""
        numbers = {n for m in self.matrices if isinstance(m, AdaptedMatrix) for n, _ in m.shape()}
        return sum(work.rows.get(adapter_space(number), 0) for number in numbers)

    def adapters_of(self, work: Work) -> list[tuple[LowRank, int]]:
        """What adapters add in a step, and to how many rows."""
        adapted = [matrix for matrix in self.matrices if isinstance(matrix, AdaptedMatrix)]
        return [each for matrix in adapted for each in matrix.of_step(work.rows)]

    def adapters(self) -> Hashable:
        """What their cost depends on, for a signature."""
        return tuple(matrix.shape() if isinstance(matrix, AdaptedMatrix) else () for matrix in self.matrices)


class Linear(Multiplies):
    """A matrix product with a stored weight, whole or a rank's columns or rows of it.

    exempt: whether its numbers stay in the model's dtype whatever the other matrices are stored in, as quantisers leave
    routers and heads.
    """

    def __init__(self, spec: MatrixSpec, *, exempt: bool = False) -> None:
        super().__init__()
        self.matrix, self.exempt = matrix_of(spec), exempt
        self.matrix.unnamed = True

    def places(self) -> Mapping[str, Place]:
        """As Op.places."""
        return {"matrix": self.matrix.spec.place("router" if self.exempt else "matrix")}

    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        """As Op.store."""
        self.matrix = matrix_of(self.matrix.spec, stored["matrix"])
        self.matrix.unnamed = True

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The one."""
        return (self.matrix,)

    @property
    def stored(self) -> WeightFormat | None:
        """The format of its numbers; None for the model's dtype."""
        return self.matrix.stored

    def forward(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]; of a row split, this rank's summand of them."""
        return self.matrix.product(x_TI)

    def cost_of(self, rows: int) -> Cost:
        """2 x rows x inputs x outputs FLOPs; the weight once, however many rows share it."""
        return products_cost(rows, (self.matrix,))

    @property
    def runs_natively(self) -> bool:
        """As Op.runs_natively."""
        return self.matrix.operands is not None

    def kernel(self, rows: int) -> str:
        """As Op.kernel."""
        return product_kernel(self.kind, rows, self.matrix)

    def native_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.native_kernels_of."""
        return self._kernels_of_ours(rows, card=False)

    def card_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.card_kernels_of."""
        return self._kernels_of_ours(rows, card=True)

    def _kernels_of_ours(self, rows: int, *, card: bool) -> tuple[Kernel, ...]:
        (kernel,) = self.kernels_of(rows)
        if self.matrix.operands is None:
            return (kernel,)
        interleaved = self.interleaved(card=card)
        return (native_kernel(kernel, self.kind, rows, (self.matrix,), card=card, interleaved=interleaved),)

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return self.matrix.number_format

    def shares(self) -> tuple[Share, ...]:
        """As Stored.shares."""
        return self.matrix.shares()

    def signature(self) -> Hashable:
        return self.matrix.spec, self.matrix.stored, self.adapters()

    def extra_repr(self) -> str:
        return self.matrix.extra_repr()


class Head(Linear):
    """The last projection: hidden state -> logits in fp32.

    multiplier: of the logits (Granite, Cohere). softcap: they are squashed to (-softcap, softcap) by
    softcap x tanh(logits / softcap) (Gemma 2, arXiv:2408.00118). scale: of the hidden states (T5, whose head is the
    embedding). Tied to the embedding by sharing its parameter; it is read in full either way, so the cost is the same.
    """

    kind = "head"
    part = "head"

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

    def places(self) -> Mapping[str, Place]:
        """As Op.places."""
        return {"matrix": self.matrix.spec.place("head")}

    def adaptable(self) -> Mapping[str, Matrix]:
        """As Op.adaptable: none adds to the logits."""
        return {}

    def forward(self, x_RI: Tensor) -> Tensor:
        """x_RI [logit rows, hidden] -> fp32 [logit rows, vocabulary]."""
        if self.scale is not None and not x_RI.is_meta:
            x_RI = x_RI * self.scale
        operands = self.matrix.operands
        if (kernels := kernels_of(x_RI)) and operands and kernels.takes(operands):
            (logits_RV,) = kernels.products(x_RI, (operands,), torch.float32)
        else:
            logits_RV = super().forward(x_RI)  # in the model's dtype, and so is what follows, as the references have it
        if self.multiplier != 1:
            logits_RV = logits_RV * self.multiplier
        if self.softcap is not None:
            logits_RV = (logits_RV / self.softcap).tanh() * self.softcap
        return logits_RV.float()

    @property
    def runs_natively(self) -> bool:
        """As Op.runs_natively."""
        return super().runs_natively and not self.flops_per_logit

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

    def signature(self) -> Hashable:
        return super().signature(), self.flops_per_logit, self.scale is None


class Projections(Multiplies):
    """Several products of the same rows: queries, keys and values. One boundary, which a kernel may do at once.

    Its matrices have the names that the checkpoint gives them; its own name is left out of theirs.
    """

    unnamed = True

    def __init__(self, specs: Mapping[str, MatrixSpec]) -> None:
        """specs: of each matrix, by its name in the checkpoint, in the order of the results."""
        super().__init__()
        self.names = tuple(specs)
        self.joined: Operands | None = None
        for name, spec in specs.items():
            self.add_module(name, matrix_of(spec))
        assert len({matrix.inputs for matrix in self.matrices}) == 1, "projections of one input"

    def matrix(self, name: str) -> Matrix:
        """The one of this name."""
        return cast(Matrix, getattr(self, name))

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """In the order of the results."""
        return tuple(map(self.matrix, self.names))

    def places(self) -> Mapping[str, Place]:
        """As Op.places."""
        return {name: self.matrix(name).spec.place("matrix", name) for name in self.names}

    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        """As Op.store."""
        for name, matrix in zip(self.names, self.matrices, strict=True):
            self.add_module(name, matrix_of(matrix.spec, stored[name]))

    def forward(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """x_TI [rows, inputs] -> [rows, outputs] of each matrix, a fused one in its parts."""
        return self.products(x_TI)

    def products(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        """As forward."""
        parts: list[Tensor] = []
        results: Sequence[Tensor]
        if self.joined is not None and (kernels := kernels_of(x_TI)):
            (whole_TO,) = kernels.products(x_TI, (self.joined,))
            results = torch.split(whole_TO, [matrix.outputs for matrix in self.matrices], dim=-1)
        else:
            results = products(x_TI, self.matrices)
        for matrix, y_TO in zip(self.matrices, results, strict=True):
            parts += torch.split(y_TO, list(matrix.spec.own_parts), dim=-1) if matrix.spec.parts else (y_TO,)
        return tuple(parts)

    def join(self) -> None:
        """Lay plain matrices behind each other in memory, where that was not done, so that one product gives all of
        their results: a card takes as long to begin a small one as to do it. They stay what they are by name."""
        weights = [own for own in map(_plain, self.matrices) if own is not None]
        biased = {own.bias is not None for own in weights}
        if len(weights) < max(2, len(self.names)) or len(biased) != 1:
            return
        whole = torch.cat([own.weight for own in weights])
        biases = [own.bias for own in weights if own.bias is not None]
        bounds = [len(own.weight) for own in weights]
        for matrix, part in zip(self.matrices, torch.split(whole, bounds), strict=True):
            matrix.weight = nn.Parameter(part, requires_grad=False)
        self.joined = Operands(whole, torch.cat(biases) if biases else None)

    def cost_of(self, rows: int) -> Cost:
        """The products, the rows read once."""
        return products_cost(rows, self.matrices)

    @property
    def runs_natively(self) -> bool:
        """As Op.runs_natively."""
        return all(matrix.operands for matrix in self.matrices)

    def kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.kernels_of: a launch a matrix."""
        return tuple(self.product_kernels(rows, "forward"))

    def native_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.native_kernels_of: one launch for all matrices."""
        return tuple(self.native_product_kernels(rows, "forward"))

    def card_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.card_kernels_of."""
        return tuple(self.native_product_kernels(rows, "forward", card=True))

    def native_product_kernels(self, rows: int, part: str, *, card: bool = False) -> Iterator[Kernel]:
        """As `product_kernels`, where ours run: one call for all matrices, if they are stored alike."""
        at_once, interleaved = stored_alike(self.matrices), self.interleaved(card=card)
        for kernel in self.product_kernels(rows, part):
            if all(matrix.operands for matrix in self.matrices):
                alike = tuple(matrix for matrix in self.matrices if stored_name(matrix.stored) == kernel.stored)
                own = native_kernel(kernel, self.kind, rows, alike, card=card, interleaved=interleaved)
                yield structs.replace(own, calls=1) if at_once else own
            else:
                yield kernel

    def product_kernels(self, rows: int, part: str) -> Iterator[Kernel]:
        """The kernels of the products, one for all matrices that are stored alike. part: as of Kernel."""
        for stored, alike in groupby(sorted(self.matrices, key=_stored_name), key=_stored_name):
            matrices = tuple(alike)
            name, number_format = product_kernel(self.kind, rows, matrices[0]), matrices[0].number_format
            yield Kernel(name, number_format, len(matrices), products_cost(rows, matrices), part, stored)

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return self.matrices[0].number_format

    def shares(self) -> tuple[Share, ...]:
        """As Stored.shares."""
        return tuple(share for matrix in self.matrices for share in matrix.shares())

    def signature(self) -> Hashable:
        return tuple((matrix.spec, matrix.stored) for matrix in self.matrices), self.adapters()

    def extra_repr(self) -> str:
        return f"{self.matrices[0].inputs} -> {' + '.join(str(matrix.outputs) for matrix in self.matrices)}"


def _plain(matrix: Matrix) -> Operands | None:
    """What a matrix in the model's dtype that stands alone is multiplied with; None of any other."""
    own = matrix.operands if isinstance(matrix, PlainMatrix) else None
    return own if own is not None and own.codes is None else None


def products(x_TI: Tensor, matrices: Sequence[Matrix]) -> Sequence[Tensor]:
    """The product of the same rows with each matrix: in one call, where our kernels take them all and they are stored
    alike."""
    if kernels := kernels_of(x_TI):
        operands = [own for matrix in matrices if matrix.alone and (own := matrix.operands) and kernels.takes(own)]
        if len(operands) == len(matrices) and stored_alike(matrices):
            return kernels.products(x_TI, operands)
    return [matrix.product(x_TI) for matrix in matrices]


def product_kernel(kind: str, rows: int, matrix: Matrix) -> str:
    """The kernel of a product: a matrix times one row is another one than times several; so is one that is stored the
    other way."""
    return f"{kind}.{'vector' if rows == 1 else 'matrix'}{'.transposed' if matrix.spec.transposed else ''}"


def _adapter_kernel(rows: int, natively: bool) -> str:
    """The kernel of the products of an adapter."""
    return native_product_kernel("linear", rows) if natively else f"linear.{'vector' if rows == 1 else 'matrix'}"


def native_product_kernel(kind: str, rows: int, stored: WeightFormat | None = None) -> str:
    """Ours, of any number of matrices: one for one row, one for a few, one for more; of codes others. Of two or three
    rows and no codes, `native_kernel` has another."""
    name = f"{kind}.{'one' if rows == 1 else 'few' if rows <= FEW_ROWS else 'many'}"
    return f"{name}.{stored.kind}" if stored and stored.code else name


def native_kernel(
    kernel: Kernel,
    kind: str,
    rows: int,
    matrices: Sequence[Matrix],
    *,
    card: bool = False,
    interleaved: bool = False,
) -> Kernel:
    """Our kernel in the place of another one, of matrices that are stored alike: it reads what is held in memory, which
    may be more than a checkpoint stores, and computes in the model's dtype, whatever the format of the product is, or
    in integers where codes are interleaved. The one for the processor adds up lanes too, which for many rows of few
    inputs is as much work as their products."""
    first = matrices[0]
    name, number_format = native_product_kernel(kind, rows, first.stored), format_of(first.spec.dtype).name
    read = kernel.cost.weight_bytes + sum(matrix.repacked_bytes for matrix in matrices)
    cost = structs.replace(kernel.cost, weight_bytes=read)
    if interleaved:
        flops = dict(cost.flops)
        products = flops.pop(first.number_format)
        flops[INTEGERS] = flops.get(INTEGERS, 0.0) + products
        name, number_format = f"{name}.interleaved", INTEGERS
        cost = structs.replace(cost, flops=flops)
    elif not card and first.stored is None and number_format in _LANE_SUMS:
        if 1 < rows < WHOLE_TILE:
            name = f"{kind}.two"
        sums = rows * sum(matrix.outputs for matrix in matrices) * -(-first.inputs // _BLOCK)
        cost += Cost({number_format: sums * _LANE_SUMS[number_format]})
    return structs.replace(kernel, name=name, number_format=number_format, cost=cost)


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
