"""Matrices in the checkpoint format of GPTQ (arXiv:2210.17323), with the tensors of AutoGPTQ and GPTQModel.

Words of int32 hold integers of 4 or 8 bits, the first in the lowest bits; n is the number of integers in a word.

- `qweight` [I / n, O]: each word holds n inputs of one output.
- `qzeros` [G, O / n]: each word holds the zero points of n outputs.
- `scales` [G, O].
- `g_idx` int32 [I]: the group of each input.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.packed_words import integers, words_for
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape

_ONES = {4: 0x11111111, 8: 0x01010101}
"""The 32-bit word with 1 in each of its packed integers, for each number of bits per integer."""


class GptqMatrix(PrequantisedMatrix):
    """A weight matrix in the second version of the GPTQ format, which stores zero points as they are."""

    names = ("qweight", "qzeros", "scales", "g_idx")

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        spec, bits, groups = self.spec, self.stored.bits, self.whole_groups
        match name:
            case "qweight":
                check_dtype(full, torch.int32)
                check_shape(full, words_for(spec.inputs, bits), spec.outputs)
                bytes_OB = self.of_outputs(full.t()).contiguous().view(torch.uint8)
                whole = -(-spec.inputs * bits // 8)  # words may be padded
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
        """Return words of GPTQ zero points, converted from the words that the checkpoint stores."""
        return words


class GptqV1Matrix(GptqMatrix):
    """A weight matrix in the first version of the GPTQ format, which stores zero points less one.

    Most checkpoints use this version. The quantiser subtracts 1 in each integer of a whole word at once, so a zero
    point of 0 borrows from its neighbour. Adding to whole words reverses this exactly.
    """

    @override
    def zeros(self, words: Tensor) -> Tensor:
        return words + _ONES[self.stored.bits]
