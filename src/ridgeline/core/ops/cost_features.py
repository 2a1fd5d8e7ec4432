"""Features: what the cost of an op depends on beside the rows of a step and the sums over its sequences, in which it is
a straight line. An op says which it has, so that somebody who does not know it can find that line by asking.
"""

from dataclasses import dataclass

from ridgeline.core.ops.work import AttentionSum


@dataclass(frozen=True, slots=True)
class ExpectedExperts:
    """Distinct ones of `count` experts that rows are expected to hit, each of which passes `active`, under a balanced
    router: count (1 - (1 - active / count)^rows).
    """

    count: int
    active: int

    def of(self, rows: float) -> float:
        """How many so many rows hit."""
        missed: float = (1 - self.active / self.count) ** rows
        return self.count * (1 - missed)


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Its rows are those of all ranks that have some, as many on each as on this one, where there are several
    (`Price.gathering`).
    """


@dataclass(frozen=True, slots=True)
class KernelThreshold:
    """Sequences of one class of query length are done in another way where this sum over them is at most `most`:
    `queries`, `pairs` and `keys` are what each of those counts in it.
    """

    queries: int = 0
    pairs: int = 0
    keys: int = 0
    most: int = 0

    def holds(self, sums: AttentionSum) -> bool:
        """Whether the sum is at most that."""
        return self.queries * sums.queries + self.pairs * sums.pairs + self.keys * sums.keys <= self.most


Feature = ExpectedExperts | GatheredRows | KernelThreshold
