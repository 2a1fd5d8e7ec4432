"""The Triton kernels as functions of tensors, for the ops whose rows are on a GPU.

Shapes: T rows of a step, I inputs, O outputs, F columns of an MLP.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.backends.cuda.triton import product, triton_activation, triton_norm
from ridgeline.backends.cuda.triton.likeliest import argmax_logits
from ridgeline.core.ops.matrix.operands import Operands


class TritonKernels:
    """The Triton kernels for which the GPU's libraries have no kernel or a slower one.

    These are norms, also with the residual addition before them, gated activations, products of one row, products of a
    few rows with codes, dequantisation of codes for more rows, and the largest number of a row. PyTorch (cuBLAS)
    multiplies all other rows.
    """

    name = "triton"

    def takes(self, own: Operands) -> bool:
        """Return whether the Triton kernels support the format of a matrix."""
        return own.codes is None or own.codes.kind in product.KINDS

    def products(
        self, x_TI: Tensor, matrices: Sequence[Operands], out: torch.dtype | None = None
    ) -> tuple[Tensor, ...]:
        """Return X W^T + b for each matrix, each [T, O]; the dtype of the results is `out`, by default that of x."""
        return tuple(_product(x_TI, own, out or x_TI.dtype) for own in matrices)

    def norm(
        self, x_xD: Tensor, weight_D: Tensor, eps: float, *, from_one: bool, added_ND: Tensor | None = None
    ) -> Tensor:
        """Return the RMS norm of vectors [..., D].

        Args:
            x_xD: Vectors.
            weight_D: Weight of the norm.
            eps: Epsilon of the norm.
            from_one: Whether the weight is added to 1 (Gemma).
            added_ND: Rows that are added to the vectors in place first, or None.
        """
        added = None if added_ND is None else _vectors(added_ND)
        return triton_norm.rms_norm(_vectors(x_xD), weight_D, eps, from_one=from_one, added_THD=added).view(x_xD.shape)

    def likeliest(self, x_RV: Tensor) -> Tensor:
        """Return the first column with the largest logit of each row, and that logit twice, as float64 [R, 3]."""
        return argmax_logits(x_RV)

    def gated(self, gate_TF: Tensor, up_TF: Tensor, name: str) -> Tensor | None:
        """Return act(gate) * up -> [T, F], or None if there is no kernel for the activation (a name in config.json)."""
        return triton_activation.gated(gate_TF, up_TF, name) if name in triton_activation.NAMES else None


def _product(x_TI: Tensor, own: Operands, out: torch.dtype) -> Tensor:
    """Return X W^T + b for one matrix, by our Triton kernel or by cuBLAS."""
    if product.takes(own, len(x_TI)):
        return product.few_products(x_TI, own, out)
    weight = own.weight if own.codes is None else product.widened(own, x_TI.shape[1], x_TI.dtype)
    if out != x_TI.dtype and own.bias is None and x_TI.is_cuda:
        return torch.mm(x_TI, weight.t(), out_dtype=out)
    return functional.linear(x_TI, weight, own.bias).to(out)


def _vectors(x_xD: Tensor) -> Tensor:
    """Return vectors [T, D] or [T, H, D] as [T, H, D]."""
    return x_xD.unsqueeze(1) if x_xD.dim() == 2 else x_xD
