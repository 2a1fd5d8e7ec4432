"""The base class of modules that call a backend."""

import torch
from torch import nn


class BackendModule(nn.Module):
    """A module that calls its backend for work that kernels can do; PyTorch does the work until a backend is bound.

    `Backend.bind` sets the backend.
    """

    backend: object
    """The backend that executes the module; subclasses narrow its type to the methods of `Backend` that they call."""

    @property
    def model_dtype(self) -> torch.dtype | None:
        """The dtype of a model as a whole; None for a module that is only a part of a model."""
        return None
