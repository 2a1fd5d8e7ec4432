"""Number formats: what a weight or a cache entry is stored as, and how many bytes that takes."""

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # bookkeeping and plans of memory do without torch, which takes seconds to import
    import torch


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A way to store numbers that ops compute in. `name` is the key of FLOPs in a Cost and of peaks on a Device; `long`
    is the name in torch and in configs, and `short` a second name there (`half`), "" for none.
    """

    name: str
    bits: int
    long: str
    short: str = ""

    def is_called(self, name: str) -> bool:
        """Whether this is one of the format's names, also with `torch.` in front, as in configs written by hand."""
        return name.removeprefix("torch.") in (self.name, self.long, self.short or self.name)

    @property
    def bytes(self) -> float:
        """Bytes one number takes."""
        return self.bits / 8

    @property
    def dtype(self) -> "torch.dtype":
        """As torch has it."""
        import torch

        dtype: torch.dtype = getattr(torch, self.long)
        return dtype


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A way to store matrices narrower than the model's dtype.

    block: how many outputs and how many inputs share a scale; None for all of them. scale_bits and zero_bits: of each
    block. activations: the format that the other factor is narrowed to, so that the product is one of that format; None
    for the model's dtype, to which weights are widened on the way. input_bits: of each input (GPTQ's order of columns,
    a scale of the input). matrix_bits: of the whole matrix (a second scale). code: what numbers are stored as where ops
    run on them (int8, int4, fp8; `core/ops/matrix/quantised.py`); "" where they are only priced. layout: of their
    tensors in a checkpoint; "" where it has the plain weight. ordered: whether a group is not of inputs side by side,
    but of those that the checkpoint says.
    """

    name: str
    bits: int
    block: tuple[int | None, int | None]
    scale_bits: float
    zero_bits: int = 0
    activations: str | None = None
    input_bits: int = 0
    matrix_bits: int = 0
    code: str = ""
    layout: str = ""
    ordered: bool = False

    @property
    def kind(self) -> str:
        """What our kernels know it as: its code, or w8a8 where rows are rounded to int8 as well; "" for none."""
        return "w8a8" if self.code == "int8" and self.activations == "int8" else self.code

    def nbytes(self, outputs: int, inputs: int) -> float:
        """Bytes of a matrix with its scales."""
        high, wide = (
            1 if size is None else math.ceil(n / size) for n, size in zip((outputs, inputs), self.block, strict=True)
        )
        scales = high * wide * (self.scale_bits + self.zero_bits)
        return (outputs * inputs * self.bits + scales + inputs * self.input_bits + self.matrix_bits) / 8


@dataclass(frozen=True, slots=True)
class KVFormat:
    """A way to store keys and values narrower than the model's dtype.

    scale_bits: for each head's K or V of a token, or for each `block` numbers of them. code: what numbers are stored as
    where ops run on them (int8, fp8; `core/ops/kv_quantisation.py`); "" where they are only priced. stated: the
    checkpoint has a scale for the keys of each layer, and one for its values.
    """

    name: str
    bits: int
    scale_bits: int = 0
    block: int | None = None
    code: str = ""
    stated: bool = False


F = TypeVar("F", WeightFormat, KVFormat)

FP32 = NumberFormat("fp32", 32, "float32", "float")
FP16 = NumberFormat("fp16", 16, "float16", "half")
BF16 = NumberFormat("bf16", 16, "bfloat16")
FORMATS = (FP32, FP16, BF16)
_FP64 = ("float64", "double")

# fp8, w8a8: weights and activations, a scale a row. int8: weights alone, a scale a row. int4: weights alone, groups of
# 128, 64 or 32 with a scale and a zero, which takes a byte, as it is held where they run (AWQ and GPTQ pack two into
# one). nvfp4: weights and activations, groups of 16 with a scale of 8 bits. mxfp4: weights alone, groups of 32 with an
# exponent (Open Compute Project, Microscaling Formats 1.0).
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


@cache  # a price asks this for every op
def format_of(dtype: "torch.dtype") -> NumberFormat:
    """The format of a torch dtype. Raises ValueError for one that no op computes in."""
    for known in FORMATS:
        if known.long == str(dtype).removeprefix("torch."):
            return known
    raise ValueError(f"no op computes in {dtype}; use one of {', '.join(f.name for f in FORMATS)}")


def format_named(name: str) -> NumberFormat:
    """Return the format with this name (`bf16`, `bfloat16`, `torch.bfloat16`, `half`). Raises ValueError that lists
    the names.
    """
    for known in FORMATS:
        if known.is_called(name):
            return known
    raise ValueError(f"unknown number format {name!r}; use one of {', '.join(f.name for f in FORMATS)}")


def stated_format(name: str) -> NumberFormat:
    """Return the format in which a model with this dtype in its config runs: that of `format_named`, and fp32 for fp64,
    in which no op computes. Raises ValueError.
    """
    return FP32 if name.removeprefix("torch.") in _FP64 else format_named(name)


def weight_format_named(name: str) -> WeightFormat:
    """The weight format called `name`. Raises ValueError with the names there are."""
    return _named(name, WEIGHT_FORMATS, "weight")


def kv_format_named(name: str) -> KVFormat:
    """The KV format called `name`. Raises ValueError with the names there are."""
    return _named(name, KV_FORMATS, "KV")


def arithmetic(dtype: "torch.dtype", stored: WeightFormat | None) -> str:
    """The format whose arithmetic units a matrix of this dtype, stored so, keeps busy."""
    return format_of(dtype).name if stored is None or stored.activations is None else stored.activations


def _named(name: str, known: tuple[F, ...], what: str) -> F:
    for candidate in known:
        if candidate.name == name:
            return candidate
    raise ValueError(f"unknown {what} format {name!r}; use one of {', '.join(f.name for f in known)}")
