"""The experts of a transformers class whose code stays, because no Experts op has their layout or their routing.

Shapes: T rows of a step, D hidden, K experts per token, N rows of all experts of a step, I inputs, O outputs.
"""

from collections.abc import Hashable
from typing import Any

from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.from_transformers.class_code_ops import ClassOp
from ridgeline.core.models.from_transformers.rank_collectives import JoinsRanks
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, Feature
from ridgeline.core.ops.number_formats import format_of


class ClassExpertMatrices(JoinsRanks, ClassOp):
    """The base class of modules with three-dimensional parameters that hold a matrix of each expert."""

    kind = "experts"

    @property
    def _matrices(self) -> list[Tensor]:
        """The parameters that hold a matrix of each expert."""
        return [parameter for parameter in self.parameters(recurse=False) if parameter.dim() > 2]

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        return () if self.experts is None else (self.experts,)

    @property
    @override
    def idle_parameters(self) -> int:  # type: ignore[override]
        """The number of parameters of the experts that a token is not routed to."""
        if self.experts is None:
            return 0
        return self.parameter_count() // self.experts.count * (self.experts.count - self.experts.active)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.experts


class ClassExperts(ClassExpertMatrices):
    """A mixture of experts whose matrices a class keeps in three-dimensional parameters, expert by expert.

    Some of the experts may have no down matrix: these compute nothing (the zero experts of LongCat-Flash).
    """

    @override
    def forward(self, x_TD: Tensor, picked_TK: Tensor, weights_TK: Tensor, *others: Any) -> Tensor:
        """Return the weighted sum of each row's experts, by the class's own code."""
        if x_TD.is_meta:
            return self.joined(x_TD.new_empty(x_TD.shape))  # the data decide which experts are hit
        return self.joined(super().forward(x_TD, picked_TK, weights_TK, *others))

    @override
    def observe(self, inputs: tuple[Any, ...], output: Any, rows: int) -> None:
        super().observe(inputs[:1], output, rows)
        self.experts = ExpectedExperts(max(map(len, self._matrices)), inputs[1].shape[-1])

    @override
    def experts_hit(self, inputs: tuple[Any, ...]) -> int | None:
        return len(inputs[1].unique())

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
            activation_bytes=self.moved_bytes(rows) + rows * inner * self.dtype.itemsize,
        )


class GroupedMatrices(ClassExpertMatrices):
    """A matrix of each expert, by which a class multiplies rows that it has sorted by expert (JetMoE).

    The class gives the rows, each token's `experts per token` times, and the number of rows of each expert.
    """

    @override
    def forward(self, x_NI: Tensor, counts: list[int]) -> Tensor:
        """Return each row times the matrix of its expert, by the class's own code: [N, O]."""
        if x_NI.is_meta:
            return self.joined(x_NI.new_empty(len(x_NI), self.outputs))
        return self.joined(super().forward(x_NI, counts))

    @property
    def outputs(self) -> int:
        """The width of a result row."""
        return self._matrices[0].shape[1]

    @override
    def observe(self, inputs: tuple[Any, ...], output: Any, rows: int) -> None:
        super().observe(inputs, output, rows)
        self.experts = ExpectedExperts(len(self._matrices[0]), len(inputs[0]) // rows)

    @override
    def experts_hit(self, inputs: tuple[Any, ...]) -> int | None:
        return sum(count > 0 for count in inputs[1])

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of the matrices that are expected to be hit, each of which is read once."""
        assert self.experts is not None, "trace a model before you price it"
        (matrices,) = self._matrices
        products = 2.0 * rows * self.experts.active * matrices[0].numel()
        stored = self.experts.expected_hits(rows) * matrices[0].nbytes
        return Cost({format_of(self.dtype).name: products}, stored, activation_bytes=self.moved_bytes(rows))
