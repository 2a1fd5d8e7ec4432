"""Matrices of fp8 as checkpoints have them: `weight` in e4m3 (arXiv:2209.05433) beside its scales.

A scale is of a block of outputs and inputs (DeepSeek-V3, arXiv:2412.19437, section 3.3.2: 128 x 128), of an output or
of all of them. The scales of activations that static quantisation stores too are passed over: rows are not quantised.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_scale_dtype, check_shape
from ridgeline.core.ops.matrix.quantised import packed

SCALE_NAMES = ("weight_scale_inv", "weight_scale")
"""What the scales are called: by DeepSeek and transformers, though numbers are multiplied with them; by all others."""
_MOST = 128.0  # kernels widen by 2^120 times a scale, which has to stay within fp32


class Fp8Matrix(PrequantisedMatrix):
    """`weight` [O, I] float8_e4m3fn and its scales [O / rows, I / group]."""

    @override
    def layout_names(self) -> tuple[str, ...]:
        """As PrequantisedMatrix.layout_names; a checkpoint may have another of SCALE_NAMES."""
        return "weight", SCALE_NAMES[0]

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """As Stored.match_checkpoint: the name that it has for the scales."""
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
        if group is None and full.numel() == shape[0]:  # stored with one axis or none where it has no second
            full = full.reshape(shape)
        check_shape(full, *shape)
        check_scale_dtype(full)
        if full.abs().max() >= _MOST:
            raise ValueError(f"holds {full.abs().max():.3g}; scales of fp8 are below {_MOST:.0f}")
        own_OG = self.of_groups(full if rows is None else self.of_outputs(full, each=rows))
        return self.put_scales(own_OG)
