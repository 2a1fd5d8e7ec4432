"""The backend for NVIDIA GPUs, with Triton kernels."""
