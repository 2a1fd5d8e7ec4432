"""The parameter bill: where a model's parameters are."""

from dataclasses import dataclass

from torch import nn

from ridgeline.models.model import Model
from ridgeline.ops.embedding import Embedding
from ridgeline.ops.experts import Experts
from ridgeline.ops.linear import Head
from ridgeline.ops.norm import LayerNorm, RMSNorm

PARTS = ("embedding", "attention", "feed-forward", "norms", "head")


@dataclass(frozen=True, slots=True)
class Bill:
    """Parameters by part. A tied head is counted once, with the embedding.

    parameters: of the whole model by part; layer: of one layer of the commonest sort.
    total: all of them. active: those that one token passes through (k experts of a mixture; the whole embedding).
    nbytes: as stored.
    """

    parameters: dict[str, int]
    layer: dict[str, int]
    total: int
    active: int
    nbytes: int


def bill(model: Model) -> Bill:
    """Count the parameters of a model, on meta or filled."""
    parts = dict.fromkeys(PARTS, 0)
    layers: list[dict[str, int]] = []
    seen: set[int] = set()
    nbytes = 0
    for path, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            part = _part_of(model, path, module)
            parts[part] += parameter.numel()
            nbytes += parameter.nbytes
            index = next((int(name) for name in path.split(".") if name.isdigit()), None)
            if index is not None:
                while len(layers) <= index:
                    layers.append(dict.fromkeys(PARTS, 0))
                layers[index][part] += parameter.numel()
    total = sum(parts.values())
    commonest = max(layers, key=layers.count)
    return Bill(parts, commonest, total, total - _idle(model), nbytes)


def _part_of(model: Model, path: str, module: nn.Module) -> str:
    if isinstance(module, Head):
        return "head"
    if isinstance(module, Embedding):
        return "embedding"
    if isinstance(module, RMSNorm | LayerNorm):
        return "norms"
    while True:  # the nearest module above that says which part it is
        part = getattr(model.get_submodule(path), "part", None)
        if part is not None:
            assert part in PARTS
            return str(part)
        assert path, f"{module} belongs to no part of the bill"
        path = path.rpartition(".")[0]


def _idle(model: Model) -> int:
    """Parameters of experts that one token does not pass through."""
    mixtures = [module for module in model.modules() if isinstance(module, Experts)]
    return sum((m.count - m.active) * 3 * m.hidden * m.width for m in mixtures)
