"""The base class of modules with parameters, which converts tensors of a checkpoint into them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class StorageShare:
    """The parameters of a module that are stored in one format: their number and their bytes."""

    stored: WeightFormat | None
    """The weight format that some parameters are stored in; None for the model's dtype."""
    parameters: int
    nbytes: float
    """The bytes of the parameters in one weight format, scales included."""


class StoredModule(BackendModule):
    """A module with parameters of its own, which it loads from the tensors of a checkpoint.

    The checkpoint's name of a tensor is the path of the module plus the tensor's own name. The path omits modules that
    are `unnamed`: these group modules that the checkpoint stores as siblings.
    """

    unnamed = False
    """Whether tensor names in the checkpoint omit this module's name."""
    is_adapter: ClassVar[bool] = False
    """Whether the module belongs to a LoRA adapter and not to the model itself."""
    shard: Shard = WHOLE
    """The share of each parameter that this rank holds, along the first dimension."""
    pending_matrices = 0
    """The number of matrices that `create_parameters` will create."""
    quantises = False
    """Whether the module quantises plain weights of the checkpoint while it is loaded."""

    @property
    def is_runnable(self) -> bool:
        """Whether a module can compute with its weights in their format; otherwise it is only priced."""
        return True

    @property
    def loads_submodules(self) -> bool:
        """Whether a module's tensors also fill its submodules, which then have no tensors of their own."""
        return False

    def tensors(self) -> tuple[str, ...]:
        """Return the names, within a module, of the checkpoint tensors that fill it.

        There is one per parameter, unless the module is stored in another form.
        """
        return tuple(name for name, _ in self.named_parameters(recurse=False))

    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the dtype to which the loader casts a checkpoint tensor of floats before it calls `load_tensor`.

        It is the dtype of the parameter of this name. None means that `load_tensor` needs the tensor as it is stored.
        """
        return self.get_parameter(name).dtype

    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Return this rank's parameters of a module from one checkpoint tensor, keyed by name or path in a submodule.

        Args:
            name: The tensor's name within this module.
            full: The whole tensor, of all ranks.

        Raises:
            ValueError: If the tensor does not fit the module.
        """
        return {name: self.shard.slice(full, 0)}

    def set_parameter(self, path: str, tensor: Tensor) -> None:
        """Replace a parameter of a module, or of a submodule, by a filled one.

        Args:
            path: The name or path of the parameter, as `load_tensor` returns it.
            tensor: The numbers of the parameter, which are not copied.
        """
        owner, _, name = path.rpartition(".")
        setattr(self.get_submodule(owner), name, nn.Parameter(tensor, requires_grad=False))

    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return the number of parameters and their bytes for each storage format in the module."""
        own = [parameter for parameter in self._parameters.values() if parameter is not None]
        return (StorageShare(None, sum(p.numel() for p in own), float(sum(p.nbytes for p in own))),)

    def parameter_count(self) -> int:
        """Return the number of a module's parameters; scales do not count."""
        return sum(share.parameters for share in self.storage_shares())

    def stored_bytes(self) -> float:
        """Return the bytes of a module's parameters as stored, scales included."""
        return sum(share.nbytes for share in self.storage_shares())

    @property
    def repacked_bytes(self) -> float:
        """The additional bytes in memory if a module's weights are repacked; negative if that saves memory.

        The parameter breakdown counts the bytes of the checkpoint's form.
        """
        return sum(child.repacked_bytes for child in self.children() if isinstance(child, StoredModule))

    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """Adapt a module, before it is filled, to the form in which the checkpoint stores its tensors.

        Args:
            dtype_of: Returns the dtype of a checkpoint tensor, as safetensors spells it, by its name within this
                module; None if there is no such tensor.
        """

    def random_parameters(self, block: Tensor) -> Mapping[str, Tensor]:
        """Return random values for a module's parameters that are not plain floats of the model's dtype, by name.

        Args:
            block: Random floats to derive the values from.
        """
        return {}

    def check_divisible(self) -> None:
        """Raise Indivisible if tensor parallelism would cut a group or block of a quantised checkpoint."""

    def create_parameters(self) -> None:
        """Create, on the current device, a module's parameters that pricing does not need, unless they exist."""

    def interleaved_parameters(self) -> Iterable[Tensor]:
        """Return the weights whose memory order is interleaved for this machine's kernels instead of row by row."""
        return ()

    def unfilled_copy(self) -> "StoredModule":
        """Return an unfilled copy of a module, of the same shape and format.

        It holds a token table that the checkpoint stores separately, although the model ties it to this one.
        """
        raise AssertionError(f"{self} cannot be stored again")

    def tied_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters that a tied module, such as an LM head, shares with this one, by their names there."""
        return dict(self.named_parameters(recurse=False))


def dtype_mismatch(held: torch.dtype, wanted: torch.dtype) -> str:
    """Return the end of an error message about a tensor with floats in place of codes or integers, or the reverse.

    Floats of another dtype cause no error; the loader casts them first.
    """
    return (
        f"has dtype {held}, but the config requires {wanted}; "
        "give the config.json of this checkpoint, with its quantisation"
    )


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """Return an uninitialised parameter without gradient on the current device, for a checkpoint to fill.

    The device is `meta` until the model is loaded.
    """
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
