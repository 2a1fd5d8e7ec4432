"""Matrices in fp8 as checkpoints store them: `weight` in e4m3 (arXiv:2209.05433) and its scales.

A scale belongs to a block of outputs and inputs (128 x 128 in DeepSeek-V3, arXiv:2412.19437, section 3.3.2), to one
output, or to the whole matrix. The activation scales that static quantisation also stores are ignored, because
activations are not quantised.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_scale_dtype, check_shape
from ridgeline.core.ops.matrix.quantised import packed

SCALE_NAMES = ("weight_scale_inv", "weight_scale")
"""The names that checkpoints use for the tensor with an fp8 matrix's scales.

DeepSeek and transformers use the first, although weights are multiplied by the scales; all others use the second.
"""
_MOST = 128.0  # kernels multiply by 2^120 times a scale, which must fit in fp32


class Fp8Matrix(PrequantisedMatrix):
    """A matrix in fp8: `weight` [O, I] float8_e4m3fn and its scales [O / rows, I / group]."""

    names = ("weight", SCALE_NAMES[0])  # a few checkpoints use another of SCALE_NAMES

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """Detect the name that a checkpoint uses for the scales of an fp8 matrix."""
        named = (name for name in SCALE_NAMES if dtype_of(name) is not None)
        self.names = "weight", next(named, SCALE_NAMES[0])

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        spec = self.spec
        if name == "weight":
            check_dtype(full, torch.float8_e4m3fn)
            check_shape(full, spec.outputs, spec.inputs)
            return {"codes": packed(self.of_inputs(self.of_outputs(full)), "fp8")}
        rows, group = self.stored.block
        shape = -(-spec.outputs // (rows or spec.outputs)), -(-spec.inputs // (group or spec.inputs))
        if group is None and full.numel() == shape[0]:  # stored without a second axis
            full = full.reshape(shape)
        check_shape(full, *shape)
        check_scale_dtype(full)
        if full.abs().max() >= _MOST:
            raise ValueError(
                f"holds {full.abs().max():.3g}, but scales of fp8 must be below {_MOST:.0f}; fetch the checkpoint again"
            )
        own_OG = self.of_groups(full if rows is None else self.of_outputs(full, each=rows))
        return self.put_scales(own_OG)
