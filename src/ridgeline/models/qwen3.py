"""Qwen3 (arXiv:2505.09388), dense and mixture of experts: Llama with an RMSNorm on each head's queries and keys."""

from typing import Any

from torch import nn

from ridgeline.models.decoder import Block, Decoder, GatedMLP
from ridgeline.models.fields import MOST_EXPERTS, Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.mistral import UNSTATED_WINDOW, read_window
from ridgeline.models.mixture import Mixture
from ridgeline.models.qwen2 import upper_windows
from ridgeline.models.settings import DecoderSettings, MixtureSettings
from ridgeline.models.storage import Storage


def _own(fields: Fields) -> dict[str, Any]:
    bias = fields.flag("attention_bias", False)
    return {"qk_norm": True, "qkv_bias": bias, "output_bias": bias}


def build(fields: Fields, storage: Storage) -> Decoder:
    """Qwen3, dense."""
    return Decoder(read_settings(fields, storage, windows=upper_windows(fields), **_own(fields)))


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
    count = "num_local_experts" if fields.has("num_local_experts") else "num_experts"  # transformers 5 renamed it
    mixture = MixtureSettings(
        fields.count(count, most=MOST_EXPERTS),
        fields.count("num_experts_per_tok"),
        fields.count("moe_intermediate_size"),
        fields.flag("norm_topk_prob", False),
    )
    if mixture.active > mixture.count:
        raise fields.refuse(f"num_experts_per_tok {mixture.active} is more than {count} {mixture.count}")
    step, dense = fields.count("decoder_sparse_step", 1), set(fields.integers("mlp_only_layers"))
    mixtures = tuple(
        mixture if layer not in dense and (layer + 1) % step == 0 else None for layer in range(fields.layers)
    )
    # Unlike its dense kin it has one window for all layers, whatever these say.
    fields.passed_over("max_window_layers", "layer_types")
    window = read_window(fields, UNSTATED_WINDOW) if fields.flag("use_sliding_window", False) else None
    own = {"windows": (window,) * fields.layers, "mixtures": mixtures, **_own(fields)}
    return MixtureDecoder(read_settings(fields, storage, **own))
