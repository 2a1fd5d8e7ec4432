"""Our ops in the places of a transformers class's modules, called as the class calls these.

A class computes on [1, rows, ...] and on other leading shapes, and ops on [rows, ...]; these ops convert.

Shapes: T rows of a step, D hidden, F width of an MLP, I inputs, O outputs, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.models.from_transformers.rank_collectives import JoinsRanks
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.linear import Linear, LMHead
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import RMSNorm


class ReadableMatrix(JoinsRanks, Linear):
    """A Linear op that is called with rows of any leading shape, and read by the names of `nn.Linear`."""

    @property
    def weight(self) -> Tensor:
        """The matrix [outputs, inputs], whose dtype and device some classes read."""
        return self.matrix.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        """The bias [outputs] that some classes read; None if there is none."""
        return getattr(self.matrix, "bias", None)

    @override
    def __call__(self, x_xI: Tensor) -> Tensor:
        if x_xI.shape[-1] != self.matrix.inputs:
            raise NotBridged("it gives a matrix of one device the rows of all devices")
        out_TO = self.joined(super().__call__(x_xI.reshape(-1, x_xI.shape[-1])))
        return out_TO.view(*x_xI.shape[:-1], out_TO.shape[-1])


class ClassLinear(ReadableMatrix):
    """A Linear op in the place of a class's `nn.Linear`."""

    calls: list[Tensor] | None = None
    """The rows of each call while `joined_matrices` watches; otherwise None."""

    @override
    def __call__(self, x_xI: Tensor) -> Tensor:
        if self.calls is not None:
            self.calls.append(x_xI)
        return super().__call__(x_xI)


class ClassHead(LMHead, ReadableMatrix):
    """An LM head in the place of a class's output projection."""


class ClassEmbedding(JoinsRanks, Embedding):
    """An Embedding op in the place of a class's `nn.Embedding`, called with ids of any shape."""

    @override
    def __call__(self, ids_x: Tensor) -> Tensor:
        return self.joined(super().__call__(ids_x.reshape(-1).contiguous())).view(*ids_x.shape, self.width)


class ClassRMSNorm(RMSNorm):
    """An RMSNorm op in the place of a class's norm, called with vectors of any leading shape."""

    @override
    def __call__(self, x_xD: Tensor) -> Tensor:
        if x_xD.shape[-1] != self.width:  # the vectors of all heads, of which each rank has a part
            raise NotBridged("it norms the vectors of all heads together")
        return super().__call__(x_xD.reshape(-1, x_xD.shape[-1])).view(x_xD.shape)

    def observe(self, inputs: tuple[Any, ...], output: Any, rows: int) -> None:
        """Record the number of vectors per token of a traced call."""
        self.per_token = inputs[0].numel() // (self.width * rows)


class ClassMLP(nn.Module):
    """A gated MLP in the place of a class's, down(act(gate(x)) * up(x)), with the checkpoint's names."""

    def __init__(self, specs: Mapping[str, MatrixSpec], activation: str, down: ReadableMatrix, name: str) -> None:
        """Create the MLP.

        Args:
            specs: The specs of gate and up by their names.
            activation: The activation, one of ACTIVATIONS.
            down: The op of the down projection.
            name: The checkpoint's name of the down projection.
        """
        super().__init__()
        self.activated = ActivatedProjections(specs, activation)
        self.down = name
        self.add_module(name, down)

    @override
    def forward(self, x_xI: Tensor) -> Tensor:
        """Return the MLP's output for rows of any leading shape."""
        y_TF = self.activated(x_xI.reshape(-1, x_xI.shape[-1]))
        return self._modules[self.down](y_TF).view(*x_xI.shape[:-1], -1)  # type: ignore[misc]
