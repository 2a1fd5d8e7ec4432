"""EXAONE 4.0 (arXiv:2507.11407): norms after attention and feed-forward layers, and of each head's queries and keys.

In large models three of four layers have a sliding window, and the fourth has no rotary positions.
"""

from ridgeline.core.models.common.blocks import Norms, PostNormBlock, head_norms
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, all_but_every, read_layer_types, read_window
from ridgeline.core.ops.attention import Attention


def read_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return each layer's window size, None for full attention; no layer has one if `sliding_window` is null."""
    window = read_window(fields, UNSTATED_WINDOW)
    if fields.has("layer_types") or window is None:
        fields.ignore("sliding_window_pattern")
        is_local = read_layer_types(fields) or (False,) * fields.layers
    else:
        is_local = all_but_every(fields, 4)
    return tuple(window if each else None for each in is_local)


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of an EXAONE 4.0 config."""
    fields.require("use_qk_norm", True)
    d = read_dimensions(fields, storage)
    rope, windows, norms = read_rope(fields, d.head_dim), read_windows(fields), Norms.rms(d)
    hybrid = read_window(fields, UNSTATED_WINDOW) is not None

    def block(layer: int) -> PostNormBlock:
        own = None if hybrid and windows[layer] is None else rope
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=own)
        attention = SelfAttention(d, attend, d.qkv(), head_norms=head_norms(d))
        return PostNormBlock(attention, GatedMLP(d, d.gate_up()), first=layer == 0, norms=norms)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


FAMILY = Family("Exaone4ForCausalLM", "exaone4", build)
