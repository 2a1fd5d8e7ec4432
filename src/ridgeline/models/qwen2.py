"""Qwen2 and Qwen2.5 (arXiv:2407.10671): Llama with biases on q, k and v, and a window on the upper layers if asked."""

from ridgeline.models.decoder import Decoder
from ridgeline.models.fields import Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.mistral import UNSTATED_WINDOW, read_window
from ridgeline.models.storage import Storage

LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def upper_windows(fields: Fields) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, else `sliding_window` from layer `max_window_layers` on."""
    window, layers = read_window(fields, UNSTATED_WINDOW), fields.layers
    fields.passed_over("max_window_layers")  # beside `layer_types`, or without windows
    kinds = fields.value("layer_types")
    if not fields.flag("use_sliding_window", False) or window is None:
        return (None,) * layers
    if kinds is None:
        first = fields.natural("max_window_layers")
        return tuple(window if layer >= first else None for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in LAYER_TYPES for kind in kinds):
        raise fields.refuse(f"layer_types must name {layers} layers, each one of {', '.join(LAYER_TYPES)}")
    return tuple(window if LAYER_TYPES[kind] else None for kind in kinds)


def build(fields: Fields, storage: Storage) -> Decoder:
    """Qwen2 and Qwen2.5 of every size."""
    return Decoder(read_settings(fields, storage, windows=upper_windows(fields), qkv_bias=True))
