"""Kernels of our own: a C++ library for processors, Triton kernels for GPUs."""
