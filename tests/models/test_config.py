"""config.json, read strictly: a config is a model, or it is refused in one line that names the field and the file."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

from models import configs
from models.covered import check_covered
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.models import FAMILIES, Fields, ModelRefused, build, family_of
from ridgeline.core.models.common.decoder import Backbone, SelfAttention
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.families.nemotron_h import MambaMixer, MixtureMixer, MLPMixer
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.gated_delta import DeltaSizes, GatedDeltaRule
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.nonlinearity import ClampedGate
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.query_scale import QueryScale
from ridgeline.core.ops.recurrence import Recurrence, ShortConvolution
from ridgeline.core.ops.rotary import Rope
from ridgeline.core.ops.state_space import StateSpace, StateSpaceSizes
from ridgeline.core.ops.work import CAUSAL, AttentionPattern, sliding_window

CONFIGS = deepcopy(configs.CONFIGS)
"""The configs as they are written: transformers writes into those that other tests give it."""

MISSING = object()


def refusal(values: dict[str, Any]) -> str:
    """What a config is refused with; its source is a/config.json."""
    with pytest.raises(ModelRefused) as caught:
        build(Fields(values, "a/config.json"))
    message = str(caught.value)
    assert message.startswith("a/config.json: ")
    assert len(message.splitlines()) == 1
    assert len(message) < 500
    return message


def built_or_refusal(values: dict[str, Any]) -> Model | str:
    """The model of a config on meta, or what it is refused with."""
    return built_or_refusal_of(Fields(values, "config.json"))


def built_or_refusal_of(fields: Fields) -> Model | str:
    """The same for fields that are looked at later."""
    try:
        return build(fields)
    except ModelRefused as refused:
        return str(refused)


def changed(family: str, **changes: Any) -> dict[str, Any]:
    """A valid config of a family with fields changed, or MISSING."""
    return {name: value for name, value in {**CONFIGS[family], **changes}.items() if value is not MISSING}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": None}, "the config has neither architectures nor model_type"),
        ({"architectures": None, "model_type": 5}, "the config has neither architectures nor model_type"),
        ({"model_type": "unheard"}, "model_type unheard is not supported;"),
        ({"architectures": ["UnheardForCausalLM"]}, "architecture UnheardForCausalLM is not supported;"),
        ({"architectures": ["UnheardForCausalLM"], "model_type": None}, "architecture UnheardForCausalLM is not"),
    ],
)
def test_a_refusal_names_what_the_config_states(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelRefused, match=f"^config.json: {says}"):
        family_of(Fields(values, "config.json"))


def test_every_family_has_a_valid_config() -> None:
    """The configs that the tests below break are whole."""
    check_covered(CONFIGS, FAMILIES, "CONFIGS in tests/models/configs.py")
    check_covered((family for family, _ in LEFT_OUT), FAMILIES, "LEFT_OUT in tests/models/test_config.py")
    for values in CONFIGS.values():
        assert isinstance(build(Fields(values, "config.json")), Model)


NEEDED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip
ABSURD: tuple[Any, ...] = (0, -1, 2.5, True, "8", [8], {}, 10**9, 10**400, float("nan"), float("inf"))


@pytest.mark.parametrize("field", [*NEEDED, "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:12])
def test_a_count_that_is_none(field: str, value: Any) -> None:
    """Zero, negative, fractional, of another type, or absurdly large."""
    assert f"{field} is " in (message := refusal(changed("llama", **{field: value})))
    assert "must be an integer from 1 to " in message


@pytest.mark.parametrize("field", [*NEEDED, "rms_norm_eps"])
@pytest.mark.parametrize("value", [MISSING, None], ids=["absent", "null"])
def test_what_is_needed_and_not_there(field: str, value: Any) -> None:
    """Absent and null are the same."""
    assert f"{field} is missing" in refusal(changed("llama", **{field: value}))


@pytest.mark.parametrize("field", ["n_embd", "n_head", "n_layer", "n_positions", "n_inner", "vocab_size"])
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:12])
def test_a_count_of_gpt2_that_is_none(field: str, value: Any) -> None:
    """GPT-2 spells its counts in its own way."""
    assert f"{field} is " in refusal(changed("gpt2", **{field: value}))


@pytest.mark.parametrize("field", ["rope_theta", "rms_norm_eps"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 10**400, True, "1e4", [1.0], {}], ids=str)
def test_a_number_that_is_none(field: str, value: Any) -> None:
    """A base or an epsilon must be a finite number above zero."""
    assert f"{field} is " in refusal(changed("llama", **{field: value}))


_SCALED = {"rope_type": "default", "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1}

CASES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("llama", {"num_attention_heads": 7, "head_dim": MISSING}, "hidden_size 48 does not divide into 7 heads"),
    ("llama", {"num_key_value_heads": 4}, "6 attention heads do not divide over 4 KV heads"),
    ("llama", {"num_key_value_heads": 12}, "6 attention heads do not divide over 12 KV heads"),
    ("llama", {"head_dim": 9}, "rotary dimension is 9 of head_dim 9"),
    ("llama", {"num_attention_heads": 10**6, "num_key_value_heads": 1, "head_dim": 10**6}, "head_dim 1000000"),
    ("llama", {"hidden_act": "sigmoid"}, "hidden_act 'sigmoid' is not supported"),
    ("llama", {"hidden_act": 3}, "hidden_act is 3"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ("llama", {"attention_bias": 1}, "attention_bias is 1"),
    ("llama", {"mlp_bias": []}, "mlp_bias is []"),
    ("llama", {"torch_dtype": "int4"}, "'int4'"),
    ("llama", {"torch_dtype": 16}, "'16'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    ("llama", {"quantization_config": {"quant_method": "aqlm"}}, "quantized by 'aqlm' are not supported; fp8"),
    ("llama", {"quantization_config": "awq"}, "quantization_config is 'awq'"),
    ("llama", {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "rope scaling 'ntk' is not supported"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "short_factor is missing"),
    ("llama", {"rope_scaling": {"type": 4}}, "rope_scaling: type is 4"),
    ("llama", {"rope_scaling": 4}, "rope_scaling is 4"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling: factor is 0"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 1e-320}}, "frequencies that are not finite"),
    ("llama", {"rope_scaling": {"factor": 4.0}}, "factor = 4.0 is not supported"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "truncate": True}}, "truncate = True"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": "x"}}, "mscale is 'x'"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "alpha": 0.7}}, "alpha = 0.7 is not supported"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate is 1"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1.0}, "rope_theta 1"),
    ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}, "rope_scaling": None}, "full_attention"),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
    ("mistral", {"sliding_window": "4096"}, "sliding_window is '4096'"),
    ("mistral", {"num_key_value_heads": None}, "num_key_value_heads is missing"),
    ("ministral3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "llama_4_scaling_beta is missing"),
    ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": -1}}, "original_max_position_embeddings is missing"),
    ("ministral3", {"rope_parameters": _SCALED | {"llama_4_scaling_beta": -1}}, "llama_4_scaling_beta is -1"),
    ("ministral3", {"rope_parameters": _SCALED | {"alpha": 2}}, "alpha = 2 is not supported"),
    ("mistral", {"rope_parameters": _SCALED}, "llama_4_scaling_beta = 0.1 is not supported"),
    ("qwen2", {"use_sliding_window": "true"}, "use_sliding_window is 'true'"),
    ("qwen2", {"max_window_layers": MISSING}, "max_window_layers is missing"),
    ("qwen2", {"max_window_layers": "1"}, "max_window_layers is '1'"),
    ("qwen2", {"max_window_layers": -1}, "max_window_layers is -1"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types must have 2 entries"),
    ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types must have 2 entries"),
    ("qwen2", {"layer_types": "full_attention"}, "layer_types must have 2 entries"),
    ("qwen3", {"layer_types": 2}, "layer_types must have 2 entries"),
    ("qwen3", {"layer_types": [["full_attention"], {}]}, "layer_types must have 2 entries"),
    ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5"),
    ("phi3", {"partial_rotary_factor": 1e308}, "partial_rotary_factor 1e+308"),
    ("phi3", {"partial_rotary_factor": 0.1}, "rotary dimension is 1 of head_dim 10"),
    ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "short_factor is missing"),
    (
        "phi3",
        {"rope_scaling": {"type": "su", "short_factor": [1.0, 0], "long_factor": [1.0]}},
        "short_factor is [1.0, 0]",
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "short_factor has 1 numbers; partial_rotary_factor x head_dim is 4, which needs 2",
    ),
    ("phi3", {"original_max_position_embeddings": 1}, "attention_factor must be given"),
    ("phi3", {"full_attn_mod": 2}, "full_attn_mod = 2 is not supported"),
    ("phi3", {"lm_head_bias": True}, "lm_head_bias = True is not supported"),
    ("llama", {"rope_scaling": {"type": "proportional"}}, "rope scaling 'proportional'"),
    ("llama", {"rope_scaling": {"type": "dynamic"}}, "factor is missing"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not supported"),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    ("gemma3_text", {"rope_local_base_freq": -1}, "rope_local_base_freq is -1"),
    (
        "gemma3_text",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0}},
        "rope_parameters: factor = 8.0 is not",
    ),
    ("olmo3", {"rope_local_base_freq": 10_000.0}, "rope_local_base_freq = 10000.0 is not supported"),
    ("gemma3_text", {"attn_logit_softcapping": 9.0}, "attn_logit_softcapping = 9.0 is not supported"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier is 0"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must list 0 or 1 for each of 2 layers"),
    ("glm", {"partial_rotary_factor": 2.0}, "partial_rotary_factor 2"),
    ("cohere2", {"use_parallel_block": False}, "use_parallel_block = False is not supported"),
    ("cohere2", {"rotary_pct": 0.5}, "rotary_pct = 0.5 is not supported"),
    ("cohere2", {"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi' is not supported"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type = 'rms_norm' is not supported"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern is 'LLLG'"),
    ("phi", {"tie_word_embeddings": True}, "tie_word_embeddings = True is not supported"),
    ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok 6 is more than num_local_experts 5"),
    ("mixtral", {"num_local_experts": 10**6}, "num_local_experts is 1000000"),
    ("mixtral", {"num_local_experts": MISSING}, "num_local_experts is missing"),
    ("qwen3_moe", {"num_experts_per_tok": 8}, "num_experts_per_tok 8 is more than num_experts 7"),
    ("qwen2_moe", {"num_experts_per_tok": 8}, "num_experts_per_tok 8 is more than num_experts 7"),
    ("qwen2_moe", {"shared_expert_intermediate_size": MISSING}, "shared_expert_intermediate_size is missing"),
    ("qwen3_next", {"linear_num_value_heads": 3}, "3 value heads (linear_num_value_heads) do not divide over 2 key"),
    ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1; it must be at least 2"),
    ("qwen3_next", {"layer_types": ["full_attention", "mamba"]}, "layer_types must have 2 entries, each one of full_"),
    ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate = false is not supported"),
    ("qwen3_5_text", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype = 'bfloat16' is not supported"),
    ("deepseek_v2", {"num_experts_per_tok": 13}, "num_experts_per_tok 13 is more than n_routed_experts 12"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob = True is not supported"),
    (
        "deepseek_v3",
        {"num_experts_per_tok": 7},
        "num_experts_per_tok 7 is more than the experts in 2 groups (topk_group)",
    ),
    ("deepseek_v3", {"n_group": 5}, "n_group 5 must divide 12 experts, and topk_group 2 must be"),
    ("deepseek_v3", {"n_group": 12, "topk_group": 4}, "n_group 12 leaves one expert per group"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
    ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads must equal num_attention_heads"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2 is not supported"),
    ("deepseek_v3", {"qk_rope_head_dim": 7}, "rotary dimension is 7"),
    ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm = False is not supported; True is"),
    ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported; sigmoid is"),
    ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list has a type other than 1 (full attention)"),
    ("llama4_text", {"attention_chunk_size": None}, "attention_chunk_size is null, but there are layers with chunked"),
    ("llama4_text", {"attention_chunk_size": 0}, "attention_chunk_size is 0"),
    ("llama4_text", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types must have 2 entries"),
    ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers must list 0 or 1 for each of 2 layers"),
    ("llama4_text", {"moe_layers": ["1"]}, "moe_layers is ['1']"),
    ("llama4_text", {"num_experts_per_tok": 6}, "num_experts_per_tok 6 is more than num_local_experts 5"),
    ("llama4_text", {"floor_scale": 0}, "floor_scale is 0"),
    ("llama4_text", {"attn_scale": -1}, "attn_scale is -1"),
    ("llama4_text", {"attn_temperature_tuning": "yes"}, "attn_temperature_tuning is 'yes'"),
    (
        "llama4_text",
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        "a rope with attention_factor 1.06931 is not supported together with use_qk_norm",
    ),
    ("gpt_oss", {"num_experts_per_tok": 6}, "num_experts_per_tok 6 is more than num_local_experts 5"),
    ("gpt_oss", {"swiglu_limit": -1}, "swiglu_limit is -1"),
    ("qwen3_moe", {"num_experts": 0}, "num_experts is 0"),
    ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
    ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob is 1"),
    ("qwen3_moe", {"mlp_only_layers": [0.5]}, "mlp_only_layers is [0.5]"),
    ("qwen3_moe", {"mlp_only_layers": "0"}, "mlp_only_layers is '0'"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    ("gemma2", {"hidden_activation": "sigmoid"}, "hidden_activation 'sigmoid' is not supported"),
    ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not supported"),
    ("nemotron_h", {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern 'MX' (layers_block_type) must list"),
    ("nemotron_h", {"moe_latent_size": 12}, "moe_latent_size = 12 is not supported; missing: experts that read and"),
    ("nemotron_h", {"topk_group": 5}, "n_group 4 must divide 12 experts, and topk_group 5 must be"),
    (
        "nemotron_h",
        {"num_experts_per_tok": 7},
        "num_experts_per_tok 7 is more than the experts in 2 groups (topk_group)",
    ),
    ("nemotron_h", {"n_group": 12, "topk_group": 3}, "n_group 12 leaves one expert per group"),
    ("nemotron_h", {"moe_shared_expert_intermediate_size": 0}, "moe_shared_expert_intermediate_size is 0"),
    ("nemotron_h", {"n_groups": 4}, "6 heads (mamba_num_heads) do not divide over 4 groups (n_groups)"),
    ("nemotron_h", {"tie_word_embeddings": True}, "tie_word_embeddings = True is not supported"),
    ("gpt2", {"n_head": 5}, "n_embd 36 does not divide into 5 heads"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = false"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True"),
    ("gpt2", {"activation_function": "sigmoid"}, "activation_function 'sigmoid' is not supported"),
    ("llama", {"architectures": ["MambaForCausalLM"]}, "is a class of model_type mamba"),
    ("llama", {"architectures": ["two\nlines"]}, "architecture two lines is not supported"),
    ("llama", {"architectures": None, "model_type": "xlama"}, "model_type xlama is not supported"),
    ("llama", {"architectures": [], "model_type": MISSING}, "has neither architectures nor model_type"),
)


@pytest.mark.parametrize(("family", "changes", "named"), CASES, ids=[f"{c[0]}-{c[2][:40]}" for c in CASES])
def test_what_is_refused_is_named(family: str, changes: dict[str, Any], named: str) -> None:
    """The field, and what is wrong with it."""
    assert named in refusal(changed(family, **changes))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[1, 2]", "is not a JSON object"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is not valid JSON"),
    ],
)
def test_a_file_that_holds_no_config(content: bytes, named: str, tmp_path: Path) -> None:
    """One line with the file's path, whatever is in it."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelRefused) as caught:
        read_config(str(tmp_path))
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_without_a_config_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Both are refused by name."""
    with pytest.raises(ModelRefused, match=r"it has no config\.json"):
        load_model(str(tmp_path))
    with pytest.raises(ModelRefused, match="no such folder: "):
        load_model(str(tmp_path / "nothing"))


UNBUILT = {
    "attn_logit_softcapping": 30.0, "final_logit_softcapping": 20, "residual_multiplier": 0.22, "logits_scaling": 8.0,
    "query_pre_attn_scalar": 256, "attention_sinks": True, "clip_qkv": 8.0, "use_mup": True, "qk_layernorm": True,
    "alibi": True, "no_rope_layers": [1, 1, 0], "n_shared_experts": 1, "parallel_residual": True, "swiglu_limit": 7.0,
    "attention_chunk_size": 8192, "output_multiplier_scale": 0.5, "_sliding_window_pattern": 6, "is_causal": False,
    "use_rope": False,
}  # fmt: skip
HARMLESS = {
    "attn_logit_softcapping": None, "residual_multiplier": 1.0, "logits_scaling": 1, "use_mup": False, "clip_qkv": 0,
    "no_rope_layers": [], "attention_dropout": 0.1, "resid_pdrop": 0.1, "_attn_implementation": "sdpa",
    "router_jitter_noise": 0.1, "unsloth_version": "2024.9", "image_token_index": 7, "num_beams": 4,
    "eos_token_id": [1, 2], "output_attentions": True, "use_flash_attention_2": True, "initializer_range": 0.02,
    "pretraining_tp": 2,
}  # fmt: skip


@pytest.mark.parametrize("field", UNBUILT)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_a_field_that_nobody_reads_and_that_changes_the_result(family: str, field: str) -> None:
    """A soft cap in a Llama's config was ignored; what a name like it asks for is refused by that name."""
    message = refusal(changed(family, **{field: UNBUILT[field]}))
    assert f"{field} = {UNBUILT[field]!r} is not supported" in message


