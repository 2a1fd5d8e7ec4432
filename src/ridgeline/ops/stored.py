"""Stored: what holds parameters, and takes them from the tensors of a checkpoint."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Stored(nn.Module):
    """A module with parameters of its own.

    A checkpoint's name of a tensor is the path of the module and the tensor's own name, without the modules on the way
    that are `unnamed`: those are how we group what a checkpoint stores side by side.
    """

    unnamed = False

    def tensors(self) -> tuple[str, ...]:
        """The checkpoint's tensors that fill this module, as named within it: one a parameter, unless it is stored in
        another form."""
        return tuple(name for name, _ in self.named_parameters(recurse=False))

    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """What this rank keeps of the checkpoint's tensor `name`, by parameter. Raises ValueError for a tensor that
        cannot be kept so."""
        return {name: full}

    def parameter_count(self) -> int:
        """How many numbers it holds."""
        return sum(p.numel() for p in self.parameters(recurse=False))

    def stored_bytes(self) -> float:
        """Bytes that its parameters take as stored, scales included."""
        return float(sum(p.nbytes for p in self.parameters(recurse=False)))


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """An unfilled parameter on the current device (`meta` until a checkpoint fills it); nothing here is trained."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
