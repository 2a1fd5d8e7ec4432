"""Which layers see a sliding window, as configs say it: one size for all, a list of layers, or a pattern."""

from collections.abc import Mapping

from ridgeline.core.models.common.fields import Fields

UNSTATED_WINDOW = 4096  # what transformers takes where `sliding_window` is not null but absent
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def read_window(fields: Fields, unstated: int | None = None) -> int | None:
    """`sliding_window`: null for none, `unstated` where the config does not have the field."""
    if fields.has("sliding_window"):
        return fields.count("sliding_window")
    return None if "sliding_window" in fields.values else unstated


def read_layer_types(fields: Fields, types: Mapping[str, bool] = LAYER_TYPES) -> tuple[bool, ...] | None:
    """Whether each layer has a window, from `layer_types`; None where the config does not list them. types: what a
    layer may be, and whether it has one, or whatever else tells a family's two sorts of layers apart.
    """
    kinds, layers = fields.value("layer_types"), fields.layers
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in types for kind in kinds):
        raise fields.refuse(f"layer_types must name {layers} layers, each one of {', '.join(types)}")
    return tuple(types[kind] for kind in kinds)


def all_but_every(fields: Fields, unstated: int) -> tuple[bool, ...]:
    """Whether each layer has a window: from `layer_types`, else all but every n-th. unstated: that n where neither
    `sliding_window_pattern` nor `_sliding_window_pattern`, as transformers saves it, says it.
    """
    every = unstated
    for name in ("_sliding_window_pattern", "sliding_window_pattern"):
        if fields.has(name) and not fields.has("layer_types"):
            every = fields.count(name)
    listed = read_layer_types(fields)
    return listed or tuple((layer + 1) % every != 0 for layer in range(fields.layers))


def upper_windows(fields: Fields) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, else `sliding_window` from layer `max_window_layers` on."""
    window, layers = read_window(fields, UNSTATED_WINDOW), fields.layers
    fields.ignore("max_window_layers")  # beside `layer_types`, or without windows
    listed = read_layer_types(fields)
    if not fields.flag("use_sliding_window", False) or window is None:
        return (None,) * layers
    if listed is None:
        first = fields.natural("max_window_layers")
        listed = tuple(layer >= first for layer in range(layers))
    return tuple(window if has else None for has in listed)
