"""The base class of modules that call a backend."""

import torch
from torch import nn


class BackendModule(nn.Module):
    """A module that calls its backend for work that kernels can do; PyTorch does the work until a backend is bound.

    `Backend.bind` sets the backend.
    """

    backend: object
    """The backend. Each subclass declares the part of the `Backend` interface that it calls, implemented in PyTorch."""

    @property
    def model_dtype(self) -> torch.dtype | None:
        """The dtype of a whole model; None for a part of a model."""
        return None
