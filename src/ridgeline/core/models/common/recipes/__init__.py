"""Recipes: the formats in which a model's weights and KV cache are stored, from an option, a config or llama.cpp.

`recipe.py` is the contract. `config.py` reads a config's `quantization_config`; `compressed_tensors.py` and
`modelopt.py` read those of two tools that state more; `module_names.py` reads their lists of modules. `llama_cpp.py`
has the mixes of types that llama.cpp writes to GGUF files. `perplexity.py` has the quality that plain weights lose in
each format to which they can be quantised.
"""

from ridgeline.core.models.common.recipes.config import SECTIONS, method_of, quantised_recipe, read_recipe
from ridgeline.core.models.common.recipes.perplexity import quality_warning
from ridgeline.core.models.common.recipes.recipe import (
    PLAIN,
    WITH_HEAD,
    Recipe,
    recipe_named,
    recipe_names,
    runnable_format_names,
    uniform,
)

__all__ = [
    "PLAIN",
    "SECTIONS",
    "WITH_HEAD",
    "Recipe",
    "method_of",
    "quality_warning",
    "quantised_recipe",
    "read_recipe",
    "recipe_named",
    "recipe_names",
    "runnable_format_names",
    "uniform",
]
