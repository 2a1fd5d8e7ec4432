"""The layouts in which models are released: where config.json says what, and the keys that transformers does not read.

save_pretrained writes a top-level `dtype`, the text's fields at the top and no other keys. Releases do otherwise.
"""

from collections.abc import Mapping
from typing import Any

COMMON: Mapping[str, Any] = {"_name_or_path": "release", "transformers_version": "4.51.0", "pretraining_tp": 1}
"""Keys of most releases that change nothing."""

INERT: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope_interleaved": False},
    "qwen2": {"use_mrope": False},
    "qwen3": {"use_qk_norm": True},
    "phi3": {
        "attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
    },
    "qwen3_moe": {"use_qk_norm": True, "qkv_bias": False, "shared_expert_intermediate_size": 0},
    "qwen3_next": {"use_sliding_window": False},
    "qwen3_5_text": {
        "attn_output_gate": True, "output_gate_type": "swish", "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    },
    "qwen3_5_moe_text": {
        "attn_output_gate": True, "output_gate_type": "swish", "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    },
    "deepseek_v2": {"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True},
    "deepseek_v3": {
        "aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
        "scoring_func": "sigmoid", "seq_aux": True, "topk_method": "noaux_tc",
    },
    "minimax_m2": {
        "attn_type_list": [1, 1, 1], "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0, "mlp_intermediate_size": 8192, "mtp_transformer_layers": 1, "num_mtp_modules": 3,
        "qk_norm_type": "per_layer", "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid", "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True,
    },
    "llama4_text": {"for_llm_compressor": False, "_attn_implementation_autoset": True},
    "gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096},
    "gemma2": {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 4096},
    "gemma3_text": {"cache_implementation": "hybrid"},
    "smollm3": {"max_window_layers": 28},
    "cohere2": {
        "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0, "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
        "use_parallel_embedding": True, "use_qk_norm": False,
    },
    "starcoder2": {
        "activation_function": "gelu", "attention_softmax_in_fp32": True, "layer_norm_epsilon": 1e-5,
        "mlp_type": "default", "norm_type": "layer_norm", "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
    },
    "nemotron_h": {
        "mamba_proj_bias": False, "mamba_ssm_cache_dtype": "float32", "mtp_hybrid_override_pattern": "*E",
        "norm_eps": 1e-5, "partial_rotary_factor": 1.0, "rope_theta": 10_000,
    },
    "gpt2": {"n_ctx": 1024, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
}  # fmt: skip
"""Keys of releases that transformers' class of a text does not read, or takes for granted, by its `model_type`. A
family without such keys has no entry."""

_TOKENS = {"image_token_id": 5, "video_token_id": 6, "vision_end_token_id": 4, "vision_start_token_id": 3}
AROUND: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"boi_token_index": 5, "eoi_token_index": 6, "image_token_index": 7, "mm_tokens_per_image": 4},
    "mistral3": {
        "image_token_index": 7, "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
        "spatial_merge_size": 2, "vision_feature_layer": -1,
    },
    "llama4": {"boi_token_index": 5, "eoi_token_index": 6, "image_token_index": 7},
    "kimi_k25": {
        "ignore_index": -100, "media_placeholder_token_id": 7, "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
    },
    "qwen3_vl": _TOKENS,
    "qwen3_vl_moe": _TOKENS,
    "qwen3_5": _TOKENS | {"language_model_only": False},
    "qwen3_5_moe": _TOKENS | {"language_model_only": False},
    "qwen2_5_vl": _TOKENS | {"vision_token_id": 8},
    "qwen2_vl": _TOKENS | {"vision_token_id": 8},
}  # fmt: skip
"""Keys of releases around the text's section, by the `model_type` of the whole."""

HALVES: Mapping[str, tuple[str, str]] = {
    "gemma3_text": ("Gemma3ForConditionalGeneration", "gemma3"),
    "ministral3": ("Mistral3ForConditionalGeneration", "mistral3"),
    "llama4_text": ("Llama4ForConditionalGeneration", "llama4"),
    "qwen3_5_text": ("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    "qwen3_5_moe_text": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
}
"""Families that are released as the text of a larger model, and that model's architecture and `model_type`."""

_WITHOUT_DTYPE = ("gpt2",)
_DTYPE_IN_TEXT = ("qwen",)  # how the types begin whose releases state it there; the others do so at the top


def inert_keys(kind: str) -> dict[str, Any]:
    """Return the keys of the releases of a family that change nothing, by its `model_type`."""
    return {**COMMON, **INERT.get(kind, {})}


def as_released(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that save_pretrained wrote in the layout in which its family is released."""
    kind = values["model_type"]
    own = {**inert_keys(kind), **{name: value for name, value in values.items() if name != "dtype"}}
    if kind not in HALVES:
        return own if kind in _WITHOUT_DTYPE else {**own, "torch_dtype": values["dtype"]}
    architecture, whole = HALVES[kind]
    around = {"architectures": [architecture], "model_type": whole, "dtype": values["dtype"]}
    ties = {"tie_word_embeddings": own["tie_word_embeddings"]} if "tie_word_embeddings" in own else {}
    del own["architectures"]
    return half_as_released({**around, **ties, "text_config": own, "vision_config": {"hidden_size": 8}})


def half_as_released(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a larger model's config that save_pretrained wrote in the layout of its releases."""
    kind = values["model_type"]
    text = {name: value for name, value in values["text_config"].items() if name != "dtype"}
    own = {**AROUND[kind], **{name: value for name, value in values.items() if name != "dtype"}}
    if kind.startswith(_DTYPE_IN_TEXT):
        return {**own, "text_config": {**text, "dtype": values["dtype"]}}
    return {**own, "text_config": text, "torch_dtype": values["dtype"]}
