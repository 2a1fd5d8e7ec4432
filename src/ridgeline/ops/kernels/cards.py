"""Which kernels compute for a tensor: those for the processor where it is in the machine's memory, those for cards
where it is on one.

Triton's are imported with the first tensor that wants them. It comes with torch's CUDA builds and is no dependency:
where it is missing, torch computes. `RIDGELINE_KERNELS=triton` with TRITON_INTERPRET=1 has its interpreter run them on
the processor, number by number, for tests.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ridgeline.ops.kernels.library import VARIABLE, Library, native
from ridgeline.ops.kernels.operands import DTYPES

if TYPE_CHECKING:
    from ridgeline.ops.kernels.triton import TritonKernels

COPY_BYTES = 256 << 20
"""Most that keys and values take which attention copies out of their pages: 65,536 positions of 8 heads of 128 numbers
in bf16. Of more they are read where they lie."""


@cache
def _triton() -> "TritonKernels | None":
    if find_spec("triton") is None:
        return None
    from ridgeline.ops.kernels.triton import TritonKernels

    return TritonKernels()


@cache
def interpreted() -> bool:
    """Whether kernels for cards are to be run by Triton's interpreter on the processor."""
    return os.environ.get(VARIABLE) == "triton" and os.environ.get("TRITON_INTERPRET") == "1"


@cache
def for_cards(device: torch.device) -> "TritonKernels | None":
    """The kernels for cards, where this device runs them."""
    if os.environ.get(VARIABLE) == "off":
        return None
    if device.type == "cuda":
        return _triton() if torch.cuda.is_available() else None
    return _triton() if device.type == "cpu" and interpreted() else None


def cards_of(x_TI: Tensor) -> "TritonKernels | None":
    """Our kernels for cards, if they take such rows: fp32 or bf16 on a card. Torch's compiler, and tensors that only
    stand for others, are given torch's own way."""
    if not x_TI.is_cuda and not interpreted():
        return None
    plain = type(x_TI) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
    if not plain or x_TI.dim() < 2 or x_TI.dtype not in DTYPES or x_TI.stride(-1) != 1:
        return None
    return for_cards(x_TI.device)


def kernels_of(x_TI: Tensor) -> "Library | TritonKernels | None":
    """Our kernels, if there are any that take such rows, wherever these are."""
    return native(x_TI) or cards_of(x_TI)


def missing_on(device: torch.device) -> str:
    """Why a card has no kernels of ours, in words; "" where it has them, or nobody wants them."""
    if device.type != "cuda" or os.environ.get(VARIABLE) == "off" or for_cards(device) is not None:
        return ""
    return (
        "triton is not installed, which torch's builds for CUDA bring along: torch computes alone (pip install triton)"
    )
