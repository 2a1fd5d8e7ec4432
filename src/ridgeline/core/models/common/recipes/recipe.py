"""Recipe: in what format each of a model's matrices is stored."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.models.common.model import Model, WeightChoice
from ridgeline.core.models.common.recipes.llama_cpp import MIXES, mix
from ridgeline.core.ops.number_formats import WEIGHT_FORMATS, KVFormat, WeightFormat
from ridgeline.core.ops.weight_slot import WeightSlotKind

BLOCKS: frozenset[WeightSlotKind] = frozenset({"matrix", "expert"})
"""What quantisers convert: the matrices in the blocks, and not the embedding, the head and routers."""
LINEAR: frozenset[WeightSlotKind] = frozenset({"matrix", "expert", "head"})
"""Those and the head."""

INPUT_SCALES = (r".*\.(input|output|activation)_(scale|zero_point)", r".*\.input_scale_ub", r".*\.(k|v|kv)_scale")
"""Tensors for what products are given, which stays in the model's dtype, and for keys and values where they do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the matrices of a model are stored, and its keys and values.

    name: as it is said to people; "" where all is in the model's dtype. bits: of a number, as formats are ranked by
    width. choice: what chooses the format of each place in a model. kv: None for the model's dtype. unread: keys of a
    config's section that nobody has read. passed_over: patterns of tensors that the checkpoint has and nothing reads.
    listed: modules that the config names one by one, each with a format; all of them must be in the model.
    """

    name: str
    bits: int | None
    choice: Callable[[Model], WeightChoice]
    kv: KVFormat | None = None
    unread: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


def stored_in(
    stored: WeightFormat,
    kinds: frozenset[WeightSlotKind] = BLOCKS,
    kept: Callable[[str], bool] = lambda _: False,
) -> WeightChoice:
    """One format for all places of these kinds, but for those that are `kept` in the model's dtype, by their names."""
    return lambda place: stored if place.kind in kinds and not place.is_named(kept) else None


def uniform(stored: WeightFormat) -> Recipe:
    """One format for the matrices in the blocks."""
    return Recipe(stored.name, stored.bits, lambda _: stored_in(stored))


WITH_HEAD = "+head"
"""After the name of a weight format: the embedding and the head are in it too."""


PLAIN = Recipe("", None, lambda _: lambda _: None)
"""Everything in the model's dtype."""


def recipe_names() -> tuple[str, ...]:
    """The names that `recipe_named` takes."""
    return (*(known.name for known in WEIGHT_FORMATS), *MIXES)


def recipe_named(name: str) -> Recipe:
    """The recipe of this name: a weight format for the matrices in the blocks, `int8+head` for the embedding and the
    head too, or a mix of llama.cpp, which says itself what they are in. Raises ValueError with the names there are.
    """
    if name in MIXES:
        return Recipe(name, MIXES[name].base.bits, lambda model: mix(name, model))
    stored = next((known for known in WEIGHT_FORMATS if known.name == name.removesuffix(WITH_HEAD)), None)
    if stored is None:
        names = ", ".join(recipe_names())
        raise ValueError(f"unknown weight format {name!r}; use one of {names}; a format may end in {WITH_HEAD}")
    if name == stored.name:
        return uniform(stored)
    return Recipe(name, stored.bits, lambda _: stored_in(stored, LINEAR | {"embedding"}))


def running_names() -> tuple[str, ...]:
    """The formats that a plain checkpoint is quantised to while it is loaded."""
    return tuple(known.name for known in WEIGHT_FORMATS if known.code)
