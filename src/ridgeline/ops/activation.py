"""Activations, and the projections that feed them: the first half of an MLP, plain or gated."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.elementwise import Elementwise
from ridgeline.ops.formats import format_of
from ridgeline.ops.kernels import Library, cards_of, native
from ridgeline.ops.linear import Projections, native_kernel, products_cost
from ridgeline.ops.matrix import AdaptedMatrix, Matrix, MatrixSpec, stored_alike
from ridgeline.ops.op import Kernel, stored_name
from ridgeline.ops.work import TOKENS, Space, Work

_gelu_tanh = partial(functional.gelu, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid in the place of the normal distribution (Hendrycks and Gimpel, arXiv:1606.08415, section 2)."""
    return x * torch.sigmoid(1.702 * x)


# By the names that config.json files use.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": functional.silu,
        "swish": functional.silu,
        "gelu": functional.gelu,
        "gelu_new": _gelu_tanh,
        "gelu_pytorch_tanh": _gelu_tanh,
        "gelu_fast": _gelu_tanh,
        "quick_gelu": _quick_gelu,
        "relu": functional.relu,
        "tanh": torch.tanh,
        "relu2": lambda x: functional.relu(x).square(),
    }
)


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss's SwiGLU: (up + 1) x gate x sigmoid(alpha x gate), the gate at most `limit`, what it gates within it on
    both sides."""

    alpha: float
    limit: float

    def __call__(self, gate_TF: Tensor, up_TF: Tensor) -> Tensor:
        """Two of [rows, columns] -> [rows, columns]."""
        gate_TF, up_TF = gate_TF.clamp(max=self.limit), up_TF.clamp(-self.limit, self.limit)
        return (up_TF + 1) * gate_TF * (gate_TF * self.alpha).sigmoid()


def _adapted(matrix: Matrix, x_NI: Tensor) -> Tensor:
    """The product of rows that have an adapter, which may leave this matrix alone."""
    return matrix.adapted(x_NI) if isinstance(matrix, AdaptedMatrix) else matrix.product(x_NI)


class ActivatedProjections(Projections):
    """act(x W), or act(x Wg) * (x Wu) where there is a gate (Shazeer, arXiv:2002.05202). One boundary, as Projections.

    The gate is the first of two matrices, or the first part of a fused one.
    """

    parts: tuple[str, ...] = ("products", "activate")
    FLOPS_PER_ELEMENT = 5  # exp or tanh counted as one, with the products around it

    def __init__(self, specs: Mapping[str, MatrixSpec], activation: str) -> None:
        super().__init__(specs)
        self.activation, self.function = activation, ACTIVATIONS[activation]
        results = [part for spec in specs.values() for part in spec.own_parts]
        assert len(results) == 1 or (len(results) == 2 and results[0] == results[1]), (
            "a gate is as wide as what it gates"
        )
        self.gated, self.width = len(results) == 2, results[0]

    def forward(self, x_TI: Tensor) -> Tensor:  # type: ignore[override]
        """x_TI [rows, inputs] -> [rows, width]."""
        kernels = native(x_TI) if self.fused else None
        if kernels is None:
            return self.activate(*self.products(x_TI))
        rows = next((matrix.rows for matrix in self.matrices if isinstance(matrix, AdaptedMatrix)), None)
        if rows is None or not rows.parts:
            return self._at_once(kernels, x_TI)
        x_NI = rows.of(x_TI)
        own_NF = self.activate(*(_adapted(matrix, x_NI) for matrix in self.matrices))
        if rows.whole:
            return own_NF
        y_TF = x_TI.new_empty(len(x_TI), self.width).index_copy_(0, rows.own_N, own_NF)
        if len(rows.rest):  # as in a step without adapters, so that a row is the same whoever runs beside it
            y_TF.index_copy_(0, rows.rest, self._at_once(kernels, x_TI.index_select(0, rows.rest)))
        return y_TF

    def _at_once(self, kernels: Library, x_TI: Tensor) -> Tensor:
        """All of it by one kernel, without adapters."""
        gate, up = (matrix.operands for matrix in self.matrices)
        assert gate is not None, "what is fused has operands"
        assert up is not None
        return kernels.gated_products(x_TI, gate, up, self.activation)

    def activate(self, x_TF: Tensor, up_TF: Tensor | None = None) -> Tensor:
        """The activation of the products [rows, width] -> [rows, width]."""
        if x_TF.is_meta:
            return x_TF.new_empty(x_TF.shape)
        if up_TF is not None and (kernels := cards_of(x_TF)):
            both_TF = kernels.gated(x_TF, up_TF, self.activation)
            if both_TF is not None:
                return both_TF
        activated = self.function(x_TF)
        return activated if up_TF is None else activated * up_TF

    @property
    def fusible(self) -> bool:
        """As Op.fusible: of a gate and what it gates, each a matrix that our kernels take."""
        matrices = self.matrices
        return self.gated and len(matrices) == 2 and stored_alike(matrices) and all(own.operands for own in matrices)

    def cost_of(self, rows: int) -> Cost:
        """The products and the activation; what lies between them needs no memory."""
        products, first = products_cost(rows, self.matrices), self.matrices[0]
        own = Cost({"fp32": self._flops(rows)})
        moved = rows * (first.inputs + self.width) * first.spec.dtype.itemsize
        return structs.replace(products + own, activation_bytes=moved)

    def native_kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """As Op.native_kernels. The one that does all of it knows no adapters: rows that have one go through those that
        do it in parts, which read the matrices once more."""
        adapted = self.adapted_rows(work)
        if not self.fusible or not adapted:
            return super().native_kernels(work, space)
        rest = work.rows.get(space, 0) - adapted
        at_once = self.native_kernels_of(rest) if rest else ()
        in_parts = (
            *self.native_product_kernels(adapted, "forward"),
            structs.replace(self._activation_kernel(adapted), part="forward"),
        )
        return (*at_once, *in_parts, *self.adapter_kernels(work, natively=True))

    def kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.kernels_of: the products, then the activation over what they left in memory."""
        return (*self.product_kernels(rows, "products"), self._activation_kernel(rows))

    @property
    def runs_natively(self) -> bool:
        """As Op.runs_natively."""
        return self.fusible

    def native_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.native_kernels_of: all of it at once, or ours and torch's activation."""
        if self.fusible:
            stored = stored_name(self.matrices[0].stored)
            own = Kernel(self.kind, self.number_format, 1, self.cost_of(rows), stored=stored)
            return (native_kernel(own, self.kind, rows, self.matrices, interleaved=self.interleaved(card=False)),)
        return (*self.native_product_kernels(rows, "products"), self._activation_kernel(rows))

    def card_kernels_of(self, rows: int) -> tuple[Kernel, ...]:
        """As Op.card_kernels_of: the products, then the activation."""
        return (*self.native_product_kernels(rows, "products", card=True), self._activation_kernel(rows))

    def _activation_kernel(self, rows: int) -> Kernel:
        streams = 3 if self.gated else 2
        dtype = self.matrices[0].spec.dtype
        activation = Cost({"fp32": self._flops(rows)}, activation_bytes=rows * self.width * streams * dtype.itemsize)
        kind = "elementwise.gated" if self.gated else "elementwise.plain"
        return Kernel(kind, format_of(dtype).name, 1, activation, "activate")

    def _flops(self, rows: int) -> float:
        return float(self.FLOPS_PER_ELEMENT * rows * self.width)

    def signature(self) -> Hashable:
        return super().signature(), self.gated

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.activation}"


class GatedActivation(Elementwise):
    """act(gate) * up, where both are parts of a product that gave more than them."""

    kernel_name = "elementwise.gated"
    FLOPS_PER_ELEMENT = ActivatedProjections.FLOPS_PER_ELEMENT

    def __init__(self, width: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self.activation, self.function = activation, ACTIVATIONS[activation]

    def forward(self, gate_TF: Tensor, up_TF: Tensor) -> Tensor:
        """Two of [rows, width] -> [rows, width]."""
        return gate_TF.new_empty(gate_TF.shape) if gate_TF.is_meta else self.function(gate_TF) * up_TF
