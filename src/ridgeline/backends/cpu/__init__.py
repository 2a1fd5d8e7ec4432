"""The backend for CPUs, with compiled C++ kernels."""
