"""The models that are compared with transformers, one id a line of the accuracy table.

Sizes are small, odd and different from each other, so that no two dimensions can be mistaken for one another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Layout = Literal[
    "bare", "old buffers", "sharded", "head repeated", "old spelling", "no architectures", "no layer types"
]


@dataclass(frozen=True)
class ParityCase:
    """A config of transformers, how its folder differs from what save_pretrained writes, and what must matter in it.

    without: changes to config.json with which the same weights must give other logits.
    """

    id: str
    model_type: str
    config: Mapping[str, Any]
    layout: tuple[Layout, ...] = ()
    without: Mapping[str, Any] = field(default_factory=dict)


_BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_MIXTRAL = _BASE | {"num_local_experts": 5, "num_experts_per_tok": 2}
_QWEN_MOE = _BASE | {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 14, "norm_topk_prob": True}
_GPT2: dict[str, Any] = {
    "vocab_size": 89,
    "n_positions": 96,
    "n_embd": 36,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GEMMA2: dict[str, Any] = _BASE | {
    "hidden_size": 42,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 7,
    "sliding_window": 5,
    "attn_logit_softcapping": 9.0,
    "final_logit_softcapping": 15.0,
    "tie_word_embeddings": True,
}
_WITHOUT_SCALING = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
_NO_WINDOW = {"sliding_window": None}


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    """An original context of 64: of five frequencies the first is kept, the second lies on llama3's ramp."""
    if kind != "linear":
        numbers["original_max_position_embeddings"] = 64
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **numbers}}


def _llama(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"llama-{name}", "llama", _BASE | changes, **more)


def _mistral(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"mistral-{name}", "mistral", _BASE | {"sliding_window": None} | changes, **more)


def _qwen2(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"qwen2-{name}", "qwen2", _BASE | {"hidden_size": 60} | changes, **more)


def _qwen3(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"qwen3-{name}", "qwen3", _BASE | changes, **more)


def _phi3(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"phi3-{name}", "phi3", _BASE | {"hidden_size": 60} | changes, **more)


def _mixtral(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"mixtral-{name}", "mixtral", _MIXTRAL | changes, **more)


def _qwen_moe(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"qwen3moe-{name}", "qwen3_moe", _QWEN_MOE | changes, **more)


def _gemma2(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"gemma2-{name}", "gemma2", _GEMMA2 | changes, **more)


def _gpt2(name: str, changes: Mapping[str, Any], **more: Any) -> ParityCase:
    return ParityCase(f"gpt2-{name}", "gpt2", _GPT2 | changes, **more)


_UPPER = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
_MIXED = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_FULL = {"use_sliding_window": False, "layer_types": None}