@pytest.mark.parametrize("family", CONFIGS)
def test_fields_that_change_nothing(family: str) -> None:
    """Bookkeeping, training's and generation's fields, and those set to what leaves the result alone, pass unnamed."""
    fields = Fields(changed(family, **HARMLESS), "config.json")
    build(fields)
    assert fields.unread() == []


def test_a_field_that_nobody_knows_is_named_and_no_more() -> None:
    """A fine-tune's own note refuses nothing; only a part for images or sound is one that the model here lacks."""
    unknown = {
        "trained_by": "someone",
        "vision_config": {"depth": 3},
        "audio_config": {"depth": 2},
        "js_config": {"a": 1},
    }
    fields = Fields(changed("llama", **unknown), "config.json")
    build(fields)
    assert fields.unread() == list(unknown)
    assert fields.other_inputs() == ["vision_config", "audio_config"]


def test_real_configs_have_nothing_unread(data_dir: Path) -> None:
    """Those of releases and of the catalogue that are built name nothing but another half."""
    built = 0
    for path in sorted([*(data_dir / "configs").rglob("config*.json"), *CATALOGUE.glob("*.json")]):
        values = Fields.read(path).values
        layers = {name: min(3, values[name]) for name in ("num_hidden_layers", "n_layer") if name in values}
        fields = Fields({**values, **layers}, str(path))
        if not isinstance(built_or_refusal_of(fields), str):
            built += 1
            assert fields.unread() == [name for name in ("vision_config",) if name in values], path
    assert built >= 40


