"""The models that are compared with transformers, one id a line of the accuracy table.

Sizes are small, odd and different from each other, so that no two dimensions can be mistaken for one another.

A family has one case for each setting. `without` is the change to config.json (None is null) that must change the
logits by more than 1e-3 of the largest; softmax and caps hide small changes, so choose values that matter. A case
without `layout` and `without` has every parameter tested for an effect; each family needs one. Transformers saves what
it derived, such as `layer_types`: if releases do not state it, a `layout` takes it out again.

Other kinds have their cases elsewhere: encoder-decoders in encoder_decoder_cases.py, encoders in encoder_cases.py,
Janus in test_janus.py; a denoiser has a test file of its own, with diffusers' class as the reference (test_z_image.py).

Cases in other files are for what a family has of its own: test_tensor_parallel.py runs two ranks, and
tests/trace/trace_models.py is for attention and the lens. A block of its own has a line in
`test_a_failure_names_the_first_difference` (test_parity.py), and a name that cannot be derived one in `NAMES`
(test_bill.py).
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Layout = Literal[
    "bare",
    "old buffers",
    "sharded",
    "head repeated",
    "old spelling",
    "no architectures",
    "no layer types",
    "experts stacked",
    "masked LM",
    "old names",
    "no projection",
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

    @property
    def seed(self) -> int:
        """Of weights and prompts: its own, so that another case before it in a list changes neither."""
        return zlib.crc32(self.id.encode())

    @classmethod
    def of(cls, model_type: str, base: Mapping[str, Any], called: str = "") -> Callable[..., Self]:
        """What makes cases of a family: called by a name, changes to `base` and, by keyword, the other fields. called:
        what their ids begin with, where it is not the model type."""

        def case(name: str, changes: Mapping[str, Any], **more: Any) -> Self:
            return cls(f"{called or model_type}-{name}", model_type, {**base, **changes}, **more)

        return case


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
_QWEN2_MOE = _QWEN_MOE | {"hidden_size": 60, "shared_expert_intermediate_size": 22, "norm_topk_prob": False}
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 7,
    "linear_value_head_dim": 5,
    "partial_rotary_factor": 0.4,
    # Where a query and a key of few entries are nearly at right angles, the norm behind enlarges what rounding did.
    "rms_norm_eps": 0.1,
}
_QWEN3_NEXT = _QWEN_MOE | _DELTA | {"shared_expert_intermediate_size": 22}
_QWEN3_5_MOE = {
    name: value for name, value in _QWEN3_NEXT.items() if name not in ("intermediate_size", "norm_topk_prob")
}
_MAMBA: dict[str, Any] = {
    name: value for name, value in _BASE.items() if name not in ("rms_norm_eps", "num_hidden_layers")
} | {
    "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 5,
    "n_groups": 2,
    "ssm_state_size": 7,
    "conv_kernel": 3,
    "layer_norm_epsilon": 0.1,
}
_MAMBA_MIXTURE: dict[str, Any] = _MAMBA | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mlp"],
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 14,
    "moe_shared_expert_intermediate_size": 22,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
}
_LATENT: dict[str, Any] = {
    name: value for name, value in _BASE.items() if name not in ("head_dim", "num_key_value_heads")
} | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 17,
    "q_lora_rank": 11,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 14,
    "n_group": 4,
    "topk_group": 2,
}
_MINIMAX_M2 = _BASE | {"num_local_experts": 7, "num_experts_per_tok": 3, "rotary_dim": 4}
# Transformers' rotation of it wants sizes that are even.
_DEEPSEEK_V2 = (
    _LATENT
    | {"kv_lora_rank": 18, "qk_nope_head_dim": 8}
    | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0}
)
_OSS = _BASE | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5}
_LLAMA4: dict[str, Any] = _BASE | {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "intermediate_size_mlp": 26,
    "moe_layers": [0, 1],
    "no_rope_layers": [1, 0, 1],
    "attention_chunk_size": 5,
    "floor_scale": 3,
    "attn_scale": 0.4,
}
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
_ODD = {k: v for k, v in _BASE.items() if k != "head_dim"} | {"hidden_size": 60}  # families without a head_dim field
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_GEMMA3: dict[str, Any] = _BASE | {
    "hidden_size": 42,
    "query_pre_attn_scalar": 7,
    "sliding_window": 5,
    "layer_types": _LAYERS,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
    },
    "tie_word_embeddings": True,
}
_GRANITE: dict[str, Any] = _ODD | {
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "embedding_multiplier": 1.7,
    "logits_scaling": 2.3,
}
_COHERE = {k: v for k, v in _ODD.items() if k != "rms_norm_eps"} | {"layer_norm_eps": 1e-5, "logit_scale": 0.6}
_PLAIN_MLP = {k: v for k, v in _ODD.items() if k != "rms_norm_eps"}
_WITHOUT_SCALING = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
_THETA = {"rope_parameters": None}
_NO_WINDOW = {"sliding_window": None}


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    """An original context of 64: of five frequencies the first is kept, the second lies on llama3's ramp."""
    if kind != "linear":
        numbers["original_max_position_embeddings"] = 64
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **numbers}}


