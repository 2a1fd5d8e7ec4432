"""Matrices of codes that a checkpoint stores in tensors of their own, beside which there is no plain weight."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.ops.matrix.quantised import QuantisedMatrix
from ridgeline.ops.shard import Indivisible
from ridgeline.ops.stored import Share

_BYTE = 2  # inputs of 4 bits
_SCALES = (torch.float32, torch.bfloat16, torch.float16)


class LaidOutMatrix(QuantisedMatrix, ABC):
    """A QuantisedMatrix whose codes, scales and zeros are a checkpoint's, number by number; their order alone may
    change. What they take is billed as the checkpoint stores it."""

    names: tuple[str, ...]
    """The checkpoint's tensors, but for the bias."""

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.names = self.layout_names()

    @abstractmethod
    def layout_names(self) -> tuple[str, ...]:
        """What `names` is, of a format."""

    @abstractmethod
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take, of the tensors of the layout."""

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of the scales, until a checkpoint says which it has."""
        return torch.float32 if self.stored_as.scale_bits > 16 else torch.float16

    def tensors(self) -> tuple[str, ...]:
        """As Stored.tensors."""
        return (*self.names, "bias") if self.spec.bias else self.names

    def keeps(self, name: str) -> bool:
        """As Stored.keeps."""
        return name != "bias"

    def shares(self) -> tuple[Share, ...]:
        """As Stored.shares: of what the checkpoint has."""
        return Matrix.shares(self)

    @property
    def repacked_bytes(self) -> float:
        """Bytes that it takes in memory beyond those of the checkpoint; below 0 where it takes fewer."""
        held = sum(parameter.nbytes for name, parameter in self.named_parameters() if name != "bias")
        return held - self.stored_as.nbytes(self.outputs, self.inputs)

    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take."""
        return {name: self.own(name, full)} if name == "bias" else self.put(name, full)

    def refuse_division(self) -> None:
        """Raises Indivisible where the ranks that share it would cut a group."""
        spec, (rows, group) = self.spec, self.stored_as.block
        if spec.shard.size == 1 or spec.split is None:
            return
        if spec.split == "column":
            cut = rows is not None and any(part % rows for part in spec.own_parts)
        else:
            cut = bool(self.inputs % (group or _BYTE))
        if cut:
            raise Indivisible(
                f"weights stored as {self.stored_as.name} do not divide over {spec.shard.size} devices without cutting "
                f"groups ({spec.inputs} inputs, {spec.outputs} outputs); give --devices 1"
            )

    # -- this rank's part ---------------------------------------------------------------------------------------------

    def of_outputs(self, full: Tensor, dim: int = 0, each: int = 1) -> Tensor:
        """The part of a tensor in which `each` outputs have one place along `dim`."""
        if self.spec.split != "column":
            return full
        parts = [part // each for part in self.spec.parts]
        return self.spec.shard.slice(full, dim, parts or None)

    def of_inputs(self, full: Tensor, dim: int = 1) -> Tensor:
        """The part of a tensor in which inputs, or groups of them, have places along `dim`."""
        return self.spec.shard.slice(full, dim) if self.spec.split == "row" else full

    def of_groups(self, full: Tensor, dim: int = 1) -> Tensor:
        """The part of a tensor with a place for each group of inputs; ranks share the one of all inputs."""
        return full if self.stored_as.block[1] is None else self.of_inputs(full, dim)

    # -- parameters ---------------------------------------------------------------------------------------------------

    def scales(self, own_OG: Tensor) -> Mapping[str, Tensor]:
        """`scale` of this rank's scales, which stay in the dtype that the checkpoint has them in."""
        if own_OG.dtype not in _SCALES:
            raise ValueError(f"is {own_OG.dtype}; scales are float32, bfloat16 or float16")
        if not torch.isfinite(own_OG).all():
            raise ValueError("holds NaN or infinity; the checkpoint is broken, fetch it again")
        place = torch.empty(self.scale.shape, dtype=own_OG.dtype, device="meta")
        self.scale = nn.Parameter(place, requires_grad=False)
        return {"scale": own_OG.contiguous()}


def check_shape(full: Tensor, *shape: int) -> None:
    """Raises ValueError for a tensor of another shape."""
    if tuple(full.shape) != shape:
        raise ValueError(f"is {list(full.shape)}, the config wants {list(shape)}")


def check_dtype(full: Tensor, dtype: torch.dtype) -> None:
    """Raises ValueError for a tensor of another dtype."""
    if full.dtype != dtype:
        raise ValueError(f"is {full.dtype}, such weights are stored as {dtype}")
