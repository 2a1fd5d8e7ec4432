"""The parameter bill: where a model's parameters are."""

from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.op import Op

PARTS = ("embedding", "attention", "feed-forward", "norms", "head")
VISION = "vision"
"""A further part, of models that read images: the tower, and what brings its rows to the text's width."""


@dataclass(frozen=True, slots=True)
class ParameterBreakdown:
    """Parameters by part. A tied head is counted once, with the embedding.

    parameters: of the whole model by part, "vision" where there is such a part; layer: of one layer of the commonest
    sort.
    total: all of them. active: those that one token passes through (k experts of a mixture; the whole embedding).
    nbytes: as stored, scales included.
    """

    parameters: dict[str, int]
    layer: dict[str, int]
    total: int
    active: int
    nbytes: float


def bill(model: Model) -> ParameterBreakdown:
    """Count the parameters of a model, on meta or filled; of one rank's part of a divided one."""
    parts = dict.fromkeys((*PARTS, VISION), 0)
    layers: dict[tuple[str, int], dict[str, int]] = {}
    nbytes = 0.0
    for path, op in model.weighted_ops():
        count = op.parameter_count()
        part = part_of(model, path, op)
        parts[part] += count
        nbytes += op.stored_bytes()
        layer = _place(path)
        if layer is not None and part != VISION:
            layers.setdefault(layer, dict.fromkeys(PARTS, 0))[part] += count
    total = sum(parts.values())
    if not parts[VISION]:
        del parts[VISION]
    bills = list(layers.values())
    idle = sum(op.idle_parameters for _, op in model.ops())
    return ParameterBreakdown(parts, max(bills, key=bills.count), total, total - idle, nbytes)


def part_of(model: Model, path: str, op: Op) -> str:
    """Which of PARTS, or VISION, an op of a model belongs to; `path` is where it is."""
    if getattr(model.get_submodule(path.partition(".")[0]), "sees", False):
        return VISION
    while True:  # the op itself, or the nearest module above that says which part it is
        part = getattr(model.get_submodule(path), "part", "")
        if part:
            assert part in PARTS
            return str(part)
        assert path, f"{op} belongs to no part of the bill"
        path = path.rpartition(".")[0]


def layer_of(path: str) -> int | None:
    """The number of the layer that a path lies in, None outside the layers."""
    place = _place(path)
    return None if place is None else place[1]


def layers_of(model: Model) -> tuple[int, ...]:
    """How many layers each stack of a model has: an encoder-decoder's, then its decoder's."""
    places = {place for path, _ in model.ops() if (place := _place(path)) is not None}
    stacks = dict.fromkeys(stack for path, _ in model.ops() if (place := _place(path)) for stack in place[:1])
    return tuple(sum(place[0] == stack for place in places) for stack in stacks)


def _place(path: str) -> tuple[str, int] | None:
    """The list of layers that a path lies in, and the number there."""
    names = path.split(".")
    first = next((i for i, name in enumerate(names) if name.isdigit()), None)
    return None if first is None else (".".join(names[:first]), int(names[first]))
