"""Backends: the code that executes the ops of a model, with one folder per kind of hardware.

A new backend is a folder and an entry in BACKENDS.
"""

import torch

from ridgeline.backends.cpu.cpu_backend import CpuBackend
from ridgeline.backends.cuda.cuda_backend import CudaBackend
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.backend import REFERENCE, Backend

BACKENDS: tuple[type[Backend], ...] = (CudaBackend, CpuBackend, ReferenceBackend)
"""All backends; the first one that serves a device executes the models on it."""


def backend_of(device: torch.device) -> Backend:
    """Return a new backend for a model whose parameters are on `device`."""
    return next(backend for backend in BACKENDS if backend.serves(device))()


def prepared(model: PricedModule) -> Backend:
    """Return the backend of a model, after preparing the model for its device if that has not been done yet."""
    if model.backend is REFERENCE:
        backend_of(next(model.parameters()).device).prepare(model)
    return model.backend


def priced_backends() -> tuple[Backend, ...]:
    """Return the backends with kernels of their own, which can price launches without their hardware."""
    return _PRICED


def priced_backend(kind: str) -> Backend:
    """Return the backend with kernels of its own for a kind of device, "cpu" or "gpu"."""
    return next(backend for backend in _PRICED if backend.kind == kind)


_PRICED = tuple(backend() for backend in BACKENDS if backend.kind)
