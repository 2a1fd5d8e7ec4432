"""A small valid config of every family, as a release would write it.

CONFIGS has the families that write text, ENCODER_DECODERS those with an encoder, by `model_type`. The readers, the
parameter count, the price and the cost audit run over them. A config has the keys of a release, so that test_config.py
can leave out each in turn and compare what is built with transformers' reading: `check_decoder` there has to look at
all that the family reads by itself, or a wrong default passes. What a family refuses is a line of `CASES` of
test_config.py. Keys of releases that transformers does not read are in released.py, which also says which families are
released as the text of a larger model.
"""

from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
_YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
_LLAMA3 = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 14, "decoder_sparse_step": 1, "mlp_only_layers": [0]}
_LATENT = {
    "num_key_value_heads": 6, "kv_lora_rank": 17, "q_lora_rank": 11, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6,
    "v_head_dim": 9, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 12, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "moe_intermediate_size": 14, "n_group": 4, "topk_group": 2, "attention_bias": False,
}  # fmt: skip
_DELTA = {
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 5, "full_attention_interval": 2, "partial_rotary_factor": 0.4, "attention_bias": False,
    "rms_norm_eps": 0.01,  # small results are not made large, and what rounding did with them
}  # fmt: skip
_GATED = {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1}
_MAMBA = {
    "num_hidden_layers": 4, "hybrid_override_pattern": "M*-E", "mamba_num_heads": 6, "mamba_head_dim": 5, "n_groups": 2,
    "ssm_state_size": 7, "conv_kernel": 3, "chunk_size": 16, "expand": 2, "use_bias": False, "use_conv_bias": True,
    "mamba_proj_bias": False, "mlp_bias": True, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
    "layer_norm_epsilon": 0.01, "time_step_min": 0.001, "time_step_max": 0.1, "num_logits_to_keep": 1,
    "residual_in_fp32": False, "rescale_prenorm_residual": True, "use_mamba_kernels": True,
    "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 14, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 22, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
    "norm_topk_prob": True, "norm_eps": 0.01, "partial_rotary_factor": 1.0,
}  # fmt: skip
_MSCALE = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 0.7}
_MINIMAX = {
    "num_local_experts": 7, "num_experts_per_tok": 3, "rotary_dim": 4, "use_qk_norm": True, "qk_norm_type": "per_layer",
    "use_routing_bias": True, "scoring_func": "sigmoid", "attn_type_list": [1, 1], "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid", "mlp_intermediate_size": 30, "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0, "use_mtp": True, "num_mtp_modules": 3,
    "mtp_transformer_layers": 1,
}  # fmt: skip
_MINISTRAL3_ROPE = {
    "rope_type": "yarn", "type": "yarn", "rope_theta": 10_000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
}  # fmt: skip
_OSS_ROPE = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "truncate": False}
_LLAMA4 = {
    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size_mlp": 30, "interleave_moe_layer_step": 2,
    "moe_layers": [1], "no_rope_layers": [1, 0], "no_rope_layer_interval": 2, "attention_chunk_size": 5,
    "attention_bias": False, "attn_temperature_tuning": True, "attn_scale": 0.4, "floor_scale": 3, "use_qk_norm": True,
    "for_llm_compressor": False, "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
_GEMMA2 = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "query_pre_attn_scalar": 11,
    "sliding_window": 5,
    "sliding_window_size": 5,
    "attn_logit_softcapping": 7.0,
    "final_logit_softcapping": 3.0,
    "cache_implementation": "hybrid",
    "tie_word_embeddings": True,
}
_GEMMA3 = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "query_pre_attn_scalar": 11,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "rope_theta": 50_000.0,
    "rope_local_base_freq": 9_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
}
_LAYERS = ["sliding_attention", "full_attention"]
_GRANITE = {
    "attention_bias": False,
    "mlp_bias": False,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "embedding_multiplier": 3.0,
    "logits_scaling": 5.0,
    "tie_word_embeddings": True,
}
_SMOLLM3 = {
    "attention_bias": False,
    "mlp_bias": False,
    "no_rope_layers": [1, 0],
    "max_window_layers": 28,
    "no_rope_layer_interval": 2,
    "use_sliding_window": False,
    "sliding_window": None,
    "rope_theta": 5_000_000.0,
    "tie_word_embeddings": True,
}
_GLM = {"head_dim": 12, "attention_bias": True, "partial_rotary_factor": 0.4}
_COHERE = {"attention_bias": False, "layer_norm_eps": 1e-4, "logit_scale": 0.5, "tie_word_embeddings": True}
_COHERE2 = {
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "use_parallel_block": True,
    "use_gated_activation": True,
    "use_qk_norm": False,
    "position_embedding_type": "rope_gptj",
    "order_of_interleaved_layers": "local_attn_first",
    "rotary_pct": 1.0,
    "layer_switch": 2,
    "use_embedding_sharing": True,
}
_STARCODER2 = {
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-4,
    "norm_type": "layer_norm",
    "activation_function": "gelu",
    "scale_attn_weights": True,
    "attention_softmax_in_fp32": True,
    "mlp_type": "default",
    "use_bias": True,
    "sliding_window": 7,
    "tie_word_embeddings": True,
}
_PHI = {
    "head_dim": 12,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-4,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
}
_LONGROPE = {
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "hidden_size": 60,  # transformers wants factors for hidden_size / num_attention_heads, whatever head_dim is
    "original_max_position_embeddings": 32,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0]},
}


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _family(architecture: str, model_type: str, **own: Any) -> dict[str, Any]:
    values = {"architectures": [architecture], "model_type": model_type, **_COMMON, **own}
    return {name: value for name, value in values.items() if name != "head_dim" or "kv_lora_rank" not in own}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _family("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True, **_LLAMA3),
    "mistral": _family("MistralForCausalLM", "mistral", sliding_window=5),
    "ministral3": _without(
        _family("Ministral3ForCausalLM", "ministral3", sliding_window=None, rope_parameters=_MINISTRAL3_ROPE),
        "rope_theta",
    ),
    "qwen2": _family("Qwen2ForCausalLM", "qwen2", **_WINDOWS, **_YARN),
    "qwen3": _family("Qwen3ForCausalLM", "qwen3", attention_bias=False, **_WINDOWS),
    "phi3": _family("Phi3ForCausalLM", "phi3", sliding_window=None, partial_rotary_factor=0.4, **_LONGROPE),
    "mixtral": _family("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=2),
    "qwen3_moe": _family("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=7, norm_topk_prob=True, **_EXPERTS),
    "qwen2_moe": _family(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        num_experts=7,
        norm_topk_prob=False,
        shared_expert_intermediate_size=22,
        **_WINDOWS,
        **_EXPERTS,
    ),
    "qwen3_next": _family(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        num_experts=7,
        norm_topk_prob=True,
        shared_expert_intermediate_size=22,
        use_sliding_window=False,
        **_DELTA,
        **_EXPERTS,
    ),
    "qwen3_5_text": _family("Qwen3_5ForCausalLM", "qwen3_5_text", **_DELTA, **_GATED),
    "qwen3_5_moe_text": _without(
        _family(
            "Qwen3_5MoeForCausalLM",
            "qwen3_5_moe_text",
            num_experts=7,
            num_experts_per_tok=3,
            moe_intermediate_size=14,
            shared_expert_intermediate_size=22,
            **_DELTA,
            **_GATED,
        ),
        "intermediate_size",
    ),
    "deepseek_v2": _family(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **_LATENT,
        rope_scaling=_MSCALE,
        topk_method="group_limited_greedy",
        scoring_func="softmax",
        routed_scaling_factor=4.0,
        norm_topk_prob=False,
    ),
    "deepseek_v3": _family(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        **_LATENT,
        rope_scaling=_MSCALE,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        num_nextn_predict_layers=1,
    ),
    "minimax_m2": _family("MiniMaxM2ForCausalLM", "minimax_m2", **_MINIMAX),
    "llama4_text": _family("Llama4ForCausalLM", "llama4_text", **_LLAMA4, **_LLAMA3),
    "gpt_oss": _family(
        "GptOssForCausalLM",
        "gpt_oss",
        num_local_experts=5,
        num_experts_per_tok=2,
        experts_per_token=2,
        attention_bias=True,
        sliding_window=5,
        swiglu_limit=7.0,
        rope_scaling=_OSS_ROPE,
        initial_context_length=16,
    ),
    "gemma2": _family("Gemma2ForCausalLM", "gemma2", **_GEMMA2),
    "gemma3_text": _family("Gemma3ForCausalLM", "gemma3_text", **_GEMMA3),
    "granite": _family("GraniteForCausalLM", "granite", **_GRANITE),
    "olmo2": _family("Olmo2ForCausalLM", "olmo2", attention_bias=False),
    "olmo3": _family("Olmo3ForCausalLM", "olmo3", attention_bias=False, sliding_window=5, layer_types=_LAYERS, **_YARN),
    "smollm3": _family("SmolLM3ForCausalLM", "smollm3", **_SMOLLM3),
    "glm": _family("GlmForCausalLM", "glm", **_GLM),
    "glm4": _family("Glm4ForCausalLM", "glm4", **_GLM),
    "cohere": _without(_family("CohereForCausalLM", "cohere", use_qk_norm=True, **_COHERE), "rms_norm_eps"),
    "cohere2": _without(_family("Cohere2ForCausalLM", "cohere2", **_COHERE, **_COHERE2), "rms_norm_eps"),
    "starcoder2": _without(_family("Starcoder2ForCausalLM", "starcoder2", **_STARCODER2), "rms_norm_eps"),
    "exaone4": _family("Exaone4ForCausalLM", "exaone4", sliding_window=5, sliding_window_pattern=2),
    "phi": _without(_family("PhiForCausalLM", "phi", **_PHI), "rms_norm_eps"),
    "nemotron_h": _without(_family("NemotronHForCausalLM", "nemotron_h", **_MAMBA), "hidden_act", "rms_norm_eps"),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 89,
        "n_positions": 64,
        "n_embd": 36,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 50,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
}

_T5: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 44,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    "n_positions": 64,
    "tie_word_embeddings": False,
    "is_encoder_decoder": True,
    "decoder_start_token_id": 0,
    "torch_dtype": "float32",
}
BART_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 36,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 50,
    "decoder_start_token_id": 2,
}
_BART: dict[str, Any] = {
    **BART_SIZES,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "scale_embedding": True,
    "normalize_before": False,
    "is_encoder_decoder": True,
    "torch_dtype": "float32",
}

ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", **_T5},
    "umt5": {"architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5", **_T5},
    "bart": {"architectures": ["BartForConditionalGeneration"], "model_type": "bart", **_BART},
    "marian": {"architectures": ["MarianMTModel"], "model_type": "marian", **_BART, "static_position_embeddings": True},
}
