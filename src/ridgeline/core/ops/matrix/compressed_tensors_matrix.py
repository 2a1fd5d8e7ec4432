"""Integer matrices in the formats of compressed-tensors, packed into words or one byte per integer.

Packed, with n integers in a word of int32:
- `weight_packed` [O, I / n].
- `weight_shape`.
- `weight_zero_point` [O / n, G].

Unpacked:
- `weight` and `weight_zero_point`, int8.

Both:
- `weight_scale` [O / rows, G].
- `weight_g_idx` [I]: the group of each input, if groups are not of consecutive inputs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.matrix import MatrixSpec
from ridgeline.core.ops.matrix.packed_words import SIGN_BIT, integers, words_for
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape
from ridgeline.core.ops.number_formats import WeightFormat


class SignedMatrix(PrequantisedMatrix):
    """A weight matrix of signed integers, one byte each (int-quantized)."""

    weight_name, zero_name = "weight", "weight_zero_point"

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        zeros = (self.zero_name,) if stored.zero_bits else ()
        self.names = (self.weight_name, "weight_scale", *zeros, *(("weight_g_idx",) if stored.ordered else ()))

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        match name:
            case "weight_scale":
                return self.put_scales(self._of_scales(full))
            case self.zero_name:
                return {"zero": self._of_scales(self.zeros(full)).contiguous()}
            case "weight_g_idx":
                check_dtype(full, torch.int32)
                check_shape(full, self.spec.inputs)
                unordered = bool((full < 0).any())  # the initial value, before calibration assigns groups
                return self.put_groups(self.consecutive_groups() if unordered else full)
        return self.put_codes(self.of_inputs(self.bytes_of(full)))

    def bytes_of(self, full: Tensor) -> Tensor:
        """Return the quantised weights of this rank's outputs, converted to unsigned bytes."""
        check_dtype(full, torch.int8)
        check_shape(full, self.spec.outputs, self.spec.inputs)
        return self.of_outputs(full).contiguous().view(torch.uint8) ^ SIGN_BIT

    def zeros(self, full: Tensor) -> Tensor:
        """Return the zero points of a quantised matrix, of all ranks, as uint8 in the shape of the scales."""
        check_dtype(full, torch.int8)
        return full.contiguous().view(torch.uint8) ^ SIGN_BIT

    def _of_scales(self, full: Tensor) -> Tensor:
        """Return this rank's part of a checkpoint tensor with one entry per scale, after checking its shape."""
        rows = self.stored.block[0]
        shape = -(-self.spec.outputs // (rows or self.spec.outputs)), self.whole_groups
        if self.stored.block[1] is None and full.numel() == shape[0]:  # stored without a second axis
            full = full.reshape(shape)
        check_shape(full, *shape)
        return self.of_groups(full if rows is None else self.of_outputs(full, each=rows))


class PackedMatrix(SignedMatrix):
    """A weight matrix of unsigned integers packed into words, the first in the lowest bits (pack-quantized).

    The bytes of these words are already codes as kernels read them.
    """

    weight_name = "weight_packed"

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.names = (*self.names, "weight_shape")

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        if name != "weight_shape":
            return super().put(name, full)
        shape = [self.spec.outputs, self.spec.inputs]
        if full.tolist() != shape:
            raise ValueError(f"says {full.tolist()}, but the config requires {shape}")
        return {}

    @override
    def bytes_of(self, full: Tensor) -> Tensor:
        spec, bits = self.spec, self.stored.bits
        check_dtype(full, torch.int32)
        check_shape(full, spec.outputs, words_for(spec.inputs, bits))
        whole = -(-spec.inputs * bits // 8)
        return self.of_outputs(full).contiguous().view(torch.uint8)[:, :whole]

    @override
    def zeros(self, full: Tensor) -> Tensor:
        spec, bits = self.spec, self.stored.bits
        check_dtype(full, torch.int32)
        check_shape(full, words_for(spec.outputs, bits), self.whole_groups)
        return integers(full.t(), bits)[:, : spec.outputs].t()
