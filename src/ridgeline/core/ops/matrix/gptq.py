"""Matrices as GPTQ's tools store them (arXiv:2210.17323; the tensors are those of AutoGPTQ and GPTQModel).

Words of int32 hold integers of 4 or 8 bits, the first in the lowest bits. `qweight` [I / n, O]: n inputs of an output a
word; `qzeros` [G, O / n]: n outputs a word; `scales` [G, O]; `g_idx` int32 [I]: the group of each input.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.packed_words import integers, words_for
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape

_ONES = {4: 0x11111111, 8: 0x01010101}
"""One in each integer of a word."""


class GptqMatrix(PrequantisedMatrix):
    """The second version of the format: zeros are stored as they are."""

    @override
    def layout_names(self) -> tuple[str, ...]:
        return "qweight", "qzeros", "scales", "g_idx"

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        spec, bits, groups = self.spec, self.stored.bits, self.whole_groups
        match name:
            case "qweight":
                check_dtype(full, torch.int32)
                check_shape(full, words_for(spec.inputs, bits), spec.outputs)
                bytes_OB = self.of_outputs(full.t()).contiguous().view(torch.uint8)
                whole = -(-spec.inputs * bits // 8)  # of an odd number of inputs a word has more
                return self.put_codes(self.of_inputs(bytes_OB[:, :whole]))
            case "g_idx":
                check_dtype(full, torch.int32)
                check_shape(full, spec.inputs)
                return self.put_groups(full)
            case "scales":
                check_shape(full, groups, spec.outputs)
                return self.put_scales(self.of_groups(self.of_outputs(full.t())))
        check_dtype(full, torch.int32)
        check_shape(full, groups, words_for(spec.outputs, bits))
        zeros_GO = integers(self.zeros(full), bits)[:, : spec.outputs]
        return {"zero": self.of_groups(self.of_outputs(zeros_GO.t())).contiguous()}

    def zeros(self, words: Tensor) -> Tensor:
        """Words of zeros, of words as they are stored."""
        return words


class GptqV1Matrix(GptqMatrix):
    """The first version, which most checkpoints are in: zeros are stored less one. Their tools subtract it from whole
    words, in which a zero of 0 borrows from its neighbour; added to whole words it comes out right.
    """

    @override
    def zeros(self, words: Tensor) -> Tensor:
        return words + _ONES[self.stored.bits]
