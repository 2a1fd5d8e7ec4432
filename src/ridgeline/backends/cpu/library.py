"""The compiled CPU kernels as functions of tensors.

Shapes: T rows of a step, I inputs, O outputs, F columns of an MLP.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.backends.cpu.kernel_sources import unusable
from ridgeline.backends.cpu.structures import MatrixStruct, RowsStruct, matrix_of, rows_of
from ridgeline.core.ops.matrix.operands import DTYPES, Operands

PATH = Path(__file__).with_name("libridgeline.so")
"""The file of the compiled CPU kernels."""
VARIABLE = "RIDGELINE_KERNELS"
"""The environment variable that selects the CPU kernels: an instruction set, `off`, or `triton`.

`triton` selects Triton's interpreter (backends/cuda/available.py).
"""

AMX = "amx"
"""The instruction set with Intel's tiles, for which a process needs the system's permission."""

TRITON = "triton"
"""The value of the environment variable that selects Triton's interpreter."""

ACTIVATION_NUMBERS = {
    "silu": 1, "swish": 1, "gelu": 2, "gelu_new": 3, "gelu_pytorch_tanh": 3, "gelu_fast": 3, "relu": 4, "relu2": 5,
    "tanh": 6, "quick_gelu": 8,
}  # fmt: skip
"""The number of each activation in Activation of native/activation.h, by its name in config.json."""


Call = tuple[Callable[..., int], tuple[Any, ...]]
"""A recorded call: a kernel function with its arguments, which are addresses or contain them.

It returns 0, or 1 if the system refused memory to it (`refused`).
"""


class _KeptCalls(threading.local):
    """The thread-local list of recorded kernel calls; calls of other threads are not included."""

    calls: list[Call] | None = None


