"""Llama 2, 3, 3.1 and 3.2 (arXiv:2307.09288, arXiv:2407.21783), and the reading of config.json that its kin share."""

from typing import Any

from ridgeline.models.decoder import Decoder
from ridgeline.models.fields import MOST_WIDTH, Fields
from ridgeline.models.rope import read_rope
from ridgeline.models.settings import DecoderSettings
from ridgeline.models.storage import Storage
from ridgeline.ops.activation import ACTIVATIONS


def read_settings(
    fields: Fields, storage: Storage, *, theta: float = 10_000.0, partial_rotary: bool = False, **own: Any
) -> DecoderSettings:
    """The settings that Llama's descendants spell alike; `own` are those that a family reads itself.

    theta: the rotary base of a config that states none. partial_rotary: whether a part of each head may be rotated.
    """
    heads = fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.refuse(f"hidden_size {hidden} does not divide into {heads} heads; state head_dim")
    head_dim = fields.count("head_dim", hidden // heads)
    kv_heads = own.pop("kv_heads", None) or fields.count("num_key_value_heads")
    if heads * head_dim > MOST_WIDTH:
        raise fields.refuse(f"num_attention_heads {heads} x head_dim {head_dim} is more than {MOST_WIDTH}")
    if heads % kv_heads:
        raise fields.refuse(f"{heads} attention heads do not divide over {kv_heads} KV heads")
    activation = fields.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise fields.refuse(f"hidden_act {activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    settings: dict[str, Any] = {
        "vocabulary": fields.count("vocab_size"),
        "context": fields.count("max_position_embeddings"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "width": fields.count("intermediate_size"),
        "activation": activation,
        "eps": fields.positive("rms_norm_eps"),
        "rope": read_rope(fields, head_dim, theta, partial=partial_rotary),
        "windows": (None,) * fields.layers,
        "mixtures": (None,) * fields.layers,
        "storage": storage,
        "tied": fields.flag("tie_word_embeddings", False),
    }
    return DecoderSettings(**(settings | own))


def build(fields: Fields, storage: Storage) -> Decoder:
    """Llama: grouped heads from Llama 2 70B on; one KV head a query head where the config does not say."""
    bias = fields.flag("attention_bias", False)
    kv_heads = fields.count("num_key_value_heads", fields.count("num_attention_heads"))
    own: dict[str, Any] = {
        "kv_heads": kv_heads,
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": fields.flag("mlp_bias", False),
    }
    return Decoder(read_settings(fields, storage, **own))