@pytest.mark.parametrize(("said", "scaled"), [(4, True), (0, False), (False, False)])
def test_llama_4s_first_configs_say_how_much_for_whether(said: object, scaled: bool) -> None:
    """`attn_temperature_tuning` was 4 before it was true."""
    model = build(Fields(changed("llama4_text", attn_temperature_tuning=said), "config.json"))
    layers = model.get_submodule("model").layers
    assert [layer.self_attn.scaled_queries is not None for layer in layers] == [False, scaled]


def test_llama_4_without_mixtures_needs_no_experts() -> None:
    """As Llama Guard 4 is converted: a number of experts of 0."""
    values = changed("llama4_text", moe_layers=[], num_local_experts=0, interleave_moe_layer_step=0)
    assert not any(isinstance(op, Experts) for _, op in build(Fields(values, "config.json")).ops())


WORDS = ("yarn", "llama3", "linear", "default", "sliding_attention", "full_attention", "silu", "bf16")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, 3, 8, 64, -1, 10**7, 10**9, 2**63, 10**400])
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SCALING_FIELDS = (
    "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "beta_fast", "beta_slow", "attention_factor", "truncate", "rope_theta", "partial_rotary_factor", "mscale",
)  # fmt: skip
SCALINGS = st.dictionaries(st.sampled_from(SCALING_FIELDS), JSON)
EXTRA = ("rope_scaling", "rope_parameters", "quantization_config", "layer_types", "sliding_window", "head_dim", "dtype")


