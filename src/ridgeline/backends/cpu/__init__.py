"""The backend for CPUs: our compiled C++ kernels."""
