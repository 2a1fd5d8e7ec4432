"""The types of a GGUF file's matrices, each as the file has it (`checkpoint/gguf_config.py` writes this section)."""

from ridgeline.models.common.fields import Fields
from ridgeline.models.common.recipes.recipe import Recipe
from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.matrix.gguf import BLOCKS
from ridgeline.ops.place import Place


def read(section: Fields) -> Recipe:
    """The recipe of types by the names of modules; what is not named is in the model's dtype. Raises ModelRefused for
    a type that is not read."""
    listed = section.section("types")
    by_name: dict[str, WeightFormat] = {}
    for module in listed.values:
        kind = listed.text(module)
        if kind not in BLOCKS:
            raise listed.refuse(f"{module} is stored in {kind!r}, which is not read; {', '.join(BLOCKS)} are")
        by_name[module] = BLOCKS[kind]
    if not by_name:
        raise section.refuse("types is empty; leave the section out where nothing is quantised")
    formats = list(by_name.values())
    commonest = max(dict.fromkeys(formats), key=formats.count)
    mixed = " mixed" * (len(set(formats)) > 1)

    def choose(place: Place) -> WeightFormat | None:
        return by_name.get(place.name)

    return Recipe(f"gguf {commonest.name}{mixed}", commonest.bits, lambda _: choose)
