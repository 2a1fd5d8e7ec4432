"""The backend for NVIDIA GPUs: our Triton kernels."""