_OSS_ROPE = _rope("yarn", factor=8.0, truncate=False)


def _ministral3_rope(beta: float, kind: str = "yarn", **numbers: Any) -> dict[str, Any]:
    """Queries scaled from position 7 on, by so much."""
    values = {"rope_theta": 10_000.0, "original_max_position_embeddings": 7, "llama_4_scaling_beta": beta, **numbers}
    return {"rope_parameters": {"rope_type": kind, **({"factor": 16.0} if kind == "yarn" else {}), **values}}


_MSCALE = _rope("yarn", factor=4.0, mscale=1.3, mscale_all_dim=0.6)
_UPPER = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
_MIXED = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_FULL = {"use_sliding_window": False, "layer_types": None}


def _longrope(original: int) -> dict[str, Any]:
    """Factors of five frequencies. With an original context that every prompt but that of one position is longer than,
    transformers takes the long ones, as we do for the whole of such a context."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0, 1.2, 1.5, 1.7, 1.9],
            "long_factor": [1.0, 3.0, 9.0, 20.0, 30.0],
        },
    }


_OWN_WINDOWS = {"sliding_window": 5, "layer_types": _LAYERS}
_WIDER = _BASE | {"hidden_size": 60}

_llama = ParityCase.of("llama", _BASE)
_mistral = ParityCase.of("mistral", _BASE | _NO_WINDOW)
_ministral3 = ParityCase.of("ministral3", _BASE | _ministral3_rope(0.5))
_qwen2 = ParityCase.of("qwen2", _WIDER)
_qwen3 = ParityCase.of("qwen3", _BASE)
_phi3 = ParityCase.of("phi3", _WIDER)
_mixtral = ParityCase.of("mixtral", _MIXTRAL)
_qwen_moe = ParityCase.of("qwen3_moe", _QWEN_MOE, "qwen3moe")
_qwen2_moe = ParityCase.of("qwen2_moe", _QWEN2_MOE, "qwen2moe")
_qwen3_next = ParityCase.of("qwen3_next", _QWEN3_NEXT, "qwen3next")
_qwen3_5 = ParityCase.of("qwen3_5_text", _BASE | _DELTA, "qwen3.5")
_qwen3_5_moe = ParityCase.of("qwen3_5_moe_text", _QWEN3_5_MOE, "qwen3.5moe")
_minimax_m2 = ParityCase.of("minimax_m2", _MINIMAX_M2, "minimax-m2")
_v2 = ParityCase.of("deepseek_v2", _DEEPSEEK_V2, "deepseek-v2")
_v3 = ParityCase.of("deepseek_v3", _LATENT, "deepseek-v3")
_llama4 = ParityCase.of("llama4_text", _LLAMA4, "llama4")
_oss = ParityCase.of("gpt_oss", _OSS | _OSS_ROPE, "gpt-oss")
_gemma2 = ParityCase.of("gemma2", _GEMMA2)
_gemma3 = ParityCase.of("gemma3_text", _GEMMA3, "gemma3")
_granite = ParityCase.of("granite", _GRANITE)
_olmo2 = ParityCase.of("olmo2", _ODD)
_olmo3 = ParityCase.of("olmo3", _ODD | _OWN_WINDOWS)
_smollm3 = ParityCase.of("smollm3", _ODD | {"no_rope_layers": [1, 0, 1]})
_glm = ParityCase.of("glm", _BASE | {"head_dim": 12})
_glm4 = ParityCase.of("glm4", _BASE | {"head_dim": 12})
_cohere = ParityCase.of("cohere", _COHERE)
_cohere2 = ParityCase.of("cohere2", _COHERE | _OWN_WINDOWS)
_starcoder2 = ParityCase.of("starcoder2", _PLAIN_MLP)
_exaone4 = ParityCase.of("exaone4", _ODD | _OWN_WINDOWS)
_phi = ParityCase.of("phi", _PLAIN_MLP | {"partial_rotary_factor": 0.4})
_nemotron_h = ParityCase.of("nemotron_h", _MAMBA)
_nemotron_3 = ParityCase.of("nemotron_h", _MAMBA_MIXTURE, "nemotron-3")
_gpt2 = ParityCase.of("gpt2", _GPT2)

_EVERYWHERE = {"layer_types": ["full_attention"] * 3}
_OLMO3_YARN = {
    "rope_parameters": {
        "full_attention": _rope("yarn", factor=4.0)["rope_parameters"],
        "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
    }
}
_ALL_TURN = {"no_rope_layers": [1, 1, 1]}
_GEMMA3_ROPES = _GEMMA3["rope_parameters"]

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
    _llama("rope-dynamic", _rope("dynamic", factor=4.0)),
    _llama(
        "rope-yarn-mscale",
        _rope("yarn", factor=4.0, mscale=2.0, mscale_all_dim=0.5),
        without=_rope("yarn", factor=4.0),
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
    _ministral3("plain", {}),
    _ministral3("tied-mqa", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    _ministral3("scaled-queries", {}, without=_ministral3_rope(0.0)),
    _ministral3("queries-not-scaled", _ministral3_rope(0.0), without=_ministral3_rope(0.5)),
    _ministral3("rope-not-stretched", _ministral3_rope(0.5, "default"), without=_ministral3_rope(0.5)),
    _ministral3(
        "mscale", _ministral3_rope(0.5, mscale=1.0, mscale_all_dim=1.0), without=_ministral3_rope(0.5, mscale=1.0)
    ),
    _ministral3("window-5", {"sliding_window": 5}, without=_NO_WINDOW),
    _ministral3("old-spelling", {}, layout=("old spelling",)),
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
    _phi3("longrope-long", _longrope(5), without=_longrope(512)),
    _phi3("longrope-short", _longrope(512), without=_WITHOUT_SCALING),
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
    _mixtral("experts-stacked", {}, layout=("experts stacked",)),
    _qwen_moe("experts-stacked", {"mlp_only_layers": [1]}, layout=("experts stacked",)),
    _qwen2_moe("plain", {}),
    _qwen2_moe("renormalised", {"norm_topk_prob": True}, without={"norm_topk_prob": False}),
    _qwen2_moe("dense-layer-no-bias", {"mlp_only_layers": [1], "qkv_bias": False}),
    _qwen2_moe("window-lower-layers", _UPPER | {"max_window_layers": 2}, layout=("no layer types",), without=_FULL),
    _qwen2_moe("experts-stacked", {}, layout=("experts stacked",)),
    _qwen3_next("plain", {}),
    _qwen3_next("one-value-head-a-key", {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 5}),
    _qwen3_next("pattern", {"layer_types": None, "num_hidden_layers": 4}, layout=("no layer types",)),
    _qwen3_next("gelu-dense-layer", {"hidden_act": "gelu", "mlp_only_layers": [0]}, without={"hidden_act": "silu"}),
    _qwen3_next("large-eps", {"rms_norm_eps": 0.9}, without={"rms_norm_eps": 0.1}),
    _qwen3_next("bias-tied", {"attention_bias": True, "tie_word_embeddings": True, "norm_topk_prob": False}),
    _qwen3_next("experts-stacked", {}, layout=("experts stacked",)),
    _qwen3_next(
        "partial-rotary",
        {"partial_rotary_factor": 0.8},
        without={"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}},
    ),
    _qwen3_5("plain", {}),
    _qwen3_5("bias-tied", {"attention_bias": True, "tie_word_embeddings": True, "linear_num_value_heads": 2}),
    _qwen3_5("pattern", {"layer_types": None, "num_hidden_layers": 4}, layout=("no layer types",)),
    _qwen3_5_moe("plain", {}),
    _qwen3_5_moe("experts-in-one", {}, layout=("experts stacked",)),
    _v2("plain", {}),
    _v2("no-query-latent-greedy", {"q_lora_rank": None, "topk_method": "greedy", "n_group": None, "topk_group": None}),
    _v2("groups", {"topk_group": 1}, without={"topk_method": "greedy"}),
    _v2("scaling-factor", {}, without={"routed_scaling_factor": 1.0}),
    _v2("mscale", _MSCALE, without=_rope("yarn", factor=4.0)),
    _v2("attention-bias-tied", {"attention_bias": True, "tie_word_embeddings": True}),
    _v3("plain", {}),
    _v3("no-query-latent", {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    _v3("groups", {"num_experts_per_tok": 2}, without={"topk_group": 4}),
    _v3("not-renormalised", {"norm_topk_prob": False}, without={"norm_topk_prob": True}),
    _v3("scaling-factor", {"routed_scaling_factor": 1.7}, without={"routed_scaling_factor": 1.0}),
    _v3("mscale", _MSCALE, without=_rope("yarn", factor=4.0)),
    _v3("mscale-old-spelling", _MSCALE, layout=("old spelling",)),
    _v3("halves", {"rope_interleave": False}, without={"rope_interleave": True}),
    _v3("wide-latent", {"kv_lora_rank": 40, "v_head_dim": 3, "attention_bias": True}),
    _v3("dense", {"first_k_dense_replace": 3}),
    _v3("experts-stacked", {}, layout=("experts stacked",)),
    _minimax_m2("plain", {}),
    _minimax_m2("mqa-tied", {"num_key_value_heads": 1, "tie_word_embeddings": True, "num_experts_per_tok": 1}),
    _minimax_m2("large-eps", {"rms_norm_eps": 0.3}, without={"rms_norm_eps": 1e-5}),
    _minimax_m2(
        "partial-rotary",
        {"rotary_dim": 8},
        without={"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}},
    ),
    _minimax_m2("experts-stacked", {}, layout=("experts stacked",)),
    _oss("plain", {}),
    _oss("windows", {}, without={"sliding_window": 400}),
    _oss("limit", {"swiglu_limit": 0.3}, without={"swiglu_limit": 7.0}),
    _oss("alpha", {"swiglu_alpha": 0.4}, without={"swiglu_alpha": 1.702}),
    _oss("no-attention-bias-tied", {"attention_bias": False, "tie_word_embeddings": True}),
    _oss(
        "rope-not-truncated",
        _rope("yarn", factor=8.0, beta_fast=2.0, beta_slow=0.25, truncate=False),
        without=_rope("yarn", factor=8.0, beta_fast=2.0, beta_slow=0.25),
    ),
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
    _gemma3("plain", {}),
    _gemma3("untied", {"tie_word_embeddings": False}),
    _gemma3("attention-bias", {"attention_bias": True}),
    _gemma3("window-in-the-middle", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    _gemma3("window", {}, without=_NO_WINDOW),
    _gemma3("pattern", {"layer_types": None, "sliding_window_pattern": 2}, layout=("no layer types",)),
    _gemma3("old-spelling", {}, layout=("old spelling",)),
    _gemma3(
        "own-rope-of-windows",
        {},
        without={"rope_parameters": _GEMMA3_ROPES | {"sliding_attention": {"rope_theta": 3_000.0}}},
    ),
    _gemma3("scaling", {}, without={"rope_parameters": _GEMMA3_ROPES | {"full_attention": {"rope_theta": 3_000.0}}}),
    _gemma3("scale", {}, without={"query_pre_attn_scalar": 10}),
    _gemma3("logit-cap", {"final_logit_softcapping": 15.0}, without={"final_logit_softcapping": None}),
    _gemma3("bare", {}, layout=("bare",)),
    _granite("plain", {}),
    _granite("biases-tied", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    _granite("attention-multiplier", {}, without={"attention_multiplier": None}),
    _granite("residual-multiplier", {}, without={"residual_multiplier": None}),
    _granite("embedding-multiplier", {}, without={"embedding_multiplier": None}),
    _granite("logits-scaling", {}, without={"logits_scaling": None}),
    _granite("no-multipliers", {"residual_multiplier": 1.0, "logits_scaling": 1.0, "attention_multiplier": 0.3}),
    _olmo2("plain", {}),
    _olmo2("mha-bias-tied", {"num_key_value_heads": 6, "attention_bias": True, "tie_word_embeddings": True}),
    _olmo2("large-eps", {"rms_norm_eps": 0.3}, without={"rms_norm_eps": 1e-5}),
    _olmo2("one-layer", {"num_hidden_layers": 1}),
    _olmo3("plain", {}),
    _olmo3("window", {}, without=_NO_WINDOW),
    _olmo3("yarn", _OLMO3_YARN, layout=("old spelling",), without={"rope_scaling": None}),
    _olmo3("pattern", {"layer_types": None, "num_hidden_layers": 4}, layout=("no layer types",)),
    _smollm3("plain", {}),
    _smollm3("nope", {}, without=_ALL_TURN),
    _smollm3("interval", {"no_rope_layers": None, "no_rope_layer_interval": 2}, without=_ALL_TURN),
    _smollm3(
        "window-biases",
        {"use_sliding_window": True, "sliding_window": 5, "attention_bias": True, "mlp_bias": True},
        layout=("no layer types",),
        without={"use_sliding_window": False},
    ),
    _glm("plain", {}),
    _glm("no-bias-tied", {"attention_bias": False, "tie_word_embeddings": True}),
    _glm("partial-rotary", {"partial_rotary_factor": 1.0}, without={"rope_parameters": None}),
    _glm4("plain", {}),
    _glm4("no-bias", {"attention_bias": False}),
    _glm4("bare", {"tie_word_embeddings": True}, layout=("bare",)),
    _cohere("plain", {}),
    _cohere("head-norms", {"use_qk_norm": True}),
    _cohere("bias-tied", {"attention_bias": True, "tie_word_embeddings": True}),
    _cohere("logit-scale", {}, without={"logit_scale": None}),
    _cohere("large-eps", {"layer_norm_eps": 0.3}, without={"layer_norm_eps": 1e-5}),
    _cohere2("plain", {}),
    _cohere2("window", {"attention_bias": True}, without={"sliding_window": 7}),
    _cohere2("pattern-tied", {"layer_types": None, "tie_word_embeddings": True, "num_hidden_layers": 4}),
    _starcoder2("plain", {}),
    _starcoder2("no-bias-tied", {"use_bias": False, "tie_word_embeddings": True}),
    _starcoder2("window-6", {"sliding_window": 6}, without=_NO_WINDOW),
    _starcoder2("large-eps", {"norm_epsilon": 0.3}, without={"norm_epsilon": 1e-5}),
    _exaone4("window-plain", {}),
    _exaone4("window", {}, without=_NO_WINDOW),
    _exaone4(
        "no-window-tied", {"sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True}
    ),
    _phi("plain", {}),
    _phi("grouped", {"num_key_value_heads": None, "num_attention_heads": 4}),
    _phi("head-norms", {"qk_layernorm": True}),
    _phi(
        "partial-rotary",
        {"partial_rotary_factor": 0.8},
        without={"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}},
    ),
    _nemotron_h("plain", {}),
    _nemotron_h("biases-a-group-a-head", {"use_bias": True, "mlp_bias": True, "use_conv_bias": False, "n_groups": 6}),
    _nemotron_h("one-group-gelu", {"n_groups": 1, "mlp_hidden_act": "gelu", "conv_kernel": 5}),
    _nemotron_h("large-eps", {"layer_norm_epsilon": 0.9}, without={"layer_norm_epsilon": 0.1}),
    _nemotron_h("pattern", {"layers_block_type": None, "hybrid_override_pattern": "-M*M"}),
    _nemotron_3("plain", {}),
    _nemotron_3("one-group", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "mlp_bias": True}),
    _nemotron_3("silu", {"mlp_hidden_act": "silu"}, without={"mlp_hidden_act": "relu2"}),
    _nemotron_3("not-renormalised", {"norm_topk_prob": False}, without={"norm_topk_prob": True}),
    _nemotron_3("scaled", {}, without={"routed_scaling_factor": 1.0}),
    _nemotron_3("groups", {}, without={"topk_group": 4}),
    _nemotron_3("sharded", {}, layout=("sharded",)),
    _nemotron_3("experts-stacked", {}, layout=("experts stacked",)),
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
    _llama4("plain", {}),
    _llama4("one-expert-a-token", {"num_experts_per_tok": 1, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    _llama4("every-expert-bias", {"num_experts_per_tok": 5, "attention_bias": True, "no_rope_layers": [1, 1, 1]}),
    _llama4("square-experts", {"intermediate_size": 18}),
    _llama4("dense", {"moe_layers": []}),
    _llama4("window-of-chunks", {"attention_chunk_size": 7}, without={"attention_chunk_size": 400}),
    _llama4("chunks-of-one", {"attention_chunk_size": 1}, without={"attention_chunk_size": 2}),
    _llama4("chunks-nowhere", {"layer_types": ["full_attention"] * 3}, without={"layer_types": None}),
    _llama4("nope", {}, without=_ALL_TURN),
    _llama4("scaled-queries", {}, without={"attn_temperature_tuning": False}),
    _llama4("queries-not-scaled", {"attn_temperature_tuning": False}, without={"attn_temperature_tuning": True}),
    _llama4("spans", {"floor_scale": 4}, without={"floor_scale": 5}),
    _llama4("head-norms", {}, without={"use_qk_norm": False}),
    _llama4("no-head-norms", {"use_qk_norm": False}, without={"use_qk_norm": True}),
    _llama4("large-eps", {"rms_norm_eps": 0.3}, without={"rms_norm_eps": 1e-5}),
    _llama4("rope-llama3", _rope("llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0), without=_THETA),
    _llama4(
        "pattern",
        {
            "moe_layers": None,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": None,
            "no_rope_layer_interval": 2,
            "num_hidden_layers": 4,
        },
        layout=("no layer types",),
    ),
)
