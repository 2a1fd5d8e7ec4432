"""Small models of transformers' classes with random weights that matter."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from ridgeline.core.models.from_transformers.small_config import PLAIN_ROPE, small_config
from support.checkpoints import fill_random

CAUSAL: tuple[str, ...] = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""The model types whose class continues a text."""
MASKED: tuple[str, ...] = tuple(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
"""The model types whose class fills masks: encoders."""
TOKENS = 24
"""A text of as many tokens passes every window, chunk and sparse limit of a small config."""
NEEDED: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "reformer": {"is_decoder": True},
}
"""Values that the default configs of causal types lack, although their class asks for them."""

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
ALL_KINDS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "cohere_compass_text": {
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 10,
        "rope_parameters": {SLIDING: PLAIN_ROPE, FULL: None},
    },
    "deepseek_v2": {
        "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3, "num_experts_per_tok": 6,
        "n_routed_experts": 160, "first_k_dense_replace": 1,
    },
    "doge": {"is_moe": True},
    "dots1": {"layer_types": [FULL, SLIDING] * 31},
    "falcon": {"new_decoder_architecture": True, "num_attention_heads": 128, "num_kv_heads": 8, "hidden_size": 8192},
    "gemma4_text": {
        "num_kv_shared_layers": 12, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
        "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
    },
    "glm_moe_dsa": {"indexer_types": ["full", "full", "full", "shared", "shared", "shared"] * 13},
    "granitemoehybrid": {"layer_types": ([LINEAR] * 7 + [FULL]) * 4},
    "laguna": {
        "layer_types": [FULL, SLIDING, SLIDING, SLIDING] * 10,
        "num_attention_heads_per_layer": [48, 64, 64, 64] * 10,
    },
    "lfm2": {"layer_types": ["conv", "conv", FULL, "conv"] * 8, "full_attn_idxs": [*range(2, 32, 4)]},
    "mellum": {"layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 7, "mlp_layer_types": ["dense"] + ["sparse"] * 27},
    "minimax_m3_vl_text": {
        "layer_types": [FULL] * 3 + ["minimax_m3_sparse"] * 57, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
    },
    "nemotron_h": {"moe_latent_size": 1024},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 28},
    "qwen2_moe": {"mlp_only_layers": [0, 5], "decoder_sparse_step": 2},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 28},
    "qwen3_moe": {"mlp_only_layers": [0, 5], "decoder_sparse_step": 2},
    "zamba2": {"num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True},
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"] * 20, "sliding_window": 4096},
}  # fmt: skip
"""Fields with which a class builds the kinds of layers and experts that its default config leaves out."""


def config_with_all_kinds(model_type: str) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """Return the class for a causal model type and its default config, extended by the kinds of `ALL_KINDS`."""
    more = NEEDED.get(model_type, {}) | ALL_KINDS.get(model_type, {})
    return class_and_config(AutoConfig.for_model(model_type, **more))


def default_config(model_type: str, *, masked: bool = False) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """Return the class for a model type and its default config: of a multimodal one, the part that the class wants."""
    config = AutoConfig.for_model(model_type, **({} if masked else NEEDED.get(model_type, {})))
    return class_and_config(config, masked=masked)


def class_and_config(
    config: PreTrainedConfig, *, masked: bool = False
) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """Return the class for a config, and the config or the part of it that the class wants."""
    mapping = MODEL_FOR_MASKED_LM_MAPPING if masked else MODEL_FOR_CAUSAL_LM_MAPPING
    model_class = mapping[type(config)]
    parts = (part for part in vars(config).values() if isinstance(part, PreTrainedConfig))
    wanted = model_class.config_class
    return model_class, next((part for part in (config, *parts) if type(part) is wanted), config)


def build_small(model_class: type[PreTrainedModel], small: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Return a model in fp32 with random weights, which computes attention eagerly."""
    small._attn_implementation = "eager"
    model = model_class(small).eval()
    fill_random(model, seed)
    return model


@cache
def small_causal(model_type: str) -> PreTrainedModel:
    """Return the small model of a causal type's default config; nothing is to be changed in it."""
    model_class, config = default_config(model_type)
    return build_small(model_class, small_config(config))


def random_text(model: PreTrainedModel, seed: int = 0) -> Tensor:
    """Return the token ids of one text, as a model takes them; of music, one row for each codebook."""
    vocabulary = min(80, getattr(model.config, "vocab_size", None) or 80)
    rows = getattr(model.config, "num_codebooks", 1) if "musicgen" in model.config.model_type else 1
    return torch.randint(3, vocabulary, (rows, TOKENS), generator=torch.Generator().manual_seed(seed))
