"""Number formats: what a weight or a cache entry is stored as, and how many bytes that takes."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store numbers. `name` is the key of FLOPs in a Cost and of peaks on a Device."""

    name: str
    bits: int
    dtype: torch.dtype

    @property
    def bytes(self) -> float:
        """Bytes one number takes."""
        return self.bits / 8


FP32 = Format("fp32", 32, torch.float32)
FP16 = Format("fp16", 16, torch.float16)
BF16 = Format("bf16", 16, torch.bfloat16)

FORMATS = (FP32, FP16, BF16)


def format_of(dtype: torch.dtype) -> Format:
    """The format of a torch dtype. Raises ValueError for one that no op computes in."""
    for known in FORMATS:
        if known.dtype == dtype:
            return known
    raise ValueError(f"no op computes in {dtype}; use one of {', '.join(f.name for f in FORMATS)}")


def format_named(name: str) -> Format:
    """The format called `name`, also by its long name (`bfloat16`). Raises ValueError with the names there are."""
    for known in FORMATS:
        if name in (known.name, str(known.dtype).removeprefix("torch.")):
            return known
    raise ValueError(f"unknown number format {name!r}; use one of {', '.join(f.name for f in FORMATS)}")