CASES = (
    _llama("gqa3", {}),
    _llama("gqa2", {"num_attention_heads": 4}),
    _llama("mha", {"num_attention_heads": 3, "num_key_value_heads": 3}),
    _llama("mqa", {"num_key_value_heads": 1}),
    _llama("kv-heads-not-stated", {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": None}),
    _llama("tied", {"tie_word_embeddings": True}),
    _llama("head-dim-derived", {"hidden_size": 60, "head_dim": None}),
    _llama("head-dim-wide", {"hidden_size": 18, "head_dim": 32}),
    _llama("attention-bias", {"attention_bias": True}),
    _llama("mlp-bias", {"mlp_bias": True}),
    _llama("both-biases-tied", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    _llama("large-eps", {"rms_norm_eps": 0.3}, without={"rms_norm_eps": 1e-5}),
    _llama("gelu", {"hidden_act": "gelu"}, without={"hidden_act": "silu"}),
    _llama("gelu-tanh", {"hidden_act": "gelu_pytorch_tanh"}, without={"hidden_act": "silu"}),
    _llama("relu", {"hidden_act": "relu"}, without={"hidden_act": "silu"}),
    _llama("one-layer", {"num_hidden_layers": 1}),
    _llama(
        "theta",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 37.0}},
        without={"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    _llama("rope-linear", _rope("linear", factor=3.0), without=_WITHOUT_SCALING),
    _llama(
        "rope-llama3", _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0), without=_WITHOUT_SCALING
    ),
    _llama("rope-yarn", _rope("yarn", factor=4.0), without=_WITHOUT_SCALING),
    _llama(
        "rope-yarn-attention-factor",
        _rope("yarn", factor=4.0, attention_factor=0.7),
        without=_rope("yarn", factor=4.0),
    ),
    _llama(
        "rope-yarn-fractional",
        _rope("yarn", factor=4.0, beta_fast=2.0, beta_slow=0.25, truncate=False),
        without=_rope("yarn", factor=4.0, beta_fast=2.0, beta_slow=0.25),
    ),
    _llama("bare", {"tie_word_embeddings": True}, layout=("bare",)),
    _llama("old-buffers", {}, layout=("old buffers",)),
    _llama("sharded", {}, layout=("sharded",)),
    _llama("head-repeated", {"tie_word_embeddings": True}, layout=("head repeated",)),
    _llama("old-spelling", _rope("linear", factor=3.0), layout=("old spelling",)),
    _llama("old-spelling-yarn", _rope("yarn", factor=4.0), layout=("old spelling",)),
    _llama("no-architectures", {}, layout=("no architectures",)),
    _mistral("plain", {}),
    _mistral("window-5", {"sliding_window": 5}, without=_NO_WINDOW),
    _mistral("window-1", {"sliding_window": 1}, without=_NO_WINDOW),
    _mistral("window-longer-than-any", {"sliding_window": 200}),
    _mistral("tied-mqa-window-11", {"sliding_window": 11, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    _qwen2("plain", {}),
    _qwen2("tied", {"tie_word_embeddings": True}),
    _qwen2("window-upper-layers", _UPPER, layout=("no layer types",), without=_FULL),
    _qwen2("window-layer-types", _MIXED, without=_FULL),
    _qwen2("window-switched-off", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0}),
    _qwen2("yarn", _rope("yarn", factor=4.0), without=_WITHOUT_SCALING),
    _qwen2("sharded-tied", {"tie_word_embeddings": True}, layout=("sharded",)),
    _qwen3("plain", {}),
    _qwen3("tied", {"tie_word_embeddings": True}),
    _qwen3("attention-bias", {"attention_bias": True}),
    _qwen3("large-eps", {"rms_norm_eps": 0.3}, without={"rms_norm_eps": 1e-5}),
    _qwen3("window-upper-layers", _UPPER, layout=("no layer types",), without=_FULL),
    _qwen3("window-layer-types", _MIXED, without=_FULL),
    _qwen3("yarn", _rope("yarn", factor=4.0, beta_fast=4.0, beta_slow=0.5), without=_WITHOUT_SCALING),
    _qwen3("bare", {"tie_word_embeddings": True}, layout=("bare",)),
    _phi3("plain", {}),
    _phi3("mha-tied", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    _phi3(
        "partial-rotary", {"partial_rotary_factor": 0.4}, without={"partial_rotary_factor": None, **_WITHOUT_SCALING}
    ),
    _phi3("window-6", {"sliding_window": 6}, without=_NO_WINDOW),
    _phi3("old-buffers", {}, layout=("old buffers",)),
    _mixtral("plain", {}),
    _mixtral("one-expert-a-token", {"num_experts_per_tok": 1}),
    _mixtral("every-expert", {"num_experts_per_tok": 5}),
    _mixtral("window-5-tied", {"sliding_window": 5, "tie_word_embeddings": True}, without=_NO_WINDOW),
    _mixtral("sharded", {}, layout=("sharded",)),
    _qwen_moe("renormalised", {}, without={"norm_topk_prob": False}),
    _qwen_moe("not-renormalised", {"norm_topk_prob": False}, without={"norm_topk_prob": True}),
    _qwen_moe("dense-layer", {"mlp_only_layers": [1]}),
    _qwen_moe("every-second-layer", {"decoder_sparse_step": 2}),
    _qwen_moe("dense-and-every-second", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 4}),
    _qwen_moe("attention-bias-tied", {"attention_bias": True, "tie_word_embeddings": True}),
    _qwen_moe("window", {"use_sliding_window": True, "sliding_window": 5}, without={"use_sliding_window": False}),
    _gemma2("plain", {}),
    _gemma2("untied", {"tie_word_embeddings": False}),
    _gemma2("attention-bias", {"attention_bias": True}),
    _gemma2("window-odd-layers", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    _gemma2("window-even-layers", {}, layout=("no layer types",), without=_NO_WINDOW),
    _gemma2("scale", {}, without={"query_pre_attn_scalar": 10}),
    _gemma2("score-cap", {}, without={"attn_logit_softcapping": None}),
    _gemma2("no-score-cap", {"attn_logit_softcapping": None}, without={"attn_logit_softcapping": 9.0}),
    _gemma2("logit-cap", {}, without={"final_logit_softcapping": None}),
    _gemma2("no-logit-cap", {"final_logit_softcapping": None}, without={"final_logit_softcapping": 15.0}),
    _gemma2("relu", {"hidden_activation": "relu"}, without={"hidden_activation": "gelu_pytorch_tanh"}),
    _gemma2("bare", {}, layout=("bare",)),
    _gpt2("plain", {}),
    _gpt2("untied", {"tie_word_embeddings": False}),
    _gpt2("odd-width", {"n_inner": 53, "n_head": 3}),
    _gpt2("one-head", {"n_head": 1}),
    _gpt2("relu", {"activation_function": "relu"}, without={"activation_function": "gelu_new"}),
    _gpt2("large-eps", {"layer_norm_epsilon": 0.3}, without={"layer_norm_epsilon": 1e-5}),
    _gpt2("bare", {}, layout=("bare",)),
    _gpt2("old-buffers", {}, layout=("old buffers",)),
    _gpt2("old-buffers-bare", {}, layout=("old buffers", "bare")),
    _gpt2("head-repeated", {}, layout=("head repeated",)),
)
