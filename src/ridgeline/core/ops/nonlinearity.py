"""Activation functions, by their names in config.json files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

_gelu_tanh = partial(functional.gelu, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    """Return the sigmoid approximation of GELU (Hendrycks and Gimpel, arXiv:1606.08415, section 2)."""
    return x * torch.sigmoid(1.702 * x)


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
"""The activation functions, by their names in config.json files."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """The clamped SwiGLU of gpt-oss: (up + 1) x gate x sigmoid(alpha x gate).

    The gate is clamped from above at `limit`, and `up` to [-limit, limit].
    """

    alpha: float
    limit: float

    def __call__(self, gate_TF: Tensor, up_TF: Tensor) -> Tensor:
        """Return gpt-oss's clamped SwiGLU of the gate and up tensors [rows, columns]."""
        gate_TF, up_TF = gate_TF.clamp(max=self.limit), up_TF.clamp(-self.limit, self.limit)
        return (up_TF + 1) * gate_TF * (gate_TF * self.alpha).sigmoid()
