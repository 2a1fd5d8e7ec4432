"""Detection of the devices on which the Triton kernels run.

Triton is imported only when a prepared model needs it. It comes with PyTorch's CUDA builds and is not a dependency: if
it is missing, PyTorch computes. `RIDGELINE_KERNELS=triton` with TRITON_INTERPRET=1 makes Triton's interpreter run the
kernels on the CPU, element by element, for tests.
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
"""The GPU memory, in bytes, that CUDA's libraries occupy once they are used."""


@cache
def triton_kernels() -> "TritonKernels | None":
    """Return the Triton kernels, or None if Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from ridgeline.backends.cuda.triton import TritonKernels

    return TritonKernels()


@cache
def interpreted() -> bool:
    """Return whether Triton's interpreter runs the GPU kernels on the CPU."""
    return os.environ.get(VARIABLE) == TRITON and os.environ.get("TRITON_INTERPRET") == "1"


@cache
def triton_on(device: torch.device) -> "TritonKernels | None":
    """Return the Triton kernels if this device runs them, otherwise None."""
    if os.environ.get(VARIABLE) == "off":
        return None
    if device.type == "cuda":
        return triton_kernels() if torch.cuda.is_available() else None
    return triton_kernels() if device.type == "cpu" and interpreted() else None
