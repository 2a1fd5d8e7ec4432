"""SmolLM3 (Hugging Face, 2025): Llama without rotary positions in every fourth layer (NoPE, arXiv:2501.18795)."""

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.rope import RopeDefaults, read_rope, read_rotary_layers
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_layer_types, read_window
from ridgeline.core.ops.attention import Attention


def read_windows(fields: Fields, turned: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Return each layer's window size, None for full attention; none has one unless `use_sliding_window` is set.

    The layers with a window are those in `layer_types`, else those without rotary positions.
    """
    window, listed = read_window(fields), read_layer_types(fields)
    fields.ignore("max_window_layers")  # a field of Qwen2 that SmolLM3's configs inherited
    if not fields.flag("use_sliding_window", False) or window is None:
        return (None,) * fields.layers
    return tuple(window if has else None for has in listed or (not each for each in turned))


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a SmolLM3 config."""
    heads = fields.count("num_attention_heads")
    kv_heads = heads if "num_key_value_heads" in fields.values and not fields.has("num_key_value_heads") else 4
    d = read_dimensions(fields, storage, kv_heads=fields.count("num_key_value_heads", kv_heads))
    rope, turned = read_rope(fields, d.head_dim, RopeDefaults(2_000_000.0)), read_rotary_layers(fields)
    windows = read_windows(fields, turned)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)

    def block(layer: int) -> Block:
        own_rope = rope if turned[layer] else None
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=own_rope)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        return Block(d, attention, GatedMLP(d, d.gate_up(bias=mlp_bias), bias=mlp_bias), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)], tied_by_default=True)


FAMILY = Family("SmolLM3ForCausalLM", "smollm3", build)
