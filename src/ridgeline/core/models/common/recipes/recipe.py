"""Recipe: the storage format of each matrix of a model."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.core.models.common.model import Model, WeightChoice
from ridgeline.core.models.common.recipes.llama_cpp import MIXES, mix
from ridgeline.core.ops.number_formats import WEIGHT_FORMATS, KVFormat, WeightFormat
from ridgeline.core.ops.weight_slot import WeightSlotKind

BLOCKS: frozenset[WeightSlotKind] = frozenset({"matrix", "expert"})
"""The kinds of weights that quantisers convert: matrices of blocks, without embedding, head and routers."""
LINEAR: frozenset[WeightSlotKind] = frozenset({"matrix", "expert", "head"})
"""The kinds of weights that are matrices of transformer blocks, or the head."""

INPUT_SCALES = (r".*\.(input|output|activation)_(scale|zero_point)", r".*\.input_scale_ub", r".*\.(k|v|kv)_scale")
"""Patterns of the scales of activations, and of keys and values, for values that stay in the model's dtype."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choice of storage formats for a model's matrices and for its keys and values."""

    name: str
    """The name of a quantisation recipe that users see; "" if everything is in the model's dtype."""
    bits: int | None
    """The bits per weight, to rank recipes by width; None in the model's dtype."""
    choice: Callable[[Model], WeightChoice]
    """The function that returns, for a model, the function that chooses the format of each weight."""
    kv: KVFormat | None = None
    """The format of cached keys and values; None for the model's dtype."""
    unread: tuple[str, ...] = ()
    """The keys of a config's quantisation section that no code has read."""
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of checkpoint tensors that a model in this recipe does not load."""
    listed: tuple[str, ...] = ()
    """The modules that a config lists one by one with a format; the model must have all of them."""


def stored_in(
    stored: WeightFormat,
    kinds: frozenset[WeightSlotKind] = BLOCKS,
    kept: Callable[[str], bool] = lambda _: False,
) -> WeightChoice:
    """Return a choice of one format for all weights of these kinds, except those whose name `kept` accepts."""
    return lambda place: stored if place.kind in kinds and not place.is_named(kept) else None


def uniform(stored: WeightFormat) -> Recipe:
    """Return the recipe that stores the matrices of the blocks in one format."""
    return Recipe(stored.name, stored.bits, lambda _: stored_in(stored))


WITH_HEAD = "+head"
"""The suffix of a weight format's name that extends it to the embedding and the head."""


PLAIN = Recipe("", None, lambda _: lambda _: None)
"""The recipe that stores everything in the model's dtype."""


def recipe_names() -> tuple[str, ...]:
    """Return the names of weight formats and mixes that `recipe_named` accepts."""
    return (*(known.name for known in WEIGHT_FORMATS), *MIXES)


def recipe_named(name: str) -> Recipe:
    """Return the quantisation recipe of this name.

    A weight format applies to the matrices of the blocks, and with `+head` to the embedding and the head too, as
    `int8+head`. A mix of llama.cpp chooses itself which matrices it quantises.

    Raises:
        ValueError: If there is no such recipe; the message lists the names.
    """
    if name in MIXES:
        return Recipe(name, MIXES[name].base.bits, lambda model: mix(name, model))
    stored = next((known for known in WEIGHT_FORMATS if known.name == name.removesuffix(WITH_HEAD)), None)
    if stored is None:
        names = ", ".join(recipe_names())
        raise ValueError(
            f"weights is {name!r}, an unknown format; use one of {names}, optionally followed by {WITH_HEAD}"
        )
    if name == stored.name:
        return uniform(stored)
    return Recipe(name, stored.bits, lambda _: stored_in(stored, LINEAR | {"embedding"}))


def runnable_format_names() -> tuple[str, ...]:
    """Return the weight formats to which a plain checkpoint can be quantised while it is loaded."""
    return tuple(known.name for known in WEIGHT_FORMATS if known.code)
