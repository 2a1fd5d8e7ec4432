"""Activations and the projections before them: the first half of an MLP, plain or gated.

Shapes: T rows of a step, N rows of any kind, I inputs, F columns of an MLP.
"""

from collections.abc import Hashable, Mapping

import torch
from msgspec import structs
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import Elementwise
from ridgeline.core.ops.linear import Projections, ProjectionsBackend, products_cost
from ridgeline.core.ops.matrix import Matrix, MatrixSpec
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, OpBackend


class GateBackend(OpBackend):
    """The methods of a backend that gated MLPs call, implemented in PyTorch."""

    def gated_products(self, gate: Matrix, up: Matrix, activation: str, x_NI: Tensor) -> Tensor:
        """Return act(x Wg) * (x Wu) for two matrices: [N, F].

        Args:
            gate: The matrix of the gate, Wg.
            up: The matrix of the gated values, Wu.
            activation: The name of the activation in config.json.
            x_NI: The rows.
        """
        return self.gated(gate.product(x_NI), up.product(x_NI), activation)

    def gated(self, gate_TF: Tensor, up_TF: Tensor, activation: str) -> Tensor:
        """Return act(gate) * up: [T, F]; `activation` is its name in config.json."""
        return ACTIVATIONS[activation](gate_TF) * up_TF


class ActivationBackend(ProjectionsBackend, GateBackend):
    """The methods of a backend that activated projections call, implemented in PyTorch."""

    def activated_products(self, op: "ActivatedProjections", x_TI: Tensor) -> Tensor:
        """Return act(x W), or act(x Wg) * (x Wu) for an op with a gate: [T, F]."""
        return op.in_parts(x_TI)


class ActivatedProjections(Projections):
    """The first half of an MLP: act(x W), or act(x Wg) * (x Wu) if it has a gate (Shazeer, arXiv:2002.05202).

    One fused kernel may compute the whole op. The gate is the first of two matrices, or the first part of a fused one.
    """

    backend: ActivationBackend = ActivationBackend()
    parts: tuple[str, ...] = ("products", "activate")
    FLOPS_PER_ELEMENT = 5
    """FLOPs of an MLP's activation per number: exp or tanh counted as one, and the products around it."""

    def __init__(self, specs: Mapping[str, MatrixSpec], activation: str) -> None:
        super().__init__(specs)
        self.activation, self.function = activation, ACTIVATIONS[activation]
        results = [part for spec in specs.values() for part in spec.own_parts]
        assert len(results) == 1 or (len(results) == 2 and results[0] == results[1]), (
            "a gate has the width of the values that it gates"
        )
        self.gated, self.width = len(results) == 2, results[0]

    @override
    def forward(self, x_TI: Tensor) -> Tensor:  # type: ignore[override]
        """Return the activated projection of x_TI [rows, inputs]: [rows, width]."""
        return self.in_parts(x_TI) if x_TI.is_meta else self.backend.activated_products(self, x_TI)

    def in_parts(self, x_TI: Tensor) -> Tensor:
        """Return an MLP's activated projections, with products and activation in separate calls, as in PyTorch."""
        return self.activate(*self.products(x_TI))

    def activate(self, x_TF: Tensor, up_TF: Tensor | None = None) -> Tensor:
        """Return the activation of a matrix product [rows, width], times `up_TF` if the MLP has a gate."""
        if x_TF.is_meta:
            return x_TF.new_empty(x_TF.shape)
        return self.function(x_TF) if up_TF is None else self.backend.gated(x_TF, up_TF, self.activation)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of an MLP's first products and their activation, without memory traffic between them."""
        products, first = products_cost(rows, self.matrices), self.matrices[0]
        own = Cost({"fp32": self._flops(rows)})
        moved = rows * (first.inputs + self.width) * first.spec.dtype.itemsize
        return structs.replace(products + own, activation_bytes=moved)

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """Return the launches of an MLP's first products and of the activation, which reads them from memory."""
        return (*self.product_launches(rows, "products"), self._activation_launch(rows))

    def _activation_launch(self, rows: int) -> Launch:
        streams = 3 if self.gated else 2
        dtype = self.matrices[0].spec.dtype
        activation = Cost({"fp32": self._flops(rows)}, activation_bytes=rows * self.width * streams * dtype.itemsize)
        kind = "elementwise.gated" if self.gated else "elementwise.plain"
        return Launch(kind, format_of(dtype).name, 1, activation, "activate")

    def _flops(self, rows: int) -> float:
        return float(self.FLOPS_PER_ELEMENT * rows * self.width)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.gated

    @override
    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.activation}"


class GatedActivation(Elementwise):
    """A gated activation, act(gate) * up, of two parts of a wider matrix product."""

    kernel_name = "elementwise.gated"
    FLOPS_PER_ELEMENT = ActivatedProjections.FLOPS_PER_ELEMENT

    def __init__(self, width: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self.activation, self.function = activation, ACTIVATIONS[activation]

    @override
    def forward(self, gate_TF: Tensor, up_TF: Tensor) -> Tensor:
        """Return act(gate) * up for two tensors [rows, width]."""
        return gate_TF.new_empty(gate_TF.shape) if gate_TF.is_meta else self.function(gate_TF) * up_TF
