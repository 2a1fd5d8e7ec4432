"""The devices on which the Triton kernels run.

Triton is imported when a model is prepared that wants it. It comes with torch's CUDA builds and is no dependency: if it
is missing, torch computes. `RIDGELINE_KERNELS=triton` with TRITON_INTERPRET=1 has its interpreter run them on
the processor, number by number, for tests.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ridgeline.backends.cpu.library import TRITON, VARIABLE

if TYPE_CHECKING:
    from ridgeline.backends.cuda.triton import TritonKernels

LIBRARIES_BYTES = 512 << 20
"""The bytes of a GPU that CUDA's libraries take once they are used."""


@cache
def triton_kernels() -> "TritonKernels | None":
    """Return the Triton kernels, or None if Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from ridgeline.backends.cuda.triton import TritonKernels

    return TritonKernels()


@cache
def interpreted() -> bool:
    """Return whether Triton's interpreter is to run the kernels for GPUs on the processor."""
    return os.environ.get(VARIABLE) == TRITON and os.environ.get("TRITON_INTERPRET") == "1"


@cache
def triton_on(device: torch.device) -> "TritonKernels | None":
    """Return the Triton kernels if this device runs them."""
    if os.environ.get(VARIABLE) == "off":
        return None
    if device.type == "cuda":
        return triton_kernels() if torch.cuda.is_available() else None
    return triton_kernels() if device.type == "cpu" and interpreted() else None