@settings(max_examples=250)
@given(data=st.data())
def test_any_config_is_a_model_or_refused(data: st.DataObject) -> None:
    """A valid config with fields changed, removed and added never fails in another way, nor takes the machine down."""
    values: dict[str, Any] = dict(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))])
    names = data.draw(st.lists(st.sampled_from([*sorted(values), *EXTRA]), min_size=1, max_size=3, unique=True))
    for name in names:
        if data.draw(st.booleans()):
            values.pop(name, None)
        else:
            values[name] = data.draw(SCALINGS if name.startswith("rope_") and name != "rope_theta" else JSON)
    for name in ("num_hidden_layers", "n_layer"):
        if isinstance(values.get(name), int):
            values[name] = min(values[name], 20)  # 2000 are allowed, and take a second
    built = built_or_refusal(json.loads(json.dumps(values)))
    if isinstance(built, str):
        assert len(built.splitlines()) == 1
    else:
        assert all(parameter.is_meta for parameter in built.parameters())


UNREAD = {"architectures", "model_type", "torch_dtype"}
LEFT_OUT = [(family, field) for family, values in CONFIGS.items() for field in values if field not in UNREAD]


@pytest.mark.parametrize(("family", "field"), LEFT_OUT)
def test_a_field_left_out_means_what_transformers_takes_it_for(family: str, field: str, tmp_path: Path) -> None:
    """Or it is refused: never another default than the reference's."""
    values = changed(family, **{field: MISSING})
    ours = built_or_refusal(values)
    if isinstance(ours, str):
        assert field in ours
        return
    (tmp_path / "config.json").write_text(json.dumps(values))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert ours.context == theirs.max_position_embeddings
    assert ours.vocabulary == theirs.vocab_size
    assert ours.tied == theirs.tie_word_embeddings
    if family == "nemotron_h":
        check_mixers(ours, theirs)
        return
    if any(isinstance(op, Recurrence) for _, op in ours.ops()):
        check_recurrent(ours, theirs)
        return
    assert [op.attention_pattern for _, op in ours.ops() if isinstance(op, Attention)] == transformers_reaches(theirs)
    assert len(ours.kv_specs) == theirs.num_hidden_layers
    if family != "gpt2":
        check_decoder(ours, theirs)
    else:
        block = ours.get_submodule("transformer.h.0")
        assert block.ln_1.eps == theirs.layer_norm_epsilon
        assert block.mlp.fc.width == (theirs.n_inner or 4 * theirs.n_embd)
        assert block.mlp.fc.activation == theirs.activation_function


