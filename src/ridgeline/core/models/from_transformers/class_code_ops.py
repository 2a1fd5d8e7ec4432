"""The modules of a transformers class that keep their code and become ops, or that only load their parameters.

A subclass of an op here and of the class takes the class's place.

Shapes: T rows of a step, D hidden, K experts per token.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, Feature
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import TypedOp
from ridgeline.core.ops.stored_module import StorageShare, StoredModule

_RMS_FLOPS, _LAYER_FLOPS = 4, 7  # as in norm.py


class ClassOp(TypedOp):
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

    def _moved(self, rows: int) -> float:
        """Return the bytes of activations that enter and leave."""
        return float(rows * (self.row_in + self.row_out) * self.dtype.itemsize)


class ClassPart(StoredModule):
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
        if x_xD.dim() < 3 or x_xD.shape[0] != 1:
            return super().__call__(x_xD, *others)
        rows = (
            x[0] if isinstance(x, Tensor) and x.shape[:1] == x_xD.shape[:1] else x for x in others
        )  # such as a gate
        return super().__call__(x_xD[0], *rows)[None]

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a norm: its weights are read once, vectors enter and leave."""
        flops = _LAYER_FLOPS if "bias" in self._parameters else _RMS_FLOPS
        return Cost(
            {"fp32": float(flops * rows * self.row_in)}, self.stored_bytes(), activation_bytes=self._moved(rows)
        )


class ClassExperts(ClassOp):
    """A mixture of experts whose matrices a class keeps in three-dimensional parameters, expert by expert.

    Some of the experts may have no down matrix: these compute nothing (the zero experts of LongCat-Flash).
    """

    kind = "experts"

    @override
    def forward(self, x_TD: Tensor, picked_TK: Tensor, weights_TK: Tensor, *others: Any) -> Tensor:
        """Return the weighted sum of each row's experts, by the class's own code."""
        if x_TD.is_meta:
            return x_TD.new_empty(x_TD.shape)  # the data decide which experts are hit
        return super().forward(x_TD, picked_TK, weights_TK, *others)

    @override
    def observe(self, inputs: tuple[Any, ...], output: Any, rows: int) -> None:
        super().observe(inputs[:1], output, rows)
        self.experts = ExpectedExperts(max(map(len, self._matrices)), inputs[1].shape[-1])

    @property
    def _matrices(self) -> list[Tensor]:
        """The parameters that hold a matrix of each expert."""
        return [parameter for parameter in self.parameters(recurse=False) if parameter.dim() > 2]

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        return () if self.experts is None else (self.experts,)

    @override
    def experts_hit(self, inputs: tuple[Any, ...]) -> int | None:
        return len(inputs[1].unique())

    @property
    @override
    def idle_parameters(self) -> int:  # type: ignore[override]
        """The number of parameters of the experts that a token is not routed to."""
        return (
            0
            if self.experts is None
            else self.parameter_count() // self.experts.count * (self.experts.count - self.experts.active)
        )

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of the experts that are expected to be hit, each of whose weights is read once."""
        assert self.experts is not None, "trace a model before you price it"
        count, active = self.experts.count, self.experts.active
        working = min(map(len, self._matrices))
        weights = working / count * sum(matrix[0].numel() for matrix in self._matrices)
        stored = working / count * sum(parameter[0].nbytes for parameter in self.parameters(recurse=False))
        inner = active * weights / self.row_in  # the inputs and outputs of an expert's matrices between them
        return Cost(
            {format_of(self.dtype).name: 2.0 * rows * active * weights},
            self.experts.expected_hits(rows) * stored,
            activation_bytes=self._moved(rows) + rows * inner * self.dtype.itemsize,
        )

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.experts
