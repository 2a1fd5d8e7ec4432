"""Matrices that a checkpoint holds as codes already, in the tensors of a quantiser's layout (`WeightFormat.layout`)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.matrix.packed_words import integers
from ridgeline.core.ops.matrix.quantised import QuantisedMatrix, packed
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.shard import Indivisible
from ridgeline.core.ops.stored_module import StorageShare, weight

_BYTE = 2  # inputs of 4 bits, which ranks must not part
_SCALES = (torch.float32, torch.bfloat16, torch.float16)


class PrequantisedMatrix(QuantisedMatrix, ABC):
    """A QuantisedMatrix that takes its codes, scales and zeros from a checkpoint as they are: they may be repacked and
    put into another order, no number changes. They are billed as the checkpoint stores them.

    `order`: int32 [I], the inputs sorted by group, where a group is not of inputs side by side (GPTQ's act-order). The
    codes of a row are held in this order, and what is multiplied with them is brought into it.
    """

    names: tuple[str, ...]
    """The checkpoint's tensors, but for the bias."""

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.names = self.layout_names()
        self.order = weight(self.inputs, dtype=torch.int32) if stored.ordered else None
        self._waiting: dict[str, Tensor] = {}

    @property
    @override
    def quantises(self) -> bool:
        return False

    @abstractmethod
    def layout_names(self) -> tuple[str, ...]:
        """The tensors that a checkpoint in its format has, as `names`."""

    @abstractmethod
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take, of the tensors of the layout."""

    @property
    @override
    def scale_dtype(self) -> torch.dtype:
        """As the format says, until `put_scales` takes the checkpoint's."""
        return torch.float32 if self.stored.scale_bits > 16 else torch.float16

    @property
    @override
    def operands(self) -> Operands | None:
        """As Matrix.operands; None where rows come in another order."""
        return super().operands if self.order is None else None

    @override
    def for_kernel(self, x_TI: Tensor) -> tuple[Tensor, Operands | None]:
        return x_TI if self.order is None else x_TI.index_select(1, self.order), super().operands

    @override
    def dense(self, picked_R: Tensor | None = None) -> Tensor:
        held_RI = super().dense(picked_R)
        return held_RI if self.order is None else torch.empty_like(held_RI).index_copy_(1, self.order.long(), held_RI)

    @override
    def drawn(self, block: Tensor) -> dict[str, Tensor]:
        """As Stored.drawn; inputs stay side by side."""
        order = {} if self.order is None else {"order": torch.arange(self.inputs, dtype=torch.int32)}
        return super().drawn(block) | order

    @override
    def tensors(self) -> tuple[str, ...]:
        return (*self.names, "bias") if self.spec.bias else self.names

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """As Stored.dtype_of: codes and scales have dtypes of their own."""
        return super().dtype_of(name) if name == "bias" else None

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares: of what the checkpoint has."""
        return Matrix.shares(self)

    @property
    @override
    def repacked_bytes(self) -> float:
        held = sum(parameter.nbytes for name, parameter in self.named_parameters() if name != "bias")
        return held - self.stored.nbytes(self.outputs, self.inputs)

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        return {name: self.own(name, full)} if name == "bias" else self.put(name, full)

    @override
    def refuse_division(self) -> None:
        """As Stored.refuse_division: the ranks that share it do not cut a group."""
        spec, stored = self.spec, self.stored
        rows, group = stored.block
        if spec.shard.size == 1 or spec.split is None:
            return
        if spec.split == "column":
            cut = rows is not None and any(part % rows for part in spec.own_parts)
        else:
            cut = stored.ordered or bool(self.inputs % (group or _BYTE))
        if cut:
            raise Indivisible(
                f"weights stored as {stored.name} do not divide over {spec.shard.size} devices without cutting "
                f"groups ({spec.inputs} inputs, {spec.outputs} outputs); give --devices 1"
            )

    # -- this rank's part ---------------------------------------------------------------------------------------------

    def of_outputs(self, full: Tensor, dim: int = 0, each: int = 1) -> Tensor:
        """This rank's part of a tensor in which each place along `dim` is of `each` outputs."""
        if self.spec.split != "column":
            return full
        parts = [part // each for part in self.spec.parts]
        return self.spec.shard.slice(full, dim, parts or None)

    def of_inputs(self, full: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor whose places along `dim` are inputs, or groups of them."""
        return self.spec.shard.slice(full, dim) if self.spec.split == "row" else full

    def of_groups(self, full: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor whose places along `dim` are groups of inputs; ranks share a group of all
        inputs.
        """
        return full if self.stored.block[1] is None else self.of_inputs(full, dim)

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def whole_groups(self) -> int:
        """Groups of inputs, of all ranks together."""
        return -(-self.spec.inputs // (self.stored.block[1] or self.spec.inputs))

    def put_codes(self, own_OB: Tensor) -> Mapping[str, Tensor]:
        """This rank's codes, uint8, packed as they are held but not filled up to whole units; nothing yet where their
        order is still to come.
        """
        if self.order is None:
            missing = self.codes.shape[1] - own_OB.shape[1]
            return {"codes": functional.pad(own_OB, (0, missing)) if missing else own_OB.contiguous()}
        self._waiting["codes"] = own_OB
        return self._put_in_order()

    def side_by_side(self) -> Tensor:
        """The group of each input of all ranks, where groups are of inputs side by side: int32 [I]."""
        inputs = self.spec.inputs
        return torch.arange(inputs, dtype=torch.int32) // (self.stored.block[1] or inputs)

    def put_groups(self, groups_I: Tensor) -> Mapping[str, Tensor]:
        """The `order` that brings the inputs of each group side by side. groups_I: the group of each input, as the
        checkpoint has it; nothing is kept where groups are side by side already. Raises ValueError.
        """
        wanted_I = self.side_by_side()
        order_I = groups_I.argsort(stable=True)
        if self.order is None and not torch.equal(groups_I, wanted_I):
            raise ValueError(
                "puts inputs into groups in another order than theirs; correct desc_act or actorder in the config"
            )
        if not torch.equal(groups_I[order_I], wanted_I):
            group = self.stored.block[1]
            raise ValueError(f"puts other than {group} inputs into a group; the checkpoint is broken, fetch it again")
        if self.order is None:
            return {}
        self._waiting["order"] = order_I.int()
        return self._put_in_order()

    def _put_in_order(self) -> Mapping[str, Tensor]:
        if len(self._waiting) < 2:
            return {}
        codes_OB, order_I = self._waiting.pop("codes"), self._waiting.pop("order")
        codes_OI = integers(codes_OB, self.stored.bits)
        return {"codes": packed(codes_OI.index_select(1, order_I), self.kind), "order": order_I}

    def put_scales(self, own_OG: Tensor) -> Mapping[str, Tensor]:
        """This rank's scales, which stay in the dtype that the checkpoint has them in. Raises ValueError."""
        check_scale_dtype(own_OG)
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


def check_scale_dtype(full: Tensor) -> None:
    """Raises ValueError for scales in another dtype than those that are read."""
    if full.dtype not in _SCALES:
        raise ValueError(f"is {full.dtype}; scales are float32, bfloat16 or float16")
