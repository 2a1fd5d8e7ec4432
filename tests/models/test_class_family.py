"""The family of a class of transformers: found once, silent, and refused in a line if the class cannot be built."""

import json
import logging
import re
from typing import Any

import pytest
import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

from ridgeline.core.models import Fields, ModelRefused, build, build_to_run, family_of
from ridgeline.core.models.common.fields import DivisionRefused
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.plan.scenario import Deployment, ModelCache
from support.registered_classes import registered_fields

NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 99, "max_position_embeddings": 64,
}  # fmt: skip
ARCEE: dict[str, Any] = {
    "architectures": ["ArceeForCausalLM"], "model_type": "arcee", "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 99,
}  # fmt: skip
GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "hidden_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "intermediate_size": 96, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "vocab_size": 99, "pad_token_id": None,
}  # fmt: skip
MIMO: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash", "hidden_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 12, "v_head_dim": 8,
    "intermediate_size": 96, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 100, "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 99, "num_experts": 4,
    "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1,
}  # fmt: skip


def test_the_registry_falls_back_to_the_class() -> None:
    config = Fields(NEOX, "config.json")
    family = family_of(config)
    assert (family.architecture, family.model_type, family.kind) == ("GPTNeoXForCausalLM", "gpt_neox", "decoder")
    assert build(config).traced_from.startswith("transformers 5.")


def test_a_family_is_found_once_for_a_config() -> None:
    """Check that a command, which asks a dozen times, builds and probes no small copy again."""
    config = Fields(NEOX, "config.json")
    assert family_of(config) is family_of(config)
    assert family_of(config) is not family_of(Fields(NEOX, "config.json"))


def test_the_code_of_a_class_moves_the_bytes_of_its_dtype() -> None:
    """Compare a cache that has priced another dtype, and so traced the class, with a fresh one."""
    config, device = Fields(NEOX, "config.json"), load_device("h100-sxm")
    used, setups = ModelCache(config), [Deployment(device, weights=each) for each in ("fp32", "bf16", "int4")]
    work = Work.of([StepSegment(40, 40)])
    for setup in setups:
        assert used.scenario(setup).price.step(work) == ModelCache(config).scenario(setup).price.step(work)
    wide, narrow, packed = (used.scenario(setup).price.step(work).activation_bytes for setup in setups)
    assert wide == pytest.approx(2 * narrow, rel=0.2)
    assert packed == wide, "everything but the matrices has the dtype of the config"


