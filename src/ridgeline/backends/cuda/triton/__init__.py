"""Kernels of our own for cards, in Triton, which torch's CUDA builds bring along. Imported only where a model runs on a
card, or, for tests, where Triton's interpreter does (TRITON_INTERPRET=1).
"""

from ridgeline.backends.cuda.triton.dense_kv import FEWEST_QUERIES, ROOM
from ridgeline.backends.cuda.triton.triton_attention import (
    DecodeSequences,
    GpuStepSequences,
    PrefillSequences,
    TritonPagedAttention,
)
from ridgeline.backends.cuda.triton.triton_kernels import TritonKernels

__all__ = [
    "FEWEST_QUERIES",
    "ROOM",
    "DecodeSequences",
    "GpuStepSequences",
    "PrefillSequences",
    "TritonKernels",
    "TritonPagedAttention",
]
