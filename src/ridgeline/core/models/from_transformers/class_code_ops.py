"""The modules of a transformers class that keep their code and become ops, or that only load their parameters.

A subclass of an op here and of the class takes the class's place.

Shapes: D width of a row.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.models.from_transformers.rank_part import share_of
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import TypedOp
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare, StoredModule

_RMS_FLOPS, _LAYER_FLOPS = 4, 7  # as in norm.py


class RankParameters(StoredModule):
    """The base class of modules of a class that load a rank's part of each of their own parameters.

    Attributes:
        rank: The rank among all that divide the class.
    """

    rank: Shard = WHOLE

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        own = self.get_parameter(name)
        for dim, (size, whole) in enumerate(zip(own.shape, full.shape, strict=True)):
            if size != whole:
                full = share_of(self.rank, whole, size).slice(full, dim)
        return {name: full}


class ClassOp(RankParameters, TypedOp):
    """The base class of ops that compute by the code of a transformers class.

    A subclass of such an op and of the class takes the class's place. `observe` records the sizes of a traced call,
    on which the cost depends.
    """

    dtype: torch.dtype
    row_in: int = 0
    """The numbers that a row of a call reads."""
    row_out: int = 0
    """The numbers that a row of a call writes."""

    def observe(self, inputs: tuple[Any, ...], output: Any, rows: int) -> None:
        """Record the sizes of a traced call over `rows` rows."""
        results = output if isinstance(output, tuple) else (output,)
        self.row_in = sum(x.numel() for x in inputs if isinstance(x, Tensor)) // rows
        self.row_out = sum(x.numel() for x in results if isinstance(x, Tensor)) // rows

    @override
    def signature(self) -> Hashable:
        shapes = tuple((name, tuple(p.shape)) for name, p in self.named_parameters(recurse=False))
        return type(self).__name__, shapes, self.dtype, self.row_in, self.row_out

    def moved_bytes(self, rows: int) -> float:
        """Return the bytes of activations that enter and leave."""
        return float(rows * (self.row_in + self.row_out) * self.dtype.itemsize)


class ClassPart(RankParameters):
    """A module of a class with parameters of its own that is no op; `own_parameters` counts them.

    It has further modules, or code that no op models, such as a router's. A price traces this code.
    """


class OwnParameters(TypedOp):
    """The parameters of a module that is no op, such as attention sinks or the matrix of a router.

    The module's code reads them, so this op is never called; it only counts their bytes in memory.
    """

    kind = "layer"

    def __init__(self, owner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        assert isinstance(owner, StoredModule)
        self._owner = (owner,)  # in a tuple, as no submodule: the owner contains this op
        self.dtype = dtype

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        return StoredModule.storage_shares(*self._owner)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of reading the parameters once."""
        return Cost(weight_bytes=self.stored_bytes())

    @override
    def signature(self) -> Hashable:
        return self.storage_shares()


class ClassNorm(ClassOp):
    """A normalisation that a class computes by itself; costs are those of norm.py."""

    kind = "norm"
    part = "norms"
    fuses_inputs = True

    @override
    def __call__(self, x_xD: Tensor, *others: Any) -> Any:
        if self.rank.size > 1 and self.parameter_count() and x_xD.shape[-1] not in map(len, self.parameters()):
            raise NotBridged("it norms the vectors of all devices together")
        self._of_batch = x_xD.dim() > 2 and x_xD.shape[0] == 1
        if not self._of_batch:
            return super().__call__(x_xD, *others)
        return _each(super().__call__(*_each((x_xD, *others), lambda x: x[0], 1)), lambda x: x[None])

    @override
    def forward(self, x_xD: Tensor, *others: Any) -> Any:
        """Return the class's own result, whose code may rely on the dimension of sequences."""
        if not self._of_batch:
            return super().forward(x_xD, *others)
        normed = super().forward(*_each((x_xD, *others), lambda x: x[None], len(x_xD)))
        return _each(normed, lambda x: x[0])

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a norm: its weights are read once, vectors enter and leave."""
        flops = _LAYER_FLOPS if "bias" in self._parameters else _RMS_FLOPS
        return Cost(
            {"fp32": float(flops * rows * self.row_in)}, self.stored_bytes(), activation_bytes=self.moved_bytes(rows)
        )


def _each(nested: Any, change: Callable[[Tensor], Tensor], length: int | None = None) -> Any:
    """Return a tensor, or those of a tuple with a first dimension of a length, changed."""
    if isinstance(nested, tuple):
        return tuple(_each(each, change, length) for each in nested)
    fits = isinstance(nested, Tensor) and nested.dim() > 0 and length in (None, nested.shape[0])
    return change(nested) if fits else nested