def test_a_class_that_cannot_be_constructed_is_refused_in_a_line() -> None:
    with pytest.raises(ModelRefused) as refused:
        build(Fields({**NEOX, "hidden_act": "nosuch"}, "config.json"))
    assert "config.json: GPTNeoXForCausalLM of transformers 5." in str(refused.value)
    problem = "it cannot be constructed from this config (hidden_act is 'nosuch', which transformers does not know)"
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_warns_about_a_config(recwarn: pytest.WarningsRecorder) -> None:
    """Check torch, which warns about sizes of 0, and transformers, which warns about names that it changed."""
    bloom = {"model_type": "bloom", "hidden_size": 32, "n_head": 4, "n_layer": 1, "vocab_size": 99}
    build(Fields({**bloom, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "config.json"))
    with pytest.raises(ModelRefused, match="cannot be traced"):
        build(Fields({**NEOX, "intermediate_size": 0}, "config.json"))
    assert not [str(warning.message) for warning in recwarn]


def test_an_unknown_value_in_a_section_is_named_with_its_section() -> None:
    config = {**NEOX, "rope_scaling": {"rope_type": "spiral", "factor": 2.0}}
    with pytest.raises(ModelRefused, match=r"\(rope_parameters.rope_type is 'spiral', which transformers does not kno"):
        build(Fields(config, "config.json"))


def test_an_encoder_that_cannot_be_constructed_is_refused_in_a_line() -> None:
    config = {"architectures": ["DistilBertModel"], "model_type": "distilbert", "activation": "nosuch"}
    problem = "DistilBertModel of transformers 5.* cannot be constructed from this config .KeyError: "
    with pytest.raises(ModelRefused, match=problem):
        build(Fields(config, "config.json"))


def test_an_encoder_is_not_divided() -> None:
    """Check that the refusal names the option of a plan that fits."""
    with pytest.raises(DivisionRefused, match=r"config\.json: \w+ is an encoder of transformers, .* give --devices 1"):
        build(Fields({"model_type": "distilbert"}, "config.json"), shard=Shard(0, 2))


def test_heads_of_a_class_that_do_not_divide() -> None:
    with pytest.raises(DivisionRefused, match=r"config\.json: 4 heads do not divide over 8 devices; .* 1, 2 or 4"):
        build(Fields(ARCEE, "config.json"), shard=Shard(0, 8))


def test_a_class_whose_ranks_differ_from_it_runs_on_one_device() -> None:
    """Take a class that subtracts the attention of one half of the heads from that of the other."""
    config = {**ARCEE, "architectures": ["DiffLlamaForCausalLM"], "model_type": "diffllama"}
    assert build(Fields(config, "config.json"), shard=Shard(0, 2)).priced_only == ""
    build_to_run(Fields(config, "config.json"))
    with pytest.raises(DivisionRefused, match=r"because the logits of two ranks differ .* give --devices 1$"):
        build_to_run(Fields(config, "config.json"), shard=Shard(0, 2))


def test_experts_of_a_class_s_code_are_not_divided_alone() -> None:
    """Take a class some of whose experts return their input, for data-parallel attention."""
    assert build(registered_fields("longcat_flash"), shard=Shard(0, 2)).traced_from
    with pytest.raises(DivisionRefused, match=r"config\.json: its experts run .* leave out --enable-dp-attention$"):
        build(registered_fields("longcat_flash"), experts=Shard(0, 2))


def test_what_ranks_hold_whole_is_named() -> None:
    """Take a class that computes the size of a head from the number of heads, and a vocabulary that is odd or even."""
    model = build(Fields({**NEOX, "vocab_size": 98}, "config.json"), shard=Shard(0, 2))
    assert re.fullmatch(r"GPTNeoXAttention \(\d\d%\)", model.undivided)
    model = build(Fields(NEOX, "config.json"), shard=Shard(0, 2))
    assert re.fullmatch(r"GPTNeoXModel \(\d\d?%\) and GPTNeoXAttention \(\d\d%\)", model.undivided)
    assert build(Fields(NEOX, "config.json")).undivided == ""


def test_kv_heads_that_ranks_share_must_be_single() -> None:
    """Take a class that has twice the KV heads of its config in the layers with a window: 4 ranks would share 2."""
    config = Fields(MIMO, "config.json")
    build_to_run(config, shard=Shard(0, 2))
    with pytest.raises(DivisionRefused, match=r"4 KV heads of MiMoV2FlashAttention .* 4 devices.* give --devices 2$"):
        build_to_run(config, shard=Shard(0, 4))
    build_to_run(Fields({**MIMO, "num_key_value_heads": 4}, "config.json"), shard=Shard(0, 4))


def test_tables_that_would_fill_the_memory_are_refused() -> None:
    """Take a class with a mask of context x context numbers in each layer, none of which is allocated."""
    config = {
        "architectures": ["OpenAIGPTLMHeadModel"],
        "model_type": "openai-gpt",
        "n_layer": 2,
        "n_positions": 1 << 20,
    }
    with pytest.raises(ModelRefused, match=r"its tables for the context of the config would take 8,192 GiB of memory"):
        build(Fields(config, "config.json"))


def test_warnings_of_transformers_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Take a class that warns about kernels that are not installed."""
    log = logging.getLogger("transformers")
    level = log.level
    log.addHandler(caplog.handler)
    try:
        model = build(Fields(JAMBA, "config.json"))
        assert "state" in model.priced_only
    finally:
        log.removeHandler(caplog.handler)
    assert caplog.records == []
    assert log.level == level
    assert class_family.cache_info().maxsize == 8


def test_the_size_of_a_head_that_is_another_size_of_the_class() -> None:
    """Take a class that calls the rotated part of a key `head_dim`, and divide all of its heads."""
    whole, part = (build(Fields(GLM, "config.json"), shard=Shard(0, n)) for n in (1, 2))
    heads, own = ([op.heads for _, op in model.ops_of(LatentAttention)] for model in (whole, part))
    assert heads == [4, 4]
    assert own == [2, 2]


def test_layers_that_attend_to_the_keys_of_another_share_its_cache() -> None:
    """Compare the keys and values that are kept with those of transformers' own cache."""
    config = small_config(Gemma3nTextConfig(num_kv_shared_layers=15), layers=10)
    reference = Gemma3nForCausalLM(config).eval()
    cache = reference(input_ids=torch.arange(7)[None], use_cache=True).past_key_values
    kept = [layer for layer in cache.layers if layer.keys is not None]
    assert 0 < len(kept) < config.num_hidden_layers
    model = build(
        Fields({"architectures": ["Gemma3nForCausalLM"], **json.loads(config.to_json_string())}, "config.json")
    )
    assert model.priced_only == ""
    assert [(spec.heads, spec.k_dim) for spec in model.kv_specs] == [
        (layer.keys.shape[1], layer.keys.shape[3]) for layer in kept
    ]
    assert len(model.ops_of(Attention)) == config.num_hidden_layers
