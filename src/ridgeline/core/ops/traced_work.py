"""Work that no op of ours does, priced from traces: the code of a release between, or instead of, our ops.

A trace on the meta device counts the FLOPs and bytes of that code at several sizes. An op here is the linear function
through them, in the rows of a step or, for attention that a release computes by itself, in the sums of its sequences.
These ops are only priced: the release's own code computes the results.
"""

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from msgspec import structs
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.op import NOT_MODELLED, Launch, Op
from ridgeline.core.ops.work import TOKENS, AttentionPattern, AttentionSum, RowAxis, Work


@dataclass(frozen=True, slots=True)
class TracedCode:
    """The code whose traced work an op stands for."""

    class_name: str
    """The class of the release's module that runs the code."""
    category: str
    """The category of the code's main aten operation, such as `elementwise` or `matrix product`."""
    operations: tuple[str, ...]
    """The names of the aten operations that one kernel does together."""
    number_format: str
    """The name of the number format that the kernel computes in."""

    @property
    def is_product(self) -> bool:
        """Whether the kernel is a matrix product, so that arithmetic may limit it."""
        return self.category == "matrix product"

    @property
    def kernel(self) -> str:
        """The class of the kernel, of those that devices have constants for."""
        match self.category:
            case "matrix product":
                return "linear.matrix"
            case "convolution" | "other":
                return self.category
            case _:
                return "elementwise.add" if self.operations == ("add",) else "elementwise.plain"


class TracedOp(Op):
    """The base class of ops that stand for a release's own code in a price, and that nothing runs."""

    kind = NOT_MODELLED

    @override
    def forward(self, rows_N: Tensor) -> Tensor:
        """Return the argument, on the meta device: a price counts the call."""
        assert rows_N.is_meta, f"{self.kind} code has no op that runs it"
        return rows_N


class TracedContext(TracedOp):
    """The base class of traced ops whose cost depends on the sequences of a step, and not on its rows alone."""

    reads_context = True
    attention_pattern: AttentionPattern

    @abstractmethod
    def _cost(self, sums: AttentionSum) -> Cost:
        """Return the cost of some sequences that have queries."""

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        sums = work.attention[self.attention_pattern].total
        return self._cost(sums) if sums.queries else NO_COST

    @override
    def cost_of(self, rows: int) -> Cost:
        """Raise AssertionError: the cost depends on the sequences, which a row count does not contain."""
        raise AssertionError("attention, caches and states are priced by the sums of sequences, not by rows")


class TracedWork(TracedOp):
    """The traced work of some code on the rows of a step, of which each costs the same."""

    def __init__(self, code: TracedCode, fixed: Cost, row: Cost) -> None:
        """Create the op of one kernel of a release's code.

        Args:
            code: The code.
            fixed: The cost of a step with any number of rows, such as weights that are read.
            row: The further cost of each row.
        """
        super().__init__()
        self.code, self.fixed, self.row = code, fixed, row
        self.traced = code.category

    @override
    def cost_of(self, rows: int) -> Cost:
        return self.fixed + self.row * rows

    @override
    def kernel(self, rows: int) -> str:
        return self.code.kernel

    @property
    @override
    def number_format(self) -> str:
        return self.code.number_format

    @override
    def signature(self) -> Hashable:
        return self.code, _key(self.fixed), _key(self.row)

    @override
    def extra_repr(self) -> str:
        return f"{self.code.class_name} {self.code.category}: {', '.join(self.code.operations)}"


class TracedAttention(TracedContext, TracedWork):
    """The traced work of attention that a release computes by itself, over the queries and keys of a step.

    The trace computes all pairs of a query and a key. The cost has those that the mask leaves, and no score matrix in
    memory: a kernel that computes the same does not need to store it.
    """

    def __init__(
        self, code: TracedCode, pattern: AttentionPattern, fixed: Cost, *, sequence: Cost, query: Cost, pair: Cost,
        key: Cost,
    ) -> None:  # fmt: skip
        """Create the op of one kernel of a release's attention, or of its recurrence.

        Args:
            code: The code.
            pattern: The keys that a query sees.
            fixed: The cost of a step with any sequences, such as weights that are read.
            sequence: The further cost of each sequence.
            query: The further cost of each query.
            pair: The further cost of each pair of a query and a key.
            key: The further cost of each position whose key is read, or of each state that is read.
        """
        super().__init__(code, fixed, query)
        self.attention_pattern = pattern
        self._score_bytes = 0.0 if pattern.kind == "recurrent" else pair.activation_bytes
        moved = pair.activation_bytes - self._score_bytes
        self.sequence, self.pair, self.key = sequence, structs.replace(pair, activation_bytes=moved), key

    @override
    def _cost(self, sums: AttentionSum) -> Cost:
        own = self.sequence * sums.sequences + self.row * sums.queries
        return self.fixed + own + self.pair * sums.pairs + self.key * sums.keys

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return one launch; for a matrix product one for all sequences with a single query, and one for the others."""
        attention = work.attention[self.attention_pattern]
        return tuple(
            Launch(name, self.number_format, 1, self._cost(sums))
            for name, sums in self._launched(attention.one, attention.few + attention.many)
            if sums.queries
        )

    def _launched(self, ones: AttentionSum, others: AttentionSum) -> Iterator[tuple[str, AttentionSum]]:
        if self.code.is_product:
            yield from (("attention.decode", ones), ("attention.prefill", others))
        else:
            yield self.code.kernel, ones + others

    @override
    def score_matrix_bytes(self, work: Work) -> float:
        """Return the bytes that the traced code moves to and from its score matrix; masked pairs are not counted."""
        return self._score_bytes * work.attention[self.attention_pattern].total.pairs

    @override
    def signature(self) -> Hashable:
        terms = map(_key, (self.sequence, self.pair, self.key))
        return super().signature(), self.attention_pattern, *terms, self._score_bytes


def _key(cost: Cost) -> Hashable:
    """Return a key that is equal for equal costs of traced work, which communicates nothing."""
    assert not cost.communication, "a trace on one device has no communication"
    return tuple(sorted(cost.flops.items())), cost.weight_bytes, cost.activation_bytes
