"""The expert routing of each token in mixture-of-experts layers, and the resulting load of the experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ridgeline.core.models.common.parameter_breakdown import layer_of
from ridgeline.core.ops.experts import Experts
from ridgeline.insight.trace.capture import CapturedCall


@dataclass(frozen=True, slots=True)
class RoutedLayer:
    """The routing of one mixture-of-experts layer."""

    layer: int
    picked: tuple[tuple[int, ...], ...]
    """`picked[position]` holds the experts of each token, highest selection score of the router first."""
    weights: tuple[tuple[float, ...], ...]
    """The router weights of each token's experts."""
    load: tuple[int, ...]
    """The number of tokens that each expert processed."""
    expected: float
    """The number of distinct experts that a balanced router would select on average."""

    @property
    def hit(self) -> int:
        """The number of distinct experts that at least one token selected."""
        return sum(1 for tokens in self.load if tokens)

    @property
    def imbalance(self) -> float:
        """The load of the busiest expert divided by the mean load; 1 is perfect balance."""
        return max(self.load) * len(self.load) / sum(self.load)


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts that process each token of a sequence, in every mixture-of-experts layer."""

    position: int
    """The position of the token that the trace shows in detail."""
    layers: tuple[RoutedLayer, ...]


def routing(calls: Sequence[CapturedCall[Experts]], position: int) -> Routing:
    """Return how the tokens of a forward pass were routed.

    Raises:
        ValueError: If the model has no experts.
    """
    if not calls:
        raise ValueError("this model is dense and has no experts: leave out --experts")
    layers = []
    for call in calls:
        op = call.op
        _, weights_TK, picked_TK, *_ = call.inputs
        layer = layer_of(call.path)
        assert layer is not None
        load = torch.bincount(picked_TK.flatten(), minlength=op.count)
        layers.append(
            RoutedLayer(
                layer,
                tuple(tuple(ids) for ids in picked_TK.tolist()),
                tuple(tuple(shares) for shares in weights_TK.tolist()),
                tuple(load.tolist()),
                op.touched(len(picked_TK)),
            )
        )
    return Routing(position, tuple(layers))
