"""The number formats of activations, weights and cache entries, and their sizes in bytes."""

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # memory plans work without torch, which takes seconds to import
    import torch


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A floating-point format that ops compute in."""

    name: str
    """The short name of a number format, such as bf16.

    It is the key of FLOPs in a Cost and of peak FLOP/s on a Device.
    """
    bits: int
    long: str
    """The name of a number format in PyTorch and in configs, such as bfloat16."""
    short: str = ""
    """A second name of a number format in PyTorch and in configs, such as half; "" for none."""

    def is_called(self, name: str) -> bool:
        """Return whether a number format has this name; the prefix `torch.` of hand-written configs is allowed."""
        return name.removeprefix("torch.") in (self.name, self.long, self.short or self.name)

    @property
    def bytes(self) -> float:
        """The bytes of one number in this format."""
        return self.bits / 8

    @property
    def dtype(self) -> "torch.dtype":
        """The `torch.dtype` of a number format."""
        import torch

        dtype: torch.dtype = getattr(torch, self.long)
        return dtype


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format that stores weight matrices in fewer bits than the model's dtype."""

    name: str
    bits: int
    """The bits of each weight in this format."""
    block: tuple[int | None, int | None]
    """The number of outputs and of inputs that share a scale in a weight format; None for all of them."""
    scale_bits: float
    """The bits of the scales that a weight format stores for each block of weights."""
    zero_bits: int = 0
    """The bits of the zero point of each block of weights; 0 for formats without zero points."""
    activations: str | None = None
    """The format to which activations are quantised for a product with weights in this format.

    None means that the weights are dequantised to the model's dtype instead.
    """
    input_bits: int = 0
    """Further bits that a weight format stores per input (GPTQ's group index, a scale of the input)."""
    matrix_bits: int = 0
    """Further bits that a weight format stores per matrix (a second-level scale)."""
    code: str = ""
    """The type of the codes of a weight format that ops run on: int8, int4 or fp8.

    "" means that the format is only priced (`core/ops/matrix/quantised.py`).
    """
    layout: str = ""
    """The layout of quantised tensors that a checkpoint has in this format; "" if it has plain weights."""
    ordered: bool = False
    """Whether the inputs that share a scale are not consecutive (GPTQ's act-order) but listed in the checkpoint."""

    @property
    def kind(self) -> str:
        """The type of a weight format in our kernels: its code, or w8a8 with int8 activations; "" if only priced."""
        return "w8a8" if self.code == "int8" and self.activations == "int8" else self.code

    def nbytes(self, outputs: int, inputs: int) -> float:
        """Return the bytes of a weight matrix in this format, with its scales and zero points."""
        high, wide = (
            1 if size is None else math.ceil(n / size) for n, size in zip((outputs, inputs), self.block, strict=True)
        )
        scales = high * wide * (self.scale_bits + self.zero_bits)
        return (outputs * inputs * self.bits + scales + inputs * self.input_bits + self.matrix_bits) / 8


@dataclass(frozen=True, slots=True)
class KVFormat:
    """A format that stores keys and values in fewer bits than the model's dtype."""

    name: str
    bits: int
    scale_bits: int = 0
    """The bits of a KV-cache scale; each key or value vector of a head has one, or one per `block` numbers."""
    block: int | None = None
    """The number of entries of a key or value vector that share a scale; None for the whole vector."""
    code: str = ""
    """The type of the codes of a KV-cache format that ops run on: int8 or fp8.

    "" means that the format is only priced (`core/ops/kv_quantisation.py`).
    """
    scales_in_checkpoint: bool = False
    """Whether the checkpoint contains a scale for the keys and one for the values of each layer."""


F = TypeVar("F", WeightFormat, KVFormat)

FP32 = NumberFormat("fp32", 32, "float32", "float")
FP16 = NumberFormat("fp16", 16, "float16", "half")
BF16 = NumberFormat("bf16", 16, "bfloat16")
FORMATS = (FP32, FP16, BF16)
_FP64 = ("float64", "double")

