"""The MLP between widths that multimodal models call an aligner: matrices with an activation between each two."""

import torch
from torch import Tensor, nn

from ridgeline.ops.activation import ActivatedProjections
from ridgeline.ops.linear import Linear
from ridgeline.ops.matrix import MatrixSpec


class Aligner(nn.Module):
    """`fc1`, then `hidden_layers`, so many matrices in all; each has a bias, and what each but the last gives passes an
    activation."""

    part = "feed-forward"
    sees = False  # whether it is of what reads images, for the bill

    def __init__(self, inputs: int, outputs: int, depth: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        first, other = (MatrixSpec(width, outputs, dtype, bias=True) for width in (inputs, outputs))
        if depth == 1:
            self.fc1: nn.Module = Linear(first)
        else:
            self.activated = ActivatedProjections({"fc1": first}, activation)
        self.hidden_layers = nn.ModuleDict()
        for layer in map(str, range(depth - 1)):
            if layer == str(depth - 2):
                self.hidden_layers[layer] = Linear(other)
            else:  # which is unnamed: its matrix has the name of the layer
                self.hidden_layers[f"activated_{layer}"] = ActivatedProjections({layer: other}, activation)

    def forward(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]."""
        first = self.activated if self.hidden_layers else self.fc1
        x_TO: Tensor = first(x_TI)
        for layer in self.hidden_layers.values():
            x_TO = layer(x_TO)
        return x_TO
