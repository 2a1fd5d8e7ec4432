"""The matrices of a model that an adapter may add to, by the names that checkpoints have for them."""

from dataclasses import dataclass

from ridgeline.models.family import Family
from ridgeline.models.model import Model
from ridgeline.ops.linear import Head, Multiplies, Projections
from ridgeline.ops.matrix import AdaptedMatrix, AdapterRows, LowRank, Matrix


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix of a model: the op that multiplies with it, and its name there."""

    op: Multiplies
    name: str
    matrix: Matrix

    def put(self, number: int, added: LowRank, rows: AdapterRows) -> None:
        """Put the addition of an adapter of this number beside it."""
        self.op.adapt(number, self.name, added, rows)

    def added(self, number: int) -> LowRank:
        """What was put there."""
        assert isinstance(self.matrix, AdaptedMatrix)
        found = self.matrix.low_rank(number)
        assert found is not None
        return found


def targets_of(model: Model, family: Family) -> dict[str, Target]:
    """Every matrix that an adapter may add to: all but the head's and the experts'."""
    found: dict[str, Target] = {}
    for path, op in model.ops():
        if not isinstance(op, Multiplies) or isinstance(op, Head):
            continue
        names = op.names if isinstance(op, Projections) else ("",)
        for name, matrix in zip(names, op.matrices, strict=True):
            module = model.module_name(f"{path}.{name}" if name else path)
            found[family.checkpoint_name(module)] = Target(op, name, matrix)
    return found
