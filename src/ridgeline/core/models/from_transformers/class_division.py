"""The division of a transformers class over devices, as far as the code of the class allows."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import torch
from torch import nn

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_experts import ClassExpertMatrices
from ridgeline.core.models.from_transformers.not_bridged import NotBridged, summarise_error
from ridgeline.core.models.from_transformers.rank_config import ATTENTION, PARTS, RECURRENCE, rank_config
from ridgeline.core.models.from_transformers.rank_part import WHOLE_CLASS, RankPart, part_of
from ridgeline.core.ops.shard import Indivisible, Shard

DecoderT = TypeVar("DecoderT", bound=ClassDecoder)

# The parts that each rank holds whole, in the order in which divisions are tried. A class whose code cannot compute
# with a part of its heads can often still divide its MLPs.
_HELD_WHOLE: tuple[AbstractSet[str], ...] = (set(), {RECURRENCE}, {ATTENTION}, {ATTENTION, RECURRENCE}, set(PARTS))

Shapes = Mapping[str, torch.Size]
"""The shapes of the parameters of a class, by name."""


def shapes_of(module: nn.Module) -> Shapes:
    """Return the shapes of the parameters of a class's module, by name."""
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def build_part(
    config: Any,
    storage: StorageConfig,
    construct: Callable[[Any], Any],
    whole: Callable[[], Shapes],
    convert: Callable[[Any, RankPart], DecoderT],
) -> DecoderT:
    """Build the model of a rank's part of a class, of which as much is divided as the class's code can compute.

    Args:
        config: The config of the whole class.
        storage: The part of the model that this rank holds.
        construct: Returns the class's module on the meta device for a config.
        whole: Returns the shapes of the parameters of the whole class.
        convert: Returns the model of a module, of a part of the class.

    Raises:
        NotBridged: If the class cannot be constructed or traced.
        Indivisible: If heads or columns do not divide equally.
    """
    if storage.experts is not None:
        model = convert(construct(config), RankPart(experts=storage.experts))
        _refuse_own_experts(model)
        return model
    if storage.shard.size == 1:
        return convert(construct(config), WHOLE_CLASS)
    shapes = whole()
    first: NotBridged | None = None
    for parts in _divisions(config, storage.shard, construct, shapes):
        try:
            module = construct(_rank_config(config, storage.shard, parts))
            part = part_of(module, shapes, storage.shard)
            undivided = part.describe_undivided(module)
            model = convert(module, part)
        except NotBridged as error:
            first = first or error
        else:
            model.undivided = undivided
            return model
    assert first is not None
    raise first


def _refuse_own_experts(model: ClassDecoder) -> None:
    """Raise Indivisible if experts run the code of the class, which takes only whole experts or parts of all layers."""
    if any(isinstance(op, ClassExpertMatrices) for _, op in model.ops()):
        raise Indivisible(
            "its experts run the code of its class, which cannot be divided alone; leave out --enable-dp-attention"
        )


def _divisions(config: Any, shard: Shard, construct: Callable[[Any], Any], whole: Shapes) -> Iterator[AbstractSet[str]]:
    """Yield the sets of parts of a class that ranks may divide, from all to none."""
    divided = {part for part in PARTS if _divides(config, shard, part, construct, whole)}
    yield from dict.fromkeys(frozenset(divided - held) for held in _HELD_WHOLE)


def _divides(config: Any, shard: Shard, part: str, construct: Callable[[Any], Any], whole: Shapes) -> bool:
    """Return whether a class has smaller parameters if ranks divide one of PARTS.

    Without a smaller one, fewer heads would be larger heads: some classes compute the size of a head from their number.
    """
    try:
        module = construct(_rank_config(config, shard, {part}))
        return any(shape != whole.get(name) for name, shape in shapes_of(module).items())
    except NotBridged:  # it may need other parts to be divided too
        return True


def _rank_config(config: Any, shard: Shard, parts: AbstractSet[str]) -> Any:
    """Return the config of a rank.

    Raises:
        Indivisible: If heads or columns do not divide equally.
        NotBridged: If the config class refuses the sizes of a rank.
    """
    try:
        return rank_config(config, shard, parts)
    except Indivisible:
        raise
    except Exception as error:  # a config class may fail in any way
        raise NotBridged(f"its config has no part for each device ({summarise_error(error)})") from None
