"""The compressed-tensors layout of quantised weights: the tensors, their size, and the section of config.json.

Integers are stored as `weight_packed` (int32 words, the first code in the lowest bits), `weight_scale`, `weight_shape`
and, for groups with zero points, `weight_zero_point` (packed along the outputs). fp8, and int8 with quantised
activations, are stored as `weight` and `weight_scale`. These are the `pack-quantized`, `float-quantized` and
`int-quantized` compressors of compressed-tensors (https://github.com/vllm-project/compressed-tensors).
`core/ops/matrix/compressed_tensors_matrix.py` reads the layout.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.ops.matrix import QuantisedMatrix
from ridgeline.core.ops.matrix.packed_words import SIGN_BIT, WORD, bytes_of, words_for
from ridgeline.core.ops.number_formats import WeightFormat

_PACKED = "pack-quantized"


def compressed(base: str, matrix: QuantisedMatrix, weight: Tensor) -> dict[str, Tensor]:
    """Quantise a weight [O, I] and return the tensors of its compressed-tensors layout, named `base` plus a suffix.

    Raises:
        ValueError: If the numbers cannot be quantised.
    """
    made, stored = matrix.load_tensor("weight", weight), matrix.stored
    outputs, inputs = matrix.outputs, matrix.inputs
    scale = made["scale"] if stored.scale_bits == WORD else made["scale"].to(weight.dtype)
    if _layout(stored) != _PACKED:
        bytes_OI = made["codes"][:, :inputs].contiguous()
        codes = bytes_OI.view(torch.float8_e4m3fn) if stored.code == "fp8" else (bytes_OI ^ SIGN_BIT).view(torch.int8)
        return {f"{base}.weight": codes, f"{base}.weight_scale": scale}
    words = words_for(inputs, stored.bits)
    tensors = {
        f"{base}.weight_packed": made["codes"][:, : words * 4].contiguous().view(torch.int32),
        f"{base}.weight_scale": scale,
        f"{base}.weight_shape": torch.tensor([outputs, inputs]),
    }
    if "zero" in made:
        tensors[f"{base}.weight_zero_point"] = _packed_zeros(made["zero"], stored.bits)
    return tensors


def compressed_bytes(matrix: QuantisedMatrix, width: int) -> int:
    """Return the size in bytes of the tensors that `compressed` returns.

    `width` is the number of bytes per unquantised number.
    """
    stored, outputs, inputs = matrix.stored, matrix.outputs, matrix.inputs
    groups = -(-inputs // matrix.group)
    scales = outputs * groups * (4 if stored.scale_bits == WORD else width)
    if _layout(stored) != _PACKED:
        return outputs * inputs + scales
    zeros = words_for(outputs, stored.bits) * groups * 4 if stored.zero_bits else 0
    shape = 2 * torch.int64.itemsize
    return outputs * words_for(inputs, stored.bits) * 4 + scales + zeros + shape


def quantization_config(stored: WeightFormat, kept: tuple[str, ...]) -> dict[str, Any]:
    """Return the section of config.json that describes the weight format; `kept` lists the unquantised modules."""
    group = stored.block[1]
    weights = {
        "num_bits": stored.bits,
        "type": "float" if stored.code == "fp8" else "int",
        "symmetric": not stored.zero_bits,
        "strategy": "channel" if group is None else "group",
        "group_size": group,
        "dynamic": False,
    }
    number = "float" if stored.activations == "fp8" else "int"
    rows = {"num_bits": 8, "type": number, "symmetric": True, "strategy": "token", "dynamic": True}
    layout = _layout(stored)
    scheme = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": rows if stored.activations else None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": list(kept),
        "kv_cache_scheme": None,
    }


def _layout(stored: WeightFormat) -> str:
    """Return the compressed-tensors name of the layout of a weight format.

    Integers with quantised activations are not packed.
    """
    if stored.code == "fp8":
        return "float-quantized"
    return _PACKED if stored.activations is None else "int-quantized"


def _packed_zeros(zero_OG: Tensor, bits: int) -> Tensor:
    """Pack zero points uint8 [O, G] into int32 words [O / zero points per word, rounded up, G]."""
    padded_GO = functional.pad(zero_OG.t(), (0, -len(zero_OG) % (WORD // bits)))
    return bytes_of(padded_GO, bits).contiguous().view(torch.int32).t().contiguous()
