"""What launches of Triton's kernels have in common."""

import os

import torch
import triton.language as tl

NUMBERS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
"""Triton's name of each dtype that our kernels take."""


def _in_interpreter() -> bool:
    """Whether kernels are run by Triton's interpreter, number by number on the processor (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def product_dtype(dtype: torch.dtype) -> tl.dtype:
    """What tiles are multiplied in: their own dtype, but for the interpreter, which takes the bits of bf16 for whole
    numbers in `tl.dot`."""
    return tl.float32 if _in_interpreter() else NUMBERS[dtype]
