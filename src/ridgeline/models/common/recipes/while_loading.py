"""The recipe of plain weights that are quantised while they are loaded."""

from ridgeline.models.common.fields import Fields
from ridgeline.models.common.recipes.config import read_recipe
from ridgeline.models.common.recipes.recipe import WITH_HEAD, Recipe, recipe_named, recipe_names, running_names
from ridgeline.ops.formats import FORMATS, format_of


def quantised_recipe(weights: str, fields: Fields) -> Recipe:
    """The recipe of plain weights that are quantised here; none for the format that they are in. Raises ModelRefused
    for weights that are quantised already, ValueError for a format that they are not quantised to."""
    stated = read_recipe(fields)
    if stated.name:
        raise fields.refuse(
            f"its weights are stored as {stated.name} already, and are quantised once; leave --weights {weights} out, "
            "or give the unquantised checkpoint"
        )
    plain = next((known for known in FORMATS if known.is_called(weights)), None)
    if plain is not None and plain.dtype == fields.dtype:
        return stated
    if plain is not None:
        raise ValueError(
            f"--weights is {weights!r}, the checkpoint's are in {format_of(fields.dtype).name} and are never converted "
            f"to another full format; leave it out, or give one of {', '.join(running_names())}"
        )
    bare, running = weights.removesuffix(WITH_HEAD), ", ".join(running_names())
    if bare not in recipe_names():
        raise ValueError(f"unknown weight format {weights!r}; use one of {running}; a format may end in {WITH_HEAD}")
    recipe = recipe_named(weights)
    if bare not in running_names():
        raise ValueError(
            f"--weights is {weights!r}, which is priced (ridgeline plan, trace --priced) and does not run yet; give "
            f"one of {running}"
        )
    return recipe
