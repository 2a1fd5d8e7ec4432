"""Matrices as AWQ's tools store them for their GEMM kernels (arXiv:2306.00978; the tensors are those of AutoAWQ).

Words of int32 hold eight integers of 4 bits each, of outputs in an order of their own. `qweight` [I, O / 8]; `qzeros`
[G, O / 8]; `scales` [G, O].
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.packed_words import integers, words_for
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape
from ridgeline.core.ops.matrix.quantised import packed

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of eight outputs is: from the lowest bits on they are 0, 2, 4, 6, 1, 3, 5, 7."""


class AwqMatrix(PrequantisedMatrix):
    """A zero for each scale; the order of outputs in words is undone."""

    @override
    def layout_names(self) -> tuple[str, ...]:
        return "qweight", "qzeros", "scales"

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        spec, groups = self.spec, self.whole_groups
        if name == "scales":
            check_shape(full, groups, spec.outputs)
            return self.put_scales(self.of_groups(self.of_outputs(full.t())))
        check_dtype(full, torch.int32)
        rows = groups if name == "qzeros" else spec.inputs
        check_shape(full, rows, words_for(spec.outputs, 4))
        in_order = integers(full, 4).view(rows, -1, len(_PLACES))[:, :, list(_PLACES)].flatten(1)[:, : spec.outputs]
        own = self.of_outputs(in_order.t())
        if name == "qzeros":
            return {"zero": self.of_groups(own).contiguous()}
        return {"codes": packed(self.of_inputs(own), "int4")}
