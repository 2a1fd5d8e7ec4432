"""Kernels of our own, for the CPU: C++ in native/, compiled when the package is installed (setup.py), called through
ctypes. Ops ask `native` for them and run on torch where it has none; torch's path is the reference of each kernel."""

from ridgeline.ops.kernels.library import Library, in_use, library, missing, native, share_threads, state
from ridgeline.ops.kernels.operands import DTYPES, MAX_INTEGERS, UNIT, Codes, Operands

__all__ = [
    "DTYPES",
    "MAX_INTEGERS",
    "UNIT",
    "Codes",
    "Library",
    "Operands",
    "in_use",
    "library",
    "missing",
    "native",
    "share_threads",
    "state",
]
