"""Bound: a module that a backend executes."""

import torch
from torch import nn


class BackendModule(nn.Module):
    """A module that a backend executes from when it is bound to one (`Backend.bind`), and PyTorch until then."""

    backend: object
    """The backend. A class that calls it states the part of `Backend` that it calls; PyTorch's methods are the default.
    """

    @property
    def model_dtype(self) -> torch.dtype | None:
        """The dtype of a whole model; None for a part of one."""
        return None
