"""Qwen2 and Qwen2.5 (arXiv:2407.10671): Llama with biases on q, k and v, and a window on the upper layers if asked."""

from ridgeline.models.blocks import Block
from ridgeline.models.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.models.fields import Fields
from ridgeline.models.llama import decoder, read_dimensions
from ridgeline.models.rope import read_rope
from ridgeline.models.storage import Storage
from ridgeline.models.windows import UNSTATED_WINDOW, read_layer_types, read_window
from ridgeline.ops.attention import Attention


def upper_windows(fields: Fields) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, else `sliding_window` from layer `max_window_layers` on."""
    window, layers = read_window(fields, UNSTATED_WINDOW), fields.layers
    fields.passed_over("max_window_layers")  # beside `layer_types`, or without windows
    listed = read_layer_types(fields)
    if not fields.flag("use_sliding_window", False) or window is None:
        return (None,) * layers
    if listed is None:
        first = fields.natural("max_window_layers")
        listed = tuple(layer >= first for layer in range(layers))
    return tuple(window if has else None for has in listed)


def build(fields: Fields, storage: Storage) -> Decoder:
    """Qwen2 and Qwen2.5 of every size."""
    d, windows = read_dimensions(fields, storage), upper_windows(fields)
    rope = read_rope(fields, d.head_dim)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=rope)
        return Block(d, SelfAttention(d, attend, d.qkv(bias=True)), GatedMLP(d, d.gate_up()), first=layer == 0)

    return decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])
