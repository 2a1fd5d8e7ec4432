"""The compiled kernels as functions of tensors.

Shapes: T rows of a step, I inputs, O outputs, F columns of an MLP.
"""

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

PATH = Path(__file__).with_name("libridgeline.so")
VARIABLE = "RIDGELINE_KERNELS"
"""The environment variable that chooses an instruction set, or `off`."""

_NUMBERS = {torch.float32: 0, torch.bfloat16: 1}
_ACTIVATIONS = {
    "silu": 1, "swish": 1, "gelu": 2, "gelu_new": 3, "gelu_pytorch_tanh": 3, "gelu_fast": 3, "relu": 4, "relu2": 5,
}  # fmt: skip


class _Matrix(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("y", c_void_p), ("y_stride", c_int64))


class _Rows(Structure):
    _fields_ = (("type", c_int), ("at", c_void_p), ("count", c_int64), ("width", c_int64), ("stride", c_int64))


class Library:
    """The kernels of one instruction set. A tensor that `takes` is not true of is not for them."""

    def __init__(self, path: Path = PATH, name: str = "") -> None:
        """name: of an instruction set; the best one that this processor runs where it is empty. Raises ValueError for one
        that it does not run, OSError where the library is not there."""
        self._c = ctypes.CDLL(str(path))
        self._c.ridgeline_use.restype, self._c.ridgeline_use.argtypes = c_char_p, (c_char_p,)
        chosen = self._c.ridgeline_use(name.encode())
        if chosen is None:
            raise ValueError(f"{VARIABLE} is {name}, which is not one of this processor's; leave it out, or give off")
        self.name: str = chosen.decode()
        self._c.ridgeline_threads.argtypes = (c_int,)
        self._c.ridgeline_products.argtypes = (POINTER(_Rows), c_int, POINTER(_Matrix), c_int)
        self._c.ridgeline_gated_products.argtypes = (POINTER(_Rows), POINTER(_Matrix), POINTER(_Matrix), c_int)
        for name in ("ridgeline_threads", "ridgeline_products", "ridgeline_gated_products"):
            getattr(self._c, name).restype = None

    def threads(self, count: int) -> None:
        """How many threads a call has from now on, the caller's included."""
        self._c.ridgeline_threads(count)

    @staticmethod
    def takes(x: Tensor) -> bool:
        """Whether kernels read such a tensor: fp32 or bf16 rows in this machine's memory."""
        return x.device.type == "cpu" and x.dtype in _NUMBERS and x.stride(-1) == 1

    def products(
        self, x_TI: Tensor, matrices: Sequence[tuple[Tensor, Tensor | None]], out: torch.dtype | None = None
    ) -> tuple[Tensor, ...]:
        """x W^T + b for each W [O, I] and b [O] -> [T, O] of each, in the dtype of x or in fp32."""
        dtype = out or x_TI.dtype
        results = tuple(x_TI.new_empty(len(x_TI), len(weight), dtype=dtype) for weight, _ in matrices)
        own = (_Matrix * len(results))(*map(_matrix, matrices, results))
        self._c.ridgeline_products(_rows(x_TI), len(own), own, _NUMBERS[dtype])
        return results

    def gated_products(
        self, x_TI: Tensor, gate: tuple[Tensor, Tensor | None], up: tuple[Tensor, Tensor | None], activation: str
    ) -> Tensor:
        """act(x Wg^T + bg) * (x Wu^T + bu) -> [T, F]. activation: by its name in config.json."""
        y_TF = x_TI.new_empty(len(x_TI), len(gate[0]))
        self._c.ridgeline_gated_products(_rows(x_TI), _matrix(gate, y_TF), _matrix(up, y_TF), _ACTIVATIONS[activation])
        return y_TF


def _rows(x_TI: Tensor) -> _Rows:
    return _Rows(_NUMBERS[x_TI.dtype], x_TI.data_ptr(), len(x_TI), x_TI.shape[1], x_TI.stride(0))


def _matrix(own: tuple[Tensor, Tensor | None], y_TO: Tensor) -> _Matrix:
    weight, bias = own
    return _Matrix(
        weight.data_ptr(), None if bias is None else bias.data_ptr(), len(weight), y_TO.data_ptr(), y_TO.stride(0)
    )


@cache
def native() -> Library | None:
    """The kernels to use in this process; None where they are off or were not compiled. Raises ValueError."""
    name = os.environ.get(VARIABLE, "")
    if name == "off" or not PATH.exists():
        return None
    return Library(PATH, name)
