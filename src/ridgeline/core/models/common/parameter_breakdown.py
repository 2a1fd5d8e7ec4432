"""The parameter breakdown: the number of parameters in each part of a model."""

from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.op import Op

PARTS = ("embedding", "attention", "feed-forward", "norms", "head")
"""The names of a language model's parts by which its parameters are counted."""
VISION = "vision"
"""The name of an additional part in models that read images: vision tower and projection to the text's width."""


@dataclass(frozen=True, slots=True)
class ParameterBreakdown:
    """The number of parameters by part. A tied head counts once, in the embedding."""

    parameters: dict[str, int]
    """The parameters of a model by part, including "vision" if there is such a part."""
    layer: dict[str, int]
    """The parameters, by part, of one layer of the most common kind."""
    layers_alike: bool
    """Whether all layers have the same parameters by part. Some mixtures of experts begin with dense layers."""
    total: int
    """The number of all parameters of a model."""
    active: int
    """The number of parameters that one token uses: k experts of a mixture, and the whole embedding."""
    nbytes: float
    """The bytes of all parameters of a model as stored, scales included."""


def parameter_breakdown(model: Model) -> ParameterBreakdown:
    """Return the number of parameters by part of a model, on meta or with weights.

    For a model that is divided over ranks, it counts the parameters of one rank.
    """
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
    common = max(bills, key=bills.count)
    alike = all(each == common for each in bills)
    return ParameterBreakdown(parts, common, alike, total, total - idle, nbytes)


def part_of(model: Model, path: str, op: Op) -> str:
    """Return the part (one of PARTS or VISION) that the op at a path of a model counts towards."""
    if getattr(model.get_submodule(path.partition(".")[0]), "sees", False):
        return VISION
    while True:  # the op itself, or the nearest module around it that states its part
        part = getattr(model.get_submodule(path), "part", "")
        if part:
            assert part in PARTS
            return str(part)
        assert path, f"{op} belongs to no part of the parameter breakdown"
        path = path.rpartition(".")[0]


def layer_of(path: str) -> int | None:
    """Return the index of the layer that a module path lies in; None outside the layers."""
    place = _place(path)
    return None if place is None else place[1]


def layers_of(model: Model) -> tuple[int, ...]:
    """Return the number of layers of each stack: of the encoder, then the decoder, or of the only stack."""
    places = {place for path, _ in model.ops() if (place := _place(path)) is not None}
    stacks = dict.fromkeys(stack for path, _ in model.ops() if (place := _place(path)) for stack in place[:1])
    return tuple(sum(place[0] == stack for place in places) for stack in stacks)


def _place(path: str) -> tuple[str, int] | None:
    """Return the path of the layer list that a module path lies in, and the layer's index; None outside layers."""
    names = path.split(".")
    first = next((i for i, name in enumerate(names) if name.isdigit()), None)
    return None if first is None else (".".join(names[:first]), int(names[first]))