@pytest.mark.parametrize(("family", "field"), LEFT_OUT)
def test_a_field_of_no_type_is_refused_or_changes_nothing(family: str, field: str) -> None:
    """A list of text is what no field wants: the refusal names the field, or the family does not read it."""
    built = built_or_refusal(changed(family, **{field: ["absurd"]}))
    if isinstance(built, str):
        assert field in built
        assert len(built.splitlines()) == 1
        return
    plain = built_or_refusal(changed(family))
    assert isinstance(plain, Model)
    assert [(path, op.signature()) for path, op in built.ops()] == [(path, op.signature()) for path, op in plain.ops()]
    assert (built.context, built.ties, built.attention_patterns) == (
        plain.context,
        plain.ties,
        plain.attention_patterns,
    )


EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")


def check_decoder(ours: Model, theirs: Any) -> None:
    """Assert what Llama's descendants share with transformers' reading of a config."""
    trunk = ours.get_submodule("model")
    block = trunk.layers[-1]
    if theirs.model_type.startswith("deepseek"):
        check_latents(ours, theirs)
        return
    assert trunk.norm.eps == next(getattr(theirs, name) for name in EPSILONS if hasattr(theirs, name))
    check_rope(trunk.rotary.rope, theirs.rope_parameters.get("full_attention", theirs.rope_parameters), ours, theirs)
    if trunk.local_rotary is not None:
        check_rope(trunk.local_rotary.rope, theirs.rope_parameters["sliding_attention"], ours, theirs)
    assert ours.kv_specs[0].heads == theirs.num_key_value_heads
    if theirs.model_type != "qwen3":  # whose head_dim of 128 does not depend on the hidden size; loading would refuse
        assert ours.kv_specs[0].k_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // 6)
    check_multipliers(ours, theirs)
    bias = block.self_attn.qkv.matrices[0].bias is not None
    biased = getattr(theirs, "qkv_bias", theirs.model_type in ("qwen2", "phi"))
    own_key = f"teach check_decoder which key of {theirs.model_type} gives"
    assert bias == getattr(theirs, "attention_bias", getattr(theirs, "use_bias", biased)), (
        f"{own_key} biases of q, k, v"
    )
    if theirs.model_type == "llama4_text":
        mixtures = {layer for layer, own in enumerate(trunk.layers) if hasattr(own.mlp, "experts")}
        assert mixtures == set(theirs.moe_layers)
        assert trunk.layers[0].mlp.down_proj.matrix.inputs == theirs.intermediate_size_mlp or 0 in mixtures
    experts = getattr(block.mlp, "experts", None)
    if experts is None:
        act = "hidden_activation" if theirs.model_type.startswith("gemma") else "hidden_act"
        first = getattr(block.mlp, "gate_up", None) or block.mlp.fc
        assert first.activation == getattr(theirs, act)
        biased = first.matrices[0].bias is not None
        assert biased == getattr(theirs, "mlp_bias", bias and not first.gated), f"{own_key} the MLP biases"
    else:
        renormalises = getattr(theirs, "norm_topk_prob", theirs.model_type != "llama4_text")
        assert block.mlp.gate.rule.renormalise == renormalises
        assert block.mlp.gate.rule.scale == getattr(theirs, "routed_scaling_factor", 1.0)
        alpha = getattr(theirs, "swiglu_alpha", None)
        assert experts.activation == (ClampedGate(alpha, theirs.swiglu_limit) if alpha else theirs.hidden_act)


