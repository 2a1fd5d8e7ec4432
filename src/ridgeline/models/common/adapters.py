"""The matrices of a model that an adapter may add to, by the names that checkpoints have for them."""

from dataclasses import dataclass

from ridgeline.models.common.family import Family
from ridgeline.models.common.model import Model
from ridgeline.ops.matrix import AdapterRows, LowRank, Matrix
from ridgeline.ops.op import Op


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix of a model: the op that multiplies with it, and its name there."""

    op: Op
    name: str
    matrix: Matrix

    def put(self, number: int, added: LowRank, rows: AdapterRows) -> None:
        """Put the addition of an adapter of this number beside it."""
        self.op.adapt(number, self.name, added, rows)

    def added(self, number: int) -> LowRank:
        """What was put there."""
        found = self.matrix.low_rank(number)
        assert found is not None
        return found


def targets_of(model: Model, family: Family) -> dict[str, Target]:
    """Every matrix that an adapter may add to: all but the head's and the experts'."""
    found: dict[str, Target] = {}
    for path, op in model.ops():
        for name, matrix in op.adaptable().items():
            found[family.checkpoint_name(model.module_name(f"{path}.{name}"))] = Target(op, name, matrix)
    return found