class Library:
    """The compiled CPU kernels for one instruction set, for fp32 and bf16.

    The instruction set and the thread count are global in the process: the last created instance determines the former,
    and the last call of `threads` the latter.
    """

    def __init__(self, path: Path = PATH, name: str = "") -> None:
        """Load the compiled CPU kernels.

        Args:
            path: Library file.
            name: Instruction set. If it is empty, the best one of this CPU is used.

        Raises:
            ValueError: If this CPU does not support the instruction set.
            OSError: If the library cannot be loaded.
        """
        self._c = ctypes.CDLL(str(path))
        self._c.ridgeline_use.restype, self._c.ridgeline_use.argtypes = c_char_p, (c_char_p,)
        self._c.ridgeline_tiles_refused.restype, self._c.ridgeline_tiles_refused.argtypes = c_int, ()
        chosen = self._c.ridgeline_use(name.encode())
        wants_tiles = not name or name.startswith(AMX)
        self.tiles_refused = _refusal(self._c.ridgeline_tiles_refused()) if wants_tiles else ""
        if chosen is None:
            refused_tiles = name.startswith(AMX) and self.tiles_refused
            why = f"but {refused_tiles}" if refused_tiles else "which this CPU does not support"
            raise ValueError(f"{VARIABLE} is {name}, {why}; unset it, or set it to off")
        self.name: str = chosen.decode()
        self._kept = _KeptCalls()
        self._functions: dict[str, Callable[..., None]] = {}
        self._c.ridgeline_threads.restype, self._c.ridgeline_threads.argtypes = None, (c_int,)
        self._products = self.function("products", POINTER(RowsStruct), c_int, POINTER(MatrixStruct), c_int)
        self._gated_products = self.function(
            "gated_products", POINTER(RowsStruct), POINTER(MatrixStruct), POINTER(MatrixStruct), c_int
        )
        self._norms = self.function("norms", POINTER(RowsStruct), c_void_p, c_int64, c_void_p, c_void_p, c_float, c_int)
        self._angles = self.function("angles", c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p, c_void_p)
        self._gather = self.function("gather", c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p)
        self._gather_codes = self.function(
            "gather_codes", POINTER(MatrixStruct), c_int, c_int64, c_void_p, c_int64, c_void_p
        )
        self._sample = self.function("sample", c_void_p, c_int, c_int64)

    @property
    def recording(self) -> list[Call] | None:
        """The list to which this thread appends its kernel calls for a CallRecording (call_recording.py), or None."""
        return self._kept.calls

    @recording.setter
    def recording(self, calls: list[Call] | None) -> None:
        self._kept.calls = calls

    def threads(self, count: int) -> None:
        """Set the number of threads of each kernel call, including the caller."""
        self._c.ridgeline_threads(count)

    def share_threads(self) -> None:
        """Set the kernels' thread count to PyTorch's."""
        self.threads(torch.get_num_threads())

    def function(self, name: str, *types: type) -> Callable[..., None]:
        """Return the C function ridgeline_NAME of the compiled kernels, with arguments of these types.

        It raises MemoryError if the system refuses it working memory. Its results are then not filled.
        """
        if name not in self._functions:
            function = getattr(self._c, f"ridgeline_{name}")
            function.restype, function.argtypes = c_int, types

            def call(*arguments: Any) -> None:
                if function(*arguments):
                    raise refused()
                if (calls := self._kept.calls) is not None:
                    calls.append((function, arguments))

            self._functions[name] = call
        return self._functions[name]

    @property
    def interleaves(self) -> bool:
        """Whether this CPU's matrix products are faster with interleaved quantised weights."""
        return self.name in ("avx512_bf16", AMX, "amx_emulated_avx512")

    def products(
        self, x_TI: Tensor, matrices: Sequence[Operands], out: torch.dtype | None = None
    ) -> tuple[Tensor, ...]:
        """Return X W^T + b for each matrix, each [T, O], in the dtype of x or in fp32.

        The matrices are all plain, or all in the same code format. Their rows and those of x are contiguous.
        """
        dtype = out or x_TI.dtype
        assert len({_coded(own) for own in matrices}) == 1, "the matrices of one call must have the same storage format"
        results = tuple(x_TI.new_empty(x_TI.shape[0], own.weight.shape[0], dtype=dtype) for own in matrices)
        own = (MatrixStruct * len(results))(*(_product(x_TI, *each) for each in zip(matrices, results, strict=True)))
        self._products(rows_of(x_TI), len(own), own, DTYPES[dtype])
        return results

    def gated_products(self, x_TI: Tensor, gate: Operands, up: Operands, activation: str) -> Tensor:
        """Return act(x Wg^T + bg) * (x Wu^T + bu) -> [T, F]; `activation` is a name in config.json."""
        assert gate.weight.shape == up.weight.shape, "a gate must have the shape of the matrix that it gates"
        assert _coded(gate) == _coded(up), "a gate must have the storage format of the matrix that it gates"
        y_TF = x_TI.new_empty(x_TI.shape[0], gate.weight.shape[0])
        of_gate, of_up = (_product(x_TI, own, y_TF) for own in (gate, up))
        self._gated_products(rows_of(x_TI), of_gate, of_up, ACTIVATION_NUMBERS[activation])
        return y_TF

    def norm(
        self, x_xD: Tensor, weight_D: Tensor, eps: float, *, from_one: bool, added_ND: Tensor | None = None
    ) -> Tensor:
        """Return the RMS norm of vectors [..., D].

        Args:
            x_xD: Vectors.
            weight_D: Weight of the norm.
            eps: Epsilon of the norm.
            from_one: Whether the weight is added to 1 (Gemma).
            added_ND: Rows that are added to x in place first, or None.
        """
        x_ND = x_xD if x_xD.dim() == 2 else x_xD.reshape(-1, x_xD.shape[-1])
        assert added_ND is None or x_ND is x_xD, "the residual to add to must be a matrix of rows"
        assert weight_D.dtype == x_ND.dtype, "a norm's weight must have the dtype of the rows"
        assert weight_D.shape == x_ND.shape[1:], "a norm must have a weight for each number of a row"
        y_ND = x_ND.new_empty(x_ND.shape)
        added, stride = None, 0
        if added_ND is not None:
            added, stride = rows_of(added_ND).at, added_ND.stride(0)
            assert added_ND.dtype == x_ND.dtype, "the addend must have the dtype of the rows"
            assert added_ND.shape == x_ND.shape, "the addend must have the shape of the rows"
        self._norms(rows_of(x_ND), added, stride, y_ND.data_ptr(), weight_D.data_ptr(), eps, from_one)
        return y_ND.view(x_xD.shape)

    def angles(self, positions_T: Tensor, frequencies_H: Tensor, magnitude: float) -> tuple[Tensor, Tensor]:
        """Return cos and sin of int64 positions x fp32 frequencies, times `magnitude`, each fp32 [T, 1, H]."""
        rows, half = positions_T.shape[0], frequencies_H.shape[0]
        cos, sin = frequencies_H.new_empty(rows, 1, half), frequencies_H.new_empty(rows, 1, half)
        self._angles(
            indices(positions_T), rows, frequencies_H.data_ptr(), half, magnitude, cos.data_ptr(), sin.data_ptr()
        )
        return cos, sin

    def gather(self, table_ED: Tensor, numbers_N: Tensor) -> Tensor:
        """Return the rows of a contiguous table with these indices, int64 [N] -> [N, D].

        An index outside the table gives a row of NaN.
        """
        assert table_ED.is_contiguous(), "the table must be contiguous"
        entries, width = table_ED.shape
        rows_ND = table_ED.new_empty(numbers_N.shape[0], width)
        nbytes = width * table_ED.element_size()
        self._gather(table_ED.data_ptr(), entries, nbytes, indices(numbers_N), numbers_N.shape[0], rows_ND.data_ptr())
        return rows_ND

    def gather_codes(self, table: Operands, width: int, dtype: torch.dtype, numbers_N: Tensor) -> Tensor:
        """Return dequantised rows of a table of codes, with `width` numbers per row -> [N, width] in a dtype."""
        assert table.codes is not None, "the table must be quantised"
        rows_ND = torch.empty(0, dtype=dtype).new_empty(numbers_N.shape[0], width)
        own = matrix_of(table, dtype, width)
        self._gather_codes(own, DTYPES[dtype], width, indices(numbers_N), numbers_N.shape[0], rows_ND.data_ptr())
        return rows_ND

    def sample(self, rows: int, count: int, vocabulary: int) -> None:
        """Sample a token for each row of logits.

        Args:
            rows: Address of an array of `Sampling` structures (native/kernels.h).
            count: Number of structures.
            vocabulary: Size of the vocabulary.
        """
        self._sample(rows, count, vocabulary)


