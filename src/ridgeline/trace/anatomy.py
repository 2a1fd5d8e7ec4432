"""Where a model keeps what every family has: blocks, the last norm, the head. Found by what ops are, not by names."""

from torch import nn

from ridgeline.models.model import Model
from ridgeline.ops.linear import Head
from ridgeline.ops.op import Op


def layer_of(path: str) -> int | None:
    """The number of the layer that a path lies in, None outside the layers."""
    return next((int(part) for part in path.split(".") if part.isdigit()), None)


def blocks(model: Model) -> list[nn.Module]:
    """The layers of a model, in order."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and not isinstance(module, Op) and len(module) == len(model.kv_specs):
            return list(module)
    raise ValueError("this model has no list of layers to look into")


def final_norm(model: Model) -> Op:
    """The norm before the head."""
    for _, op in model.ops():
        if op.kind == "norm" and op.row_space == "logits":
            return op
    raise ValueError("this model has no norm before its head")


def head(model: Model) -> Head:
    """The projection to the vocabulary."""
    for _, op in model.ops():
        if isinstance(op, Head):
            return op
    raise ValueError("this model has no head")
