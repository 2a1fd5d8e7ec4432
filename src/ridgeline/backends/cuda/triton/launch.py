"""What launches of Triton's kernels have in common.

On Hopper and later a kernel may be started while the one before it ends (programmatic dependent launch: CUDA C++
programming guide). It then has its programs in place, and may read weights, which no kernel writes, before it waits for
what the others wrote. On an H200 a decode step of an 8B takes 4.04 ms so, and 4.28 otherwise.
"""

import os
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

NUMBERS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
"""Triton's name of each dtype that our kernels take."""


def _in_interpreter() -> bool:
    """Whether kernels are run by Triton's interpreter, number by number on the processor (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether it is a Hopper or later (compute capability 9.0): kernels may be started early there, and tiles of
    tensors be asked of a copy engine (TMA).
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def early(device: torch.device) -> dict[str, Any]:
    """What a launch is told where kernels are started early: their EARLY, and Triton's option. Elsewhere: that they are
    not.
    """
    return {"EARLY": True, "launch_pdl": True} if is_hopper(device) else {"EARLY": False}


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """From now on the next kernel may be started, once all programs of this one have said so."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """Wait until all kernels before this one have ended and what they wrote is seen. Nothing that one of them may have
    written is read before, and nothing is written.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()


def product_dtype(dtype: torch.dtype) -> tl.dtype:
    """What tiles are multiplied in: their own dtype, but for the interpreter, which takes the bits of bf16 for whole
    numbers in `tl.dot`.
    """
    return tl.float32 if _in_interpreter() else NUMBERS[dtype]