def _refusal(error: int) -> str:
    """Return the reason why the system refuses the tiles that this CPU has, by an error number; "" for 0."""
    if not error:
        return ""
    hints = {
        errno.ENOSPC: "a thread's signal stack is too small for them",
        errno.EINVAL: "Linux supports them since version 5.16",
        errno.EPERM: "a container may forbid the system call arch_prctl",
    }
    hint = f"; {hints[error]}" if error in hints else ""
    return f"the system refuses this process AMX tiles ({os.strerror(error)}{hint})"


def refused() -> MemoryError:
    """Return the error for a kernel that returned 1 because the system refused it memory."""
    return MemoryError("the system refused working memory for a kernel; use a smaller batch, or free some memory")


def indices(numbers_N: Tensor) -> int:
    """Return the address of contiguous int64 numbers."""
    assert numbers_N.dtype == torch.int64, "indices must be int64"
    assert numbers_N.is_contiguous(), "indices must be contiguous"
    return numbers_N.data_ptr()


def _coded(own: Operands) -> tuple[str, bool] | None:
    """Return the format of a matrix's quantised weights as a key; one kernel call takes matrices with equal keys."""
    return None if own.codes is None else (own.codes.kind, own.codes.interleaved)


def _product(x_TI: Tensor, own: Operands, y_TO: Tensor) -> MatrixStruct:
    """Return the C structure that describes a matrix to kernels, with `y_TO` as the memory for results."""
    return matrix_of(own, x_TI.dtype, x_TI.shape[1], y_TO)


@cache
def library() -> Library | None:
    """Return this process's compiled CPU kernels, or None if they are disabled or unusable.

    The thread count is initially PyTorch's, for callers that never call `share_threads`.

    Raises:
        ValueError: If the CPU does not support the selected instruction set.
    """
    name = os.environ.get(VARIABLE, "")
    if name in ("off", TRITON) or missing():
        return None
    kernels = Library(PATH, name)
    kernels.share_threads()
    return kernels


def missing() -> str:
    """Return the reason why the package has no usable CPU kernels, and the fix; "" if it has or they are disabled."""
    return "" if os.environ.get(VARIABLE) == "off" else _missing(PATH)


@cache
def _missing(path: Path) -> str:
    """Return the reason why the file of compiled CPU kernels cannot be used, and the fix; "" if it can."""
    if path.exists():
        return unusable(path)
    return (
        "none were compiled when ridgeline was installed, which needs g++ 12 or newer "
        "(apt install g++, then reinstall ridgeline)"
    )


def state() -> str:
    """Return a description of the CPU kernels that this process uses, and the fix if there are none."""
    if (kernels := library()) is not None:
        return f"{kernels.name}, because {kernels.tiles_refused}" if kernels.tiles_refused else kernels.name
    return f"torch's: {why}" if (why := missing()) else f"torch's ({VARIABLE}=off)"


def share_threads() -> None:
    """Set the thread count of our kernels, if there are any, to PyTorch's."""
    if (kernels := library()) is not None:
        kernels.share_threads()