# fp8 and w8a8 quantise weights and activations, with a scale per row. int8 quantises weights only, with a scale per
# row. int4 quantises weights only, in groups of 128, 64 or 32 with a scale and a zero point. The zero point takes a
# byte, as in memory at run time (AWQ and GPTQ pack two into one). nvfp4 quantises weights and activations, in groups
# of 16 with an 8-bit scale. mxfp4 quantises weights only, in groups of 32 with an exponent (Open Compute Project,
# Microscaling Formats 1.0).
INT8 = WeightFormat("int8", 8, (1, None), 16, code="int8")
NVFP4 = WeightFormat("nvfp4", 4, (1, 16), 8, activations="fp4", matrix_bits=64)
MXFP4 = WeightFormat("mxfp4", 4, (1, 32), 8)
WEIGHT_FORMATS = (
    WeightFormat("fp8", 8, (1, None), 32, activations="fp8", code="fp8"),
    INT8,
    WeightFormat("w8a8", 8, (1, None), 32, activations="int8", code="int8"),
    WeightFormat("int4", 4, (1, 128), 16, 8, code="int4"),
    WeightFormat("int4-g64", 4, (1, 64), 16, 8, code="int4"),
    WeightFormat("int4-g32", 4, (1, 32), 16, 8, code="int4"),
    NVFP4,
    MXFP4,
)
KV_FORMATS = (KVFormat("fp8", 8, code="fp8"), KVFormat("int8", 8, 16, code="int8"), KVFormat("nvfp4", 4, 8, 16))


@cache  # a price calls this for every op
def format_of(dtype: "torch.dtype") -> NumberFormat:
    """Return the number format of a torch dtype.

    Raises:
        ValueError: If no op computes in this dtype.
    """
    for known in FORMATS:
        if known.long == str(dtype).removeprefix("torch."):
            return known
    raise ValueError(f"no op computes in {dtype}; use one of {', '.join(f.name for f in FORMATS)}")


def format_named(name: str) -> NumberFormat:
    """Return the number format with a name such as `bf16`, `bfloat16`, `torch.bfloat16` or `half`.

    Raises:
        ValueError: If there is none; the message lists the names.
    """
    for known in FORMATS:
        if known.is_called(name):
            return known
    raise ValueError(f"unknown number format {name!r}; use one of {', '.join(f.name for f in FORMATS)}")


def stated_format(name: str) -> NumberFormat:
    """Return the number format in which a model with this dtype in its config runs.

    It is that of `format_named`, but fp32 for fp64, in which no op computes.

    Raises:
        ValueError: If the name is unknown; the message lists the names.
    """
    if name.removeprefix("torch.") in _FP64:
        return FP32
    known = next((known for known in FORMATS if known.is_called(name)), None)
    if known is None:
        raise ValueError(f"unknown number format {name!r}; use one of {', '.join(known.long for known in FORMATS)}")
    return known


def weight_format_named(name: str) -> WeightFormat:
    """Return the weight format with this name.

    Raises:
        ValueError: If there is none; the message lists the names.
    """
    return _named(name, WEIGHT_FORMATS, "weight")


def kv_format_named(name: str) -> KVFormat:
    """Return the KV-cache format with this name.

    Raises:
        ValueError: If there is none; the message lists the names.
    """
    return _named(name, KV_FORMATS, "KV")


def arithmetic(dtype: "torch.dtype", stored: WeightFormat | None) -> str:
    """Return the name of the number format that a matrix product computes in, from its dtype and weight format."""
    return format_of(dtype).name if stored is None or stored.activations is None else stored.activations


def _named(name: str, known: tuple[F, ...], what: str) -> F:
    """Return the number, weight or KV format with this name, or raise ValueError with the known names."""
    for candidate in known:
        if candidate.name == name:
            return candidate
    raise ValueError(f"unknown {what} format {name!r}; use one of {', '.join(f.name for f in known)}")
