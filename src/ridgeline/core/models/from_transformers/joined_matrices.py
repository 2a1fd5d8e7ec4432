"""Matrices of a transformers class that multiply the same rows, joined so that one kernel call computes all products.

Shapes: T rows of a step, I inputs, O outputs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.class_ops import ClassLinear
from ridgeline.core.ops.linear import Projections
from ridgeline.core.ops.matrix import MatrixSpec


class JoinedMatrix(nn.Module):
    """A matrix in the place of a class's, whose products a joined op computes together with those of its siblings."""

    def __init__(self, joined: "JoinedMatrices", index: int) -> None:
        super().__init__()
        self._joined = (joined,)  # in a tuple, as no submodule: the class's module contains it
        self._index = index

    @property
    def weight(self) -> Tensor:
        """The matrix [outputs, inputs], whose dtype and device some classes read."""
        return self._joined[0].matrices[self._index].weight  # type: ignore[return-value]

    @override
    def forward(self, x_xI: Tensor) -> Tensor:
        """Return the product of rows of any leading shape with this matrix."""
        return self._joined[0].product(x_xI, self._index)


class JoinedMatrices(Projections):
    """Matrices of a class that multiply the same rows one after the other, such as queries, keys and values.

    The first call of a step computes all products; the other calls take theirs.
    """

    def __init__(self, specs: Mapping[str, MatrixSpec]) -> None:
        super().__init__(specs)
        self._rows: Tensor | None = None
        self._products: dict[int, Tensor] = {}

    def product(self, x_xI: Tensor, index: int) -> Tensor:
        """Return the product of rows with the matrix of an index, from the last call's results if it had these rows."""
        if self._rows is not x_xI or index not in self._products:
            self._rows, self._products = x_xI, dict(enumerate(self(x_xI.reshape(-1, x_xI.shape[-1]))))
        product_TO = self._products.pop(index)
        if not self._products:
            self._rows = None
        return product_TO.view(*x_xI.shape[:-1], product_TO.shape[-1])


@contextmanager
def joined_matrices(model: nn.Module) -> Iterator[None]:
    """Join matrices of a class's modules that multiply the same rows in the forward pass inside the context."""
    matrices = [module for module in model.modules() if isinstance(module, ClassLinear)]
    for matrix in matrices:
        matrix.calls = []
    yield
    for parent in list(model.modules()):
        for names in _same_rows(parent):
            joined = JoinedMatrices({name: getattr(parent, name).matrix.spec for name in names})
            for index, name in enumerate(names):
                setattr(parent, name, JoinedMatrix(joined, index))
            parent.add_module("+".join(names), joined)
    for matrix in matrices:
        matrix.calls = None


def _same_rows(parent: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of a module's matrices, group by group, that multiply the same rows once in a forward pass."""
    groups: dict[int, list[str]] = {}
    for name, child in parent.named_children():
        if isinstance(child, ClassLinear) and child.calls is not None and len(child.calls) == 1:
            groups.setdefault(id(child.calls[0]), []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]
