"""The terms in which an op's cost is linear, besides the row count of a step and the sums over its sequences.

Each op declares its terms, so that code that does not know the op can find its cost function by evaluating a few steps.
"""

from dataclasses import dataclass

from ridgeline.core.ops.work import AttentionSum


@dataclass(frozen=True, slots=True)
class ExpectedExperts:
    """The expected number of distinct experts that a step hits, if the router is balanced.

    It is count (1 - (1 - active / count)^rows).
    """

    count: int
    """The number of experts of a mixture-of-experts layer."""
    active: int
    """The number of experts that each row is routed to."""

    def expected_hits(self, rows: float) -> float:  # also in formulas.js
        """Return the expected number of distinct experts that `rows` rows hit."""
        missed: float = (1 - self.active / self.count) ** rows
        return self.count * (1 - missed)


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """The fact that an op processes the rows of several ranks together, each with as many rows as this one.

    `Price.with_active_ranks` sets the number of ranks that have rows.
    """


@dataclass(frozen=True, slots=True)
class KernelThreshold:
    """A condition on a class of query lengths under which an op runs the class's sequences in another way.

    The condition holds if queries x (number of queries) + pairs x (number of query-key pairs) + keys x (number of keys)
    is at most `limit`.
    """

    queries: int = 0
    """The coefficient of the number of queries in a threshold's weighted sum."""
    pairs: int = 0
    """The coefficient of the number of query-key pairs in a threshold's weighted sum."""
    keys: int = 0
    """The coefficient of the number of keys in a threshold's weighted sum."""
    limit: int = 0
    """The largest weighted sum of queries, pairs and keys for which a kernel threshold's condition holds."""

    def holds(self, sums: AttentionSum) -> bool:
        """Return whether the weighted sum of queries, query-key pairs and keys is at most the threshold."""
        return self.queries * sums.queries + self.pairs * sums.pairs + self.keys * sums.keys <= self.limit


Feature = ExpectedExperts | GatheredRows | KernelThreshold
"""A term, other than row counts and attention sums, in which an op's cost is linear."""
