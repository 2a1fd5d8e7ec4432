"""Qwen3 (arXiv:2505.09388), dense and mixture of experts: Llama with an RMSNorm on each head's queries and keys."""

from typing import Any

from torch import nn

from ridgeline.models.decoder import Block, Decoder, GatedMLP
from ridgeline.models.fields import Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.mixture import Mixture
from ridgeline.models.qwen2 import upper_windows
from ridgeline.models.settings import DecoderSettings, MixtureSettings
from ridgeline.models.storage import Storage


def _own(fields: Fields) -> dict[str, Any]:
    bias = fields.flag("attention_bias", False)
    return {"windows": upper_windows(fields), "qk_norm": True, "qkv_bias": bias, "output_bias": bias}


def build(fields: Fields, storage: Storage) -> Decoder:
    """Qwen3, dense."""
    return Decoder(read_settings(fields, storage, **_own(fields)))


class MixtureBlock(Block):
    """A block whose MLP is a mixture, in the layers that have one."""

    def feed_forward(self, s: DecoderSettings, layer: int) -> nn.Module:
        mixture = s.mixtures[layer]
        if mixture is None:
            return GatedMLP(s)
        return Mixture(s, mixture, ("gate_proj", "up_proj", "down_proj"))


class MixtureDecoder(Decoder):
    """Qwen3-MoE."""

    block = MixtureBlock


def build_mixture(fields: Fields, storage: Storage) -> MixtureDecoder:
    """Qwen3-30B-A3B, Qwen3-235B-A22B and their kin."""
    mixture = MixtureSettings(
        fields.count("num_experts" if fields.has("num_experts") else "num_local_experts"),  # transformers 5 renamed it
        fields.count("num_experts_per_tok"),
        fields.count("moe_intermediate_size"),
        fields.flag("norm_topk_prob", False),
    )
    if mixture.active > mixture.count:
        raise fields.refuse(f"num_experts_per_tok {mixture.active} is more than num_experts {mixture.count}")
    step, dense = fields.count("decoder_sparse_step", 1), set(fields.integers("mlp_only_layers"))
    mixtures = tuple(
        mixture if layer not in dense and (layer + 1) % step == 0 else None for layer in range(fields.layers)
    )
    return MixtureDecoder(read_settings(fields, storage, mixtures=mixtures, **_own(fields)))
