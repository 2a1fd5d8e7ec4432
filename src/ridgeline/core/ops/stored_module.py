"""Stored: what holds parameters, and takes them from the tensors of a checkpoint."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.number_formats import WeightFormat


@dataclass(frozen=True, slots=True)
class StorageShare:
    """What of a module is stored in one format (None for the model's dtype): numbers, and bytes with their scales."""

    stored: WeightFormat | None
    parameters: int
    nbytes: float


class StoredModule(BackendModule):
    """A module with parameters of its own.

    A checkpoint's name of a tensor is the path of the module and the tensor's own name, without the modules on the way
    that are `unnamed`: those are how we group what a checkpoint stores side by side.
    """

    unnamed = False
    is_adapter: ClassVar[bool] = False
    """Whether an adapter brought it, so that it is no part of the model itself."""

    @property
    def runs(self) -> bool:
        """Whether it computes with its numbers stored so, or they are only priced."""
        return True

    @property
    def takes_all(self) -> bool:
        """Whether its tensors fill the modules within it too, which then have none of their own."""
        return False

    def tensors(self) -> tuple[str, ...]:
        """The checkpoint's tensors that fill this module, as named within it: one a parameter, unless it is stored in
        another form.
        """
        return tuple(name for name, _ in self.named_parameters(recurse=False))

    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the dtype to which the floats of the checkpoint's tensor `name` are cast before `take` gets them: that
        of the parameter of this name. None if `take` wants them as they are stored.
        """
        return self.get_parameter(name).dtype

    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """What this rank keeps of the checkpoint's tensor `name`, by parameter (by its path, of a module within).
        Raises ValueError for a tensor that cannot be kept so.
        """
        return {name: full}

    def shares(self) -> tuple[StorageShare, ...]:
        """All that it holds, part by part."""
        own = list(self.parameters(recurse=False))
        return (StorageShare(None, sum(p.numel() for p in own), float(sum(p.nbytes for p in own))),)

    def parameter_count(self) -> int:
        """How many numbers it holds; scales are none."""
        return sum(share.parameters for share in self.shares())

    def stored_bytes(self) -> float:
        """Bytes that its parameters take as stored, scales included."""
        return sum(share.nbytes for share in self.shares())

    @property
    def repacked_bytes(self) -> float:
        """Bytes that it takes in memory beyond those that are billed, where it keeps a checkpoint's numbers in another
        form; below 0 where it takes fewer.
        """
        return sum(child.repacked_bytes for child in self.children() if isinstance(child, StoredModule))

    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """Take the one of several forms in which a checkpoint has this module's tensors, before it is filled.

        Args:
            dtype_of: gives the dtype of a checkpoint's tensor, as safetensors spells it, by the name within this
                module; None if there is no such tensor.
        """

    @property
    def quantises(self) -> bool:
        """Whether `take` turns plain numbers into codes."""
        return False

    def drawn(self, block: Tensor) -> Mapping[str, Tensor]:
        """Return random parameters by name, for those that are no floats of the model's dtype. block: random floats to
        make them of.
        """
        return {}

    def refuse_division(self) -> None:
        """Raise Indivisible if ranks would cut what a checkpoint's quantiser stored in one piece."""

    @property
    def pending_matrices(self) -> int:
        """How many matrices `create_parameters` creates."""
        return 0

    def create_parameters(self) -> None:
        """Create on the current device the parameters that pricing does without, unless they are there."""

    def interleaved_parameters(self) -> Iterable[Tensor]:
        """Return the parameters that this machine's kernels read in another order than that of rows."""
        return ()

    def another(self) -> "StoredModule":
        """Return an unfilled module of the same sizes and format, if a checkpoint may have one of its own for it."""
        raise AssertionError(f"{self} is not stored twice")

    def tied_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters that a module shares which is tied to this one, by their names there."""
        return dict(self.named_parameters(recurse=False))


def dtype_mismatch(held: torch.dtype, wanted: torch.dtype) -> str:
    """Return the end of an error about a tensor of floats where codes or integers are wanted, or the reverse. (Floats
    of another dtype are cast before.)
    """
    return f"is {held}, the config wants {wanted}; give the config.json of this checkpoint, with its quantisation"


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """An unfilled parameter on the current device (`meta` until a checkpoint fills it); nothing here is trained."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
