"""Mistral 7B (arXiv:2310.06825) and Mixtral (arXiv:2401.04088): Llama with a sliding window where the config states
one; Mixtral's MLPs are mixtures of experts."""

from ridgeline.models.blocks import Block
from ridgeline.models.decoder import Decoder, GatedMLP, Mixture, SelfAttention
from ridgeline.models.fields import MOST_EXPERTS, Fields
from ridgeline.models.llama import decoder, read_dimensions
from ridgeline.models.rope import RopeDefaults, read_rope
from ridgeline.models.storage import Storage
from ridgeline.models.windows import UNSTATED_WINDOW, read_window
from ridgeline.ops.attention import Attention


def build(fields: Fields, storage: Storage) -> Decoder:
    """Mistral 7B and its descendants that keep the block."""
    d, window = read_dimensions(fields, storage), read_window(fields, UNSTATED_WINDOW)
    rope = read_rope(fields, d.head_dim)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        return Block(d, SelfAttention(d, attend, d.qkv()), GatedMLP(d, d.gate_up()), first=layer == 0)

    return decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


def build_mixture(fields: Fields, storage: Storage) -> Decoder:
    """Mixtral 8x7B and 8x22B; weights of the experts picked are always renormalised."""
    count, active = fields.count("num_local_experts", most=MOST_EXPERTS), fields.count("num_experts_per_tok")
    if active > count:
        raise fields.refuse(f"num_experts_per_tok {active} is more than num_local_experts {count}")
    d, window = read_dimensions(fields, storage), read_window(fields)
    rope = read_rope(fields, d.head_dim, RopeDefaults(1_000_000.0))

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        mixture = Mixture(d, count, active, d.width, renormalise=True, names=("w1", "w3", "w2"))  # gate, up, down
        return Block(d, SelfAttention(d, attend, d.qkv()), mixture, first=layer == 0)

    return decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])
