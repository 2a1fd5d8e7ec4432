"""Matrices that the checkpoint stores already quantised, in a quantiser's layout (`WeightFormat.layout`)."""

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

_BYTE = 2  # two 4-bit inputs share a byte, which ranks must not divide
_SCALES = (torch.float32, torch.bfloat16, torch.float16)


class PrequantisedMatrix(QuantisedMatrix, ABC):
    """A quantised matrix whose codes, scales and zero points come from the checkpoint unchanged.

    Loading may repack and reorder them, but changes no number. Their size is counted as the checkpoint stores them.

    Attributes:
        order: The inputs sorted by group, int32 [I], if groups are not of consecutive inputs (GPTQ's act-order). The
            codes of a row are stored in this order, and activations are permuted into it before the product.
    """

    quantises = False
    names: tuple[str, ...]
    """The names of a quantised matrix's checkpoint tensors, without the bias."""

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.order = weight(self.inputs, dtype=torch.int32) if stored.ordered else None
        self._waiting: dict[str, Tensor] = {}

    @abstractmethod
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Return this rank's parameters from one checkpoint tensor of a quantised matrix, by parameter name."""

    @property
    @override
    def scale_dtype(self) -> torch.dtype:
        """The default dtype of a quantised matrix's scales, until `put_scales` adopts the checkpoint's."""
        return torch.float32 if self.stored.scale_bits > 16 else torch.float16

    @property
    @override
    def operands(self) -> Operands | None:
        """The operands of a quantised matrix for our kernels; None if activations must be permuted first."""
        return super().operands if self.order is None else None

    @override
    def for_kernel(self, x_TI: Tensor) -> tuple[Tensor, Operands | None]:
        return x_TI if self.order is None else x_TI.index_select(1, self.order), super().operands

    @override
    def dense(self, picked_R: Tensor | None = None) -> Tensor:
        held_RI = super().dense(picked_R)
        return held_RI if self.order is None else torch.empty_like(held_RI).index_copy_(1, self.order.long(), held_RI)

    @override
    def random_parameters(self, block: Tensor) -> dict[str, Tensor]:
        """Return random codes, scales and zero points for a quantised matrix, with inputs in their natural order."""
        order = {} if self.order is None else {"order": torch.arange(self.inputs, dtype=torch.int32)}
        return super().random_parameters(block) | order

    @override
    def tensors(self) -> tuple[str, ...]:
        return (*self.names, "bias") if self.spec.bias else self.names

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the dtype to load a quantised matrix's bias in, and None for codes and scales, which keep theirs."""
        return super().dtype_of(name) if name == "bias" else None

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return a quantised matrix's parameter count and bytes as the checkpoint stores them."""
        return Matrix.storage_shares(self)

    @property
    @override
    def repacked_bytes(self) -> float:
        held = sum(parameter.nbytes for name, parameter in self.named_parameters() if name != "bias")
        return held - self.stored.nbytes(self.outputs, self.inputs)

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        return {name: self.shard_of(name, full)} if name == "bias" else self.put(name, full)

    @override
    def check_divisible(self) -> None:
        """Raise Indivisible if the ranks would cut a block of weights that share a scale."""
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
        """Return this rank's part of a tensor whose entries along `dim` stand for `each` outputs."""
        if self.spec.split != "column":
            return full
        parts = [part // each for part in self.spec.parts]
        return self.spec.shard.slice(full, dim, parts or None)

    def of_inputs(self, full: Tensor, dim: int = 1) -> Tensor:
        """Return this rank's part of a tensor whose entries along `dim` are inputs or groups of inputs."""
        return self.spec.shard.slice(full, dim) if self.spec.split == "row" else full

    def of_groups(self, full: Tensor, dim: int = 1) -> Tensor:
        """Return this rank's part of a tensor whose entries along `dim` are groups of inputs.

        If one group covers all inputs, every rank has the whole tensor.
        """
        return full if self.stored.block[1] is None else self.of_inputs(full, dim)

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def whole_groups(self) -> int:
        """The number of groups of inputs that share a scale, over all ranks."""
        return -(-self.spec.inputs // (self.stored.block[1] or self.spec.inputs))

    def put_codes(self, own_OB: Tensor) -> Mapping[str, Tensor]:
        """Return this rank's codes as a parameter, each row padded to whole UNITs of codes.

        Return nothing until the order of the inputs is known.

        Args:
            own_OB: The packed codes of this rank, uint8.
        """
        if self.order is None:
            missing = self.codes.shape[1] - own_OB.shape[1]
            return {"codes": functional.pad(own_OB, (0, missing)) if missing else own_OB.contiguous()}
        self._waiting["codes"] = own_OB
        return self._put_in_order()

    def consecutive_groups(self) -> Tensor:
        """Return the group of each input over all ranks, for groups of consecutive inputs: int32 [I]."""
        inputs = self.spec.inputs
        return torch.arange(inputs, dtype=torch.int32) // (self.stored.block[1] or inputs)

    def put_groups(self, groups_I: Tensor) -> Mapping[str, Tensor]:
        """Return the order that makes the inputs of each group consecutive, or nothing if they are already.

        Args:
            groups_I: The group of each input, as in the checkpoint.

        Raises:
            ValueError: If the config declares no order but the checkpoint has one, or if the groups differ in size.
        """
        wanted_I = self.consecutive_groups()
        order_I = groups_I.argsort(stable=True)
        if self.order is None and not torch.equal(groups_I, wanted_I):
            raise ValueError(
                "reorders the inputs of groups, but the config says otherwise; correct its desc_act or actorder"
            )
        if not torch.equal(groups_I[order_I], wanted_I):
            group = self.stored.block[1]
            raise ValueError(
                f"has groups that do not have {group} inputs each; the checkpoint is broken, fetch it again"
            )
        if self.order is None:
            return {}
        self._waiting["order"] = order_I.int()
        return self._put_in_order()

    def _put_in_order(self) -> Mapping[str, Tensor]:
        """Return a matrix's codes sorted by group of inputs, and that order, once both tensors are read."""
        if len(self._waiting) < 2:
            return {}
        codes_OB, order_I = self._waiting.pop("codes"), self._waiting.pop("order")
        codes_OI = integers(codes_OB, self.stored.bits)
        return {"codes": packed(codes_OI.index_select(1, order_I), self.kind), "order": order_I}

    def put_scales(self, own_OG: Tensor) -> Mapping[str, Tensor]:
        """Return this rank's scales of a quantised matrix as a parameter, in the dtype of the checkpoint.

        Raises:
            ValueError: If the dtype is not one of fp32, bf16 and fp16, or a scale is NaN or infinite.
        """
        check_scale_dtype(own_OG)
        if not torch.isfinite(own_OG).all():
            raise ValueError("holds NaN or infinity; the checkpoint is broken, fetch it again")
        place = torch.empty(self.scale.shape, dtype=own_OG.dtype, device="meta")
        self.scale = nn.Parameter(place, requires_grad=False)
        return {"scale": own_OG.contiguous()}


def check_shape(full: Tensor, *shape: int) -> None:
    """Raise ValueError if a checkpoint tensor has another shape than expected."""
    if tuple(full.shape) != shape:
        raise ValueError(f"has shape {list(full.shape)}, but the config requires {list(shape)}")


def check_dtype(full: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError if a checkpoint tensor has another dtype than expected."""
    if full.dtype != dtype:
        raise ValueError(f"has dtype {full.dtype}, but such weights must be stored as {dtype}")


def check_scale_dtype(full: Tensor) -> None:
    """Raise ValueError if a quantised matrix's scales have a dtype other than fp32, bf16 and fp16."""
    if full.dtype not in _SCALES:
        raise ValueError(f"has dtype {full.dtype}, but scales must be float32, bfloat16 or float16")