def check_latents(ours: Model, theirs: Any) -> None:
    """Assert what is DeepSeek's own: what is kept, how queries are made, how experts are picked."""
    layer, trunk = ours.get_submodule("model.layers.1"), ours.get_submodule("model")
    attention, rule, rope = layer.self_attn, layer.mlp.gate.rule, trunk.rotary.rope
    assert trunk.norm.eps == theirs.rms_norm_eps
    assert (rope.theta, rope.dim) == (theirs.rope_parameters["rope_theta"], theirs.qk_rope_head_dim)
    if theirs.rope_parameters["rope_type"] != "default":
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[theirs.rope_parameters["rope_type"]](theirs)
        assert torch.allclose(rope.frequencies(), frequencies)
        assert rope.magnitude == pytest.approx(magnitude)
    assert rope.interleaved == getattr(theirs, "rope_interleave", True)
    assert attention.attend.scale == pytest.approx(yarn_apply_mscale(theirs.rope_parameters, theirs.qk_head_dim**-0.5))
    rank = None if attention.q_b_proj is None else attention.q_b_proj.matrix.inputs
    assert rank == theirs.q_lora_rank
    assert ours.kv_specs[0].k_dim == theirs.kv_lora_rank + theirs.qk_rope_head_dim
    grouped = getattr(theirs, "topk_method", "noaux_tc") != "greedy"
    assert (rule.groups, rule.top_groups) == ((theirs.n_group, theirs.topk_group) if grouped else (1, 1))
    assert rule.renormalise == theirs.norm_topk_prob
    assert rule.scale == theirs.routed_scaling_factor
    assert layer.mlp.experts.activation == theirs.hidden_act


