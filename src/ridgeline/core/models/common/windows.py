"""The layers with a sliding window, as configs state them: one size for all, a list of layers, or a pattern."""

from collections.abc import Mapping

from ridgeline.core.models.common.fields import Fields

UNSTATED_WINDOW = 4096  # the default of transformers if `sliding_window` is absent, not null
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
"""The entries of `layer_types` in configs, and whether a layer of that type has a sliding window."""


def read_window(fields: Fields, unstated: int | None = None) -> int | None:
    """Read `sliding_window` from a config: None if it is null, `unstated` if the field is absent."""
    if fields.has("sliding_window"):
        return fields.count("sliding_window")
    return None if "sliding_window" in fields.values else unstated


def read_layer_types(fields: Fields, types: Mapping[str, bool] = LAYER_TYPES) -> tuple[bool, ...] | None:
    """Read for each layer whether it has a sliding window, from `layer_types`; None if that is absent.

    `types` maps the entry of a layer to the result. It may also distinguish two other kinds of layers of a family.
    """
    kinds, layers = fields.value("layer_types"), fields.layers
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in types for kind in kinds):
        raise fields.refuse(f"layer_types must have {layers} entries, each one of {', '.join(types)}")
    return tuple(types[kind] for kind in kinds)


def all_but_every(fields: Fields, unstated: int) -> tuple[bool, ...]:
    """Return for each layer whether it has a sliding window: from `layer_types`, else all but every n-th.

    `unstated` is n if the config has neither `sliding_window_pattern` nor `_sliding_window_pattern`, which transformers
    saves.
    """
    every = unstated
    for name in ("_sliding_window_pattern", "sliding_window_pattern"):
        if fields.has(name) and not fields.has("layer_types"):
            every = fields.count(name)
    listed = read_layer_types(fields)
    return listed or tuple((layer + 1) % every != 0 for layer in range(fields.layers))


def upper_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return each layer's window size, None for full attention, as Qwen2 configs state it.

    It follows `layer_types`, else it is `sliding_window` from layer `max_window_layers` on.
    """
    window, layers = read_window(fields, UNSTATED_WINDOW), fields.layers
    fields.ignore("max_window_layers")  # unused next to `layer_types`, or without windows
    listed = read_layer_types(fields)
    if not fields.flag("use_sliding_window", False) or window is None:
        return (None,) * layers
    if listed is None:
        first = fields.natural("max_window_layers")
        listed = tuple(layer >= first for layer in range(layers))
    return tuple(window if has else None for has in listed)
