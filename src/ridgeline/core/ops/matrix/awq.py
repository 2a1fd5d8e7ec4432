"""Matrices in the GEMM checkpoint format of AWQ (arXiv:2306.00978), with the tensors of AutoAWQ.

Words of int32 hold eight 4-bit integers of eight outputs, in an order of their own: `qweight` [I, O / 8]; `qzeros` [G,
O / 8]; `scales` [G, O].
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.packed_words import integers, words_for
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape
from ridgeline.core.ops.matrix.quantised import packed

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The 4-bit field of a word that holds each of its eight outputs, counted from the lowest bits.

So the fields hold the outputs 0, 2, 4, 6, 1, 3, 5, 7.
"""


class AwqMatrix(PrequantisedMatrix):
    """A weight matrix in the AWQ format, with zero points; loading restores the order of the outputs."""

    names = ("qweight", "qzeros", "scales")

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
