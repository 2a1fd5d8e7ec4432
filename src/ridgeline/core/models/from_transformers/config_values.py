"""The refusal of numbers in a config.json that no model has, before a config class of transformers reads them."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.models.common.fields import MAX_CONTEXT, MAX_LAYERS, Fields

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

FLOAT_TAG = "__float__"
"""The key by which transformers writes a number that JSON lacks: infinity is {"__float__": "Infinity"}."""

_LAYERS = re.compile(r"(.*_)?(n_)?(layers?|blocks?|depth)")  # names of integers that count layers
_LARGE = re.compile(r".*(theta|base)|total_size")  # names of numbers that may be large
_POSITIVE = re.compile(r".*_eps|(.*_)?epsilon|factor")  # names of numbers that are above 0
# Names of numbers that are not below 0. A rotary base of 0 stands for a layer without a rotary embedding.
_NOT_NEGATIVE = re.compile(r".*(intermediate_size|_experts|_heads|_rank|_dim|theta)")
_UNLIMITED = re.compile(r".*_limit")  # names of bounds, which may be infinite
_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
"""The common names of sizes that are at least 1, which some config classes call otherwise."""
_MAX_SHOWN = 40  # characters of a value in an error message


def refuse_numbers(fields: Fields) -> None:
    """Raise ModelRefused for numbers of a config, at any depth, that no model has.

    Config classes would make lists of large integers, and classes would compute with NaN.
    """
    pending: list[tuple[str, Any]] = [("", fields.values)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, Mapping) and value.keys() != {FLOAT_TAG}:
            pending += [(f"{path}.{name}" if path else name, inner) for name, inner in reversed(list(value.items()))]
        elif isinstance(value, list):
            pending += [(f"{path}[{place}]", inner) for place, inner in reversed(list(enumerate(value)))]
        else:
            _refuse_number(fields, path, value)


def _refuse_number(fields: Fields, path: str, value: Any) -> None:
    """Raise ModelRefused for a number that no model has in the place in a config that a path leads to."""
    name = path.rpartition(".")[2].partition("[")[0]
    if isinstance(value, Mapping):
        try:
            value = float(value[FLOAT_TAG])
        except (TypeError, ValueError):
            raise fields.refuse(f"{path} is {_shown(value)}; it must be a number") from None
    if isinstance(value, float) and not math.isfinite(value) and not (value > 0 and _UNLIMITED.fullmatch(name)):
        raise fields.refuse(f"{path} is {_shown(value)}; it must be a finite number")
    if isinstance(value, int | float) and value <= 0 and _POSITIVE.fullmatch(name):
        raise fields.refuse(f"{path} is {_shown(value)}; it must be a number above 0")
    if isinstance(value, int | float) and value < 0 and _NOT_NEGATIVE.fullmatch(name):
        raise fields.refuse(f"{path} is {_shown(value)}; it must not be negative")
    if isinstance(value, int) and not _LARGE.fullmatch(name):
        most = MAX_LAYERS if _LAYERS.fullmatch(name) else MAX_CONTEXT
        if value > most:
            raise fields.refuse(f"{path} is {_shown(value)}; it must be an integer up to {most}")


def refuse_sizes(
    fields: Fields, values: Mapping[str, Any], config_class: "type[PreTrainedConfig]", section: str = ""
) -> None:
    """Raise ModelRefused for sizes that are no integers above 0, and for heads that KV heads cannot divide.

    Args:
        fields: The config.
        values: The config, or the section that describes the text model.
        config_class: The config class that reads the values, which may have names of its own for sizes.
        section: The section's name in messages, with a dot.
    """
    own_names = getattr(config_class, "attribute_map", {})
    for size in _SIZES:
        for name in dict.fromkeys((size, own_names.get(size, size))):
            value = values.get(name)
            if value is None or isinstance(value, list):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise fields.refuse(f"{section}{name} is {_shown(value)}; it must be an integer above 0")
    heads, kv_heads = (values.get(own_names.get(name, name)) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise fields.refuse(
            f"{section}num_attention_heads is {heads}; it must be a multiple of the {kv_heads} KV heads"
        )


def _shown(value: object) -> str:
    """Return a value as one line of an error message, shortened if it is long."""
    return repr(value)[:_MAX_SHOWN]
