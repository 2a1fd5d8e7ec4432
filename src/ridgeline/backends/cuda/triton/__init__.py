"""Triton kernels for GPUs, which PyTorch's CUDA builds can run.

This package is imported only if a model runs on a GPU, or, for tests, in Triton's interpreter (TRITON_INTERPRET=1).
"""

from ridgeline.backends.cuda.triton.dense_kv import FEWEST_QUERIES, ROW_MULTIPLE
from ridgeline.backends.cuda.triton.triton_attention import (
    DecodeSequences,
    GpuStepSequences,
    PrefillSequences,
    TritonPagedAttention,
)
from ridgeline.backends.cuda.triton.triton_kernels import TritonKernels

__all__ = [
    "FEWEST_QUERIES",
    "ROW_MULTIPLE",
    "DecodeSequences",
    "GpuStepSequences",
    "PrefillSequences",
    "TritonKernels",
    "TritonPagedAttention",
]