def check_recurrent(ours: Model, theirs: Any) -> None:
    """Assert which layers are recurrent, what they keep, and what is beside them."""
    trunk, ops = ours.get_submodule("model"), [op for _, op in ours.ops()]
    linear = [kind == "linear_attention" for kind in theirs.layer_types]
    assert [block.attention_name == "linear_attn" for block in trunk.layers] == linear
    keys, values = theirs.linear_num_key_heads, theirs.linear_num_value_heads
    sizes = DeltaSizes(keys, values // keys, theirs.linear_key_head_dim, theirs.linear_value_head_dim)
    assert [op.sizes for op in ops if isinstance(op, GatedDeltaRule)] == [sizes] * sum(linear)
    kernels = {(op.kernel_size, op.activation) for op in ops if isinstance(op, ShortConvolution)}
    assert kernels == {(theirs.linear_conv_kernel_dim, theirs.hidden_act)}
    spec = KVSpec(theirs.num_key_value_heads, theirs.head_dim, theirs.head_dim, CAUSAL, torch.float32)
    attention = [op for op in ops if isinstance(op, Attention)]
    assert [op.spec for op in attention] == [spec] * (len(linear) - sum(linear))
    rope, parameters = trunk.rotary.rope, theirs.rope_parameters
    assert (rope.theta, rope.scaling) == (parameters["rope_theta"], None)
    assert rope.dim == int(theirs.head_dim * parameters["partial_rotary_factor"])
    assert {op.eps for op in ops if isinstance(op, RMSNorm)} == {theirs.rms_norm_eps}
    biases = {block.self_attn.o_proj.matrix.bias is not None for block in trunk.layers if hasattr(block, "self_attn")}
    assert biases <= {theirs.attention_bias}
    mixtures = [layer for layer, block in enumerate(trunk.layers) if hasattr(block.mlp, "experts")]
    if not hasattr(theirs, "num_experts"):
        assert not mixtures
        return
    step, dense = getattr(theirs, "decoder_sparse_step", 1), getattr(theirs, "mlp_only_layers", [])
    assert mixtures == [layer for layer in range(len(linear)) if (layer + 1) % step == 0 and layer not in dense]
    for layer in mixtures:
        mixture = trunk.layers[layer].mlp
        assert mixture.gate.rule.renormalise == getattr(theirs, "norm_topk_prob", True)
        assert mixture.shared_experts.down_proj.matrix.inputs == theirs.shared_expert_intermediate_size


def check_mixers(ours: Model, theirs: Any) -> None:
    """Assert which layer is what, and the sizes of each sort."""
    trunk, ops = ours.get_submodule("model"), [op for _, op in ours.ops()]
    names = {MambaMixer: "linear_attention", SelfAttention: "full_attention", MLPMixer: "mlp", MixtureMixer: "moe"}
    assert [names[type(block.mixer)] for block in trunk.layers] == theirs.layers_block_type
    assert trunk.rotary is None
    groups, heads = theirs.n_groups, theirs.mamba_num_heads
    sizes = StateSpaceSizes(groups, heads // groups, theirs.mamba_head_dim, theirs.ssm_state_size)
    (scan,) = (op for op in ops if isinstance(op, StateSpace))
    assert (scan.sizes, scan.least) == (sizes, theirs.time_step_min)
    (convolution,) = (op for op in ops if isinstance(op, ShortConvolution))
    assert (convolution.kernel_size, convolution.activation) == (theirs.conv_kernel, theirs.mamba_hidden_act)
    assert (convolution.bias is not None) == theirs.use_conv_bias
    (attention,) = (op for op in ops if isinstance(op, Attention))
    spec = KVSpec(theirs.num_key_value_heads, theirs.head_dim, theirs.head_dim, CAUSAL, torch.float32)
    assert (attention.spec, attention.rope) == (spec, None)
    mamba, _, mlp, mixture = (block.mixer for block in trunk.layers)
    assert (mamba.out_proj.matrix.bias is not None) == theirs.use_bias
    assert (mlp.down_proj.matrix.bias is not None) == theirs.mlp_bias
    assert (mlp.fc.width, mlp.fc.activation) == (theirs.intermediate_size, theirs.mlp_hidden_act)
    rule, experts, shared = mixture.gate.rule, mixture.experts, mixture.shared_experts
    assert (experts.count, experts.width) == (theirs.n_routed_experts, theirs.moe_intermediate_size)
    assert (rule.groups, rule.top_groups) == (theirs.n_group, theirs.topk_group)
    assert rule.active == theirs.num_experts_per_tok
    assert (rule.renormalise, rule.scale) == (theirs.norm_topk_prob, theirs.routed_scaling_factor)
    assert (shared.fc.width, shared.fc.activation) == (
        theirs.moe_shared_expert_intermediate_size,
        theirs.mlp_hidden_act,
    )
    assert (shared.down_proj.matrix.bias is not None) == theirs.mlp_bias
    assert (experts.activation, experts.gated) == (theirs.mlp_hidden_act, False)
    assert {op.eps for op in ops if isinstance(op, RMSNorm)} == {theirs.layer_norm_epsilon}


def check_rope(rope: Rope, theirs: Mapping[str, Any], ours: Model, config: Any) -> None:
    """Assert base, entries that turn, and the frequencies and magnitude of a scaling."""
    assert rope.theta == theirs["rope_theta"]
    assert rope.dim == int(ours.kv_specs[0].k_dim * theirs.get("partial_rotary_factor", 1.0))
    kind = theirs["rope_type"]
    if kind not in ("default", "longrope"):  # of which transformers chooses when it runs
        layer = "full_attention" if "full_attention" in config.rope_parameters else None
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, layer_type=layer)
        assert torch.allclose(rope.frequencies(), frequencies)
        assert rope.magnitude == pytest.approx(magnitude)


def check_multipliers(ours: Model, theirs: Any) -> None:
    """Assert scales of scores, of logits, of embeddings, of what is added; soft caps; and which layers turn."""
    attention = [op for _, op in ours.ops() if isinstance(op, Attention)]
    dim = ours.kv_specs[0].k_dim
    scale = getattr(theirs, "attention_multiplier", getattr(theirs, "query_pre_attn_scalar", dim) ** -0.5)
    assert all(op.scale == pytest.approx(scale) for op in attention)
    assert {op.softcap for op in attention} == {getattr(theirs, "attn_logit_softcapping", None)}
    assert ours.lm_head.softcap == getattr(theirs, "final_logit_softcapping", None)
    scaled = getattr(theirs, "logit_scale", 1 / getattr(theirs, "logits_scaling", 1))
    assert ours.lm_head.multiplier == pytest.approx(scaled)
    trunk = ours.get_submodule("model")
    assert trunk.norm.multiplier == getattr(theirs, "residual_multiplier", 1)
    check_query_scale(trunk, theirs)
    if hasattr(theirs, "embedding_multiplier"):
        assert trunk.embed_tokens.scale == theirs.embedding_multiplier
    assert [op.rope is not None for op in attention] == transformers_turns(theirs)
    assert (trunk.layers[0].self_attn.q_norm is not None) == (
        theirs.model_type in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3", "exaone4", "minimax_m2")
        or getattr(theirs, "use_qk_norm", getattr(theirs, "qk_layernorm", False))
    )


def check_query_scale(trunk: Backbone, theirs: Any) -> None:
    """Assert which layers scale their queries by position, and by how much."""
    expected, scaled = None, [False] * len(trunk.layers)
    if theirs.model_type == "llama4_text" and theirs.attn_temperature_tuning:
        expected = QueryScale(theirs.attn_scale, theirs.floor_scale, offset=1)
        scaled = [not turns for turns in theirs.no_rope_layers]
    elif theirs.model_type == "ministral3":
        rope = theirs.rope_parameters
        expected = QueryScale(rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"])
        scaled = [True] * len(trunk.layers)
    assert (trunk.query_scale and trunk.query_scale.scale) == expected
    assert [layer.self_attn.scaled_queries is not None for layer in trunk.layers] == scaled


def transformers_turns(config: Any) -> list[bool]:
    """Which layers of transformers' model of a config turn by positions."""
    if config.model_type in ("smollm3", "llama4_text"):
        return [bool(each) for each in config.no_rope_layers]
    if config.model_type in ("cohere2", "exaone4"):
        return [kind == "sliding_attention" for kind in config.layer_types]
    return [True] * config.num_hidden_layers


def transformers_reaches(config: Any) -> list[AttentionPattern]:
    """What each layer of transformers' model of a config reaches."""
    if config.model_type == "llama4_text":
        chunk = AttentionPattern("chunked", config.attention_chunk_size)
        return [chunk if kind == "chunked_attention" else CAUSAL for kind in config.layer_types]
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None or config.model_type == "qwen3_moe":
        return [sliding_window(window)] * config.num_hidden_layers
    return [sliding_window(window) if kind == "sliding_attention" else CAUSAL for kind in kinds]
