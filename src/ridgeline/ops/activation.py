"""Activations between the matrices of an MLP, plain or gated."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op
from ridgeline.ops.work import Work

_gelu_tanh = partial(functional.gelu, approximate="tanh")

# By the names that config.json files use.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": functional.silu,
        "swish": functional.silu,
        "gelu": functional.gelu,
        "gelu_new": _gelu_tanh,
        "gelu_pytorch_tanh": _gelu_tanh,
        "gelu_fast": _gelu_tanh,
        "relu": functional.relu,
        "relu2": lambda x: functional.relu(x).square(),
    }
)


class Activation(Op):
    """act(x), or act(gate) * up where a gate is given (Shazeer, arXiv:2002.05202)."""

    kind = "elementwise"
    FLOPS_PER_ELEMENT = 5  # exp or tanh counted as one, with the products around it

    def __init__(self, name: str, width: int, dtype: torch.dtype, *, gated: bool) -> None:
        super().__init__()
        self.name, self.width, self.dtype, self.gated = name, width, dtype, gated
        self.function = ACTIVATIONS[name]

    def forward(self, x_TF: Tensor, up_TF: Tensor | None = None) -> Tensor:
        """x_TF and, if gated, up_TF [rows, width] -> [rows, width]."""
        assert (up_TF is not None) == self.gated
        activated = self.function(x_TF)
        return activated if up_TF is None else activated * up_TF

    def cost(self, work: Work) -> Cost:
        elements = work.tokens * self.width
        streams = 3 if self.gated else 2
        return Cost(
            flops={"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            activation_bytes=elements * streams * format_of(self.dtype).bytes,
        )

    def kernel(self, work: Work) -> str:
        """As Op.kernel."""
        return "elementwise.gated" if self.gated else "elementwise.plain"

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.dtype).name

    def signature(self) -> Hashable:
        return self.width, self.gated, self.dtype

    def extra_repr(self) -> str:
        return f"{self.name}, {self.width}"
