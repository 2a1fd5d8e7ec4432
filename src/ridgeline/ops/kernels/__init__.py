"""Kernels of our own. For the CPU: C++ in native/, compiled when the package is installed (setup.py), called through
ctypes; ops ask `native` for them. For cards: Triton's in triton/; an op that either has a kernel for asks `kernels_of`.
Where there are none an op runs on torch, whose path is the reference of each kernel."""

from ridgeline.ops.kernels.cards import cards_of, for_cards, kernels_of, missing_on
from ridgeline.ops.kernels.library import Library, in_use, library, missing, native, share_threads, state
from ridgeline.ops.kernels.operands import DTYPES, MAX_INTEGERS, UNIT, Codes, Operands

__all__ = [
    "DTYPES",
    "MAX_INTEGERS",
    "UNIT",
    "Codes",
    "Library",
    "Operands",
    "cards_of",
    "for_cards",
    "in_use",
    "kernels_of",
    "library",
    "missing",
    "missing_on",
    "native",
    "share_threads",
    "state",
]
