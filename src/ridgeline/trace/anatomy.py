"""Where a model keeps what every family has: blocks and the last norm. Found by what ops are, not by names."""

from torch import nn

from ridgeline.models.bill import layers_of
from ridgeline.models.model import Model
from ridgeline.ops.norm import Norm
from ridgeline.ops.op import Op


def blocks(model: Model) -> list[nn.Module]:
    """The layers of a model, in order."""
    count = sum(layers_of(model))
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and not isinstance(module, Op) and len(module) == count:
            return list(module)
    raise ValueError("this model has no list of layers to look into")


def final_norm(model: Model) -> Norm:
    """The norm before the head: the last of all."""
    for _, op in reversed(model.ops()):
        if isinstance(op, Norm):
            return op
    raise ValueError("this model has no norm before its head")
