"""A small valid config of every family, as a release would write it."""

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


def _family(architecture: str, model_type: str, **own: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **_COMMON, **own}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _family("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True, **_LLAMA3),
    "mistral": _family("MistralForCausalLM", "mistral", sliding_window=5),
    "qwen2": _family("Qwen2ForCausalLM", "qwen2", **_WINDOWS, **_YARN),
    "qwen3": _family("Qwen3ForCausalLM", "qwen3", attention_bias=False, **_WINDOWS),
    "phi3": _family("Phi3ForCausalLM", "phi3", sliding_window=None, partial_rotary_factor=0.4),
    "mixtral": _family("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=2),
    "qwen3_moe": _family("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=7, norm_topk_prob=True, **_EXPERTS),
    "gemma2": _family("Gemma2ForCausalLM", "gemma2", **_GEMMA2),
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
_BART: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 36,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 50,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "scale_embedding": True,
    "normalize_before": False,
    "is_encoder_decoder": True,
    "decoder_start_token_id": 2,
    "torch_dtype": "float32",
}

ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", **_T5},
    "umt5": {"architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5", **_T5},
    "bart": {"architectures": ["BartForConditionalGeneration"], "model_type": "bart", **_BART},
    "marian": {"architectures": ["MarianMTModel"], "model_type": "marian", **_BART, "static_position_embeddings": True},
}
