"""The kernels for cards as functions of tensors: what ops ask of `Kernels` where rows are on a card.

Shapes: T rows of a step, I inputs, O outputs, F columns of an MLP.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.backends.cuda.triton import product, triton_activation, triton_norm
from ridgeline.backends.cuda.triton.likeliest import likeliest
from ridgeline.core.ops.matrix.operands import Operands


class TritonKernels:
    """Ours in Triton for what a card's libraries have no kernel for, or a slower one: norms with the addition before
    them, gates, products of one row or a few, and of codes, the largest number of a row. Products of many rows are
    torch's (cuBLAS).
    """

    name = "triton"

    def takes(self, own: Operands) -> bool:
        """Whether rows are multiplied with such a matrix here."""
        return own.codes is None or own.codes.kind in product.KINDS

    def products(
        self, x_TI: Tensor, matrices: Sequence[Operands], out: torch.dtype | None = None
    ) -> tuple[Tensor, ...]:
        """As Library.products."""
        return tuple(_product(x_TI, own, out or x_TI.dtype) for own in matrices)

    def norm(
        self, x_xD: Tensor, weight_D: Tensor, eps: float, *, from_one: bool, added_ND: Tensor | None = None
    ) -> Tensor:
        """As Library.norm."""
        added = None if added_ND is None else _vectors(added_ND)
        return triton_norm.rms_norm(_vectors(x_xD), weight_D, eps, from_one=from_one, added_THD=added).view(x_xD.shape)

    def likeliest(self, x_RV: Tensor) -> Tensor:
        """As likeliest.likeliest."""
        return likeliest(x_RV)

    def gated(self, gate_TF: Tensor, up_TF: Tensor, name: str) -> Tensor | None:
        """act(gate) * up -> [T, F]; None for an activation that there is no kernel for. name: of config.json."""
        return triton_activation.gated(gate_TF, up_TF, name) if name in triton_activation.NAMES else None


def _product(x_TI: Tensor, own: Operands, out: torch.dtype) -> Tensor:
    if product.takes(own, len(x_TI)):
        return product.few_products(x_TI, own, out)
    weight = own.weight if own.codes is None else product.widened(own, x_TI.shape[1], x_TI.dtype)
    if out != x_TI.dtype and own.bias is None and x_TI.is_cuda:
        return torch.mm(x_TI, weight.t(), out_dtype=out)
    return functional.linear(x_TI, weight, own.bias).to(out)


def _vectors(x_xD: Tensor) -> Tensor:
    """[T, D] or [T, H, D] as the latter."""
    return x_xD.unsqueeze(1) if x_xD.dim() == 2 else x_xD
