"""Gemma 2 (arXiv:2408.00118): windows on every second layer, a norm before and after each half of a block, soft caps
on attention's scores and on the logits, and embeddings that are scaled."""

import math

from torch import Tensor, nn

from ridgeline.models.decoder import Decoder, GatedMLP, SelfAttention, Trunk, add_norm
from ridgeline.models.dimensions import Dimensions
from ridgeline.models.fields import Fields
from ridgeline.models.llama import read_activation, read_dimensions
from ridgeline.models.mistral import UNSTATED_WINDOW, read_window
from ridgeline.models.qwen2 import read_layer_types
from ridgeline.models.rope import read_rope
from ridgeline.models.storage import Storage
from ridgeline.ops.attention import Attention, KVContext
from ridgeline.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.ops.rotary import Angles

UNSTATED_HEAD_DIM = 256  # what transformers takes, and for `query_pre_attn_scalar` too


class Block(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(feed-forward(norm(x))); the second sum is left to the norm that
    follows."""

    def __init__(self, d: Dimensions, attention: SelfAttention, feed_forward: nn.Module, *, first: bool) -> None:
        """first: whether the block is the first, to which nothing is to be added."""
        super().__init__()
        self.input_layernorm = (RMSNorm if first else AddRMSNorm)(d.hidden, d.eps, d.dtype, from_one=True)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(d.hidden, d.eps, d.dtype, from_one=True)
        self.pre_feedforward_layernorm = AddRMSNorm(d.hidden, d.eps, d.dtype, from_one=True)
        self.mlp = feed_forward
        self.post_feedforward_layernorm = RMSNorm(d.hidden, d.eps, d.dtype, from_one=True)

    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """As decoder.Block's."""
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        y_TD = self.post_attention_layernorm(self.self_attn(normed_TD, angles, kv))
        x_TD, normed_TD = self.pre_feedforward_layernorm(x_TD, y_TD)
        return x_TD, self.post_feedforward_layernorm(self.mlp(normed_TD))


def read_softcap(fields: Fields, name: str, unstated: float) -> float | None:
    """A soft cap: null for none, `unstated` where the config does not have the field."""
    if fields.has(name):
        return fields.positive(name)
    return None if name in fields.values else unstated


def alternating_windows(fields: Fields) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, else on layers 0, 2, 4, ..."""
    window = read_window(fields, UNSTATED_WINDOW)
    listed = read_layer_types(fields) or tuple(layer % 2 == 0 for layer in range(fields.layers))
    return tuple(window if has else None for has in listed)


def build(fields: Fields, storage: Storage) -> Decoder:
    """Gemma 2 of every size."""
    fields.passed_over("hidden_act", "sliding_window_size")  # releases say both again under the names that are read
    head_dim = fields.count("head_dim", UNSTATED_HEAD_DIM)
    activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    d = read_dimensions(fields, storage, head_dim=head_dim, activation=activation)
    rope, windows, bias = read_rope(fields, head_dim), alternating_windows(fields), fields.flag("attention_bias", False)
    scale = 1 / math.sqrt(fields.positive("query_pre_attn_scalar", UNSTATED_HEAD_DIM))
    softcap = read_softcap(fields, "attn_logit_softcapping", 50.0)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=rope, scale=scale, softcap=softcap)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        return Block(d, attention, GatedMLP(d, d.gate_up()), first=layer == 0)

    blocks, norm = [block(layer) for layer in range(d.layers)], AddRMSNorm(d.hidden, d.eps, d.dtype, from_one=True)
    trunk = Trunk(d, rope, blocks, norm=norm, embedding_scale=math.sqrt(d.hidden))
    tied, logit_cap = fields.flag("tie_word_embeddings", True), read_softcap(fields, "final_logit_softcapping", 30.0)
    return Decoder(d, trunk, tied=tied, softcap=logit_cap)
