"""Which experts each token was routed to, with what weight, and how the load fell."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ridgeline.core.models.common.parameter_breakdown import layer_of
from ridgeline.core.ops.experts import Experts
from ridgeline.insight.trace.capture import CapturedCall


@dataclass(frozen=True, slots=True)
class RoutedLayer:
    """One mixture. picked[position] and weights[position]: the experts of each token, the heaviest first.

    load[expert]: how many tokens each expert got. expected: distinct experts that a balanced router would hit.
    """

    layer: int
    picked: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    load: tuple[int, ...]
    expected: float

    @property
    def hit(self) -> int:
        """Distinct experts that some token picked."""
        return sum(1 for tokens in self.load if tokens)

    @property
    def imbalance(self) -> float:
        """The load of the busiest expert over the mean load; 1 is perfect balance."""
        return max(self.load) * len(self.load) / sum(self.load)


@dataclass(frozen=True, slots=True)
class Routing:
    """The mixtures of a model, for all tokens of a sequence; `position` is the one that was asked about."""

    position: int
    layers: tuple[RoutedLayer, ...]


def routing(calls: Sequence[CapturedCall[Experts]], position: int) -> Routing:
    """How the tokens of a pass were routed. Raises ValueError for a model without experts."""
    if not calls:
        raise ValueError("this model has no experts: it is dense; leave out --experts")
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
