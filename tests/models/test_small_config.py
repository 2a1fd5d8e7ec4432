"""The small copy of a config builds a small model of its class, with the choices of the original.

Each class of the installed transformers that continues a text or fills masks is tried, and each released config.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3VLTextConfig,
)

from ridgeline.core.models.from_transformers.small_config import COMPLETED, DROPPED, is_config, small_config
from support.small_transformers import (
    ALL_KINDS,
    CAUSAL,
    MASKED,
    TOKENS,
    build_small,
    class_and_config,
    config_with_all_kinds,
    default_config,
    random_text,
    small_causal,
)

MOST_PARAMETERS = 2_500_000
NOT_RUN = {
    "gemma3n": "requires the timm library",  # for its images; gemma3n_text is the same decoder
    # They read the keys and values of another model.
    "gemma4_assistant": "inputs_embeds and shared_kv_states cannot be None",
    "gemma4_unified_assistant": "inputs_embeds and shared_kv_states cannot be None",
}
"""The causal types that no text runs through, and why."""
NOT_SMALL = {"perceiver"}  # its sizes are those of latents, which are no layers of a transformer
LISTS_OF_KINDS = (
    "layer_types",
    "mlp_layer_types",
    "layers_block_type",
    "no_rope_layers",
    "indexer_types",
    "block_types",
)
LIMIT = re.compile(
    r"sliding_window(_size)?|(keep|attention)_window_size|window_size|attention_chunk_size|local_attention"
    r"|index_topk(_blocks)?|indexer_budget|floor_scale|log_scaling_n_floor"
)
"""Fields that a short text is to pass."""
ADDED = {
    *(name for more in COMPLETED.values() for name in more),
    *("clip_qkv", "head_dim", "num_key_value_heads"),
    *("encoder_cross_output_size", "audio_vocab_size"),  # the config classes derive these from sizes
}
"""Fields that have a value in a small config although the original has none."""
FACTORS = [1.0 + place / 10 for place in range(48)]
STATE = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 36}
RELEASES: dict[str, dict[str, Any]] = {
    "phi-4-mini": {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", "short_factor": FACTORS, "long_factor": [2 * each for each in FACTORS]},
    },
    "falcon-40b": {
        "model_type": "falcon", "new_decoder_architecture": True, "num_attention_heads": 128, "num_kv_heads": 8,
        "hidden_size": 8192, "num_hidden_layers": 60,
    },
    "falcon-h1-0.5b": {
        "model_type": "falcon_h1", **STATE, "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    },
    "nemotron-3-nano": {
        "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
        "num_key_value_heads": 2, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "head_dim": 128,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    },
    "bamba-9b": {"model_type": "bamba", "attn_layer_indices": [9, 18, 27], "num_hidden_layers": 32},
    "granite-4-tiny": {
        "model_type": "granitemoehybrid", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4,
        "num_hidden_layers": 40, "layer_types": (["mamba"] * 9 + ["attention"]) * 4, "mamba_n_heads": 48,
        "mamba_d_head": 64, "position_embedding_type": "nope", "num_local_experts": 64, "num_experts_per_tok": 6,
    },
    "qwen2 with windows in late layers": {
        "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 21, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584,
    },
    "hunyuan-a13b": {
        "model_type": "hunyuan_v1_moe", "num_hidden_layers": 32, "num_key_value_heads": 8, "num_experts": 64,
        "moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32, "num_shared_expert": [1] * 32, "head_dim": 128,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "q_lora_rank": None, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 27, "first_k_dense_replace": 1,
    },
    "opt-350m": {"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    "recurrent-gemma-9b": {"model_type": "recurrent_gemma", "hidden_size": 4096, "num_hidden_layers": 38},
}  # fmt: skip
"""Configs whose sizes depend on each other in ways that the catalogue and the defaults of the classes do not show."""


@pytest.mark.parametrize("model_type", [name for name in CAUSAL if name not in NOT_RUN])
def test_runs_a_decoder(model_type: str) -> None:
    model = small_causal(model_type)
    with torch.no_grad():
        logits = model(random_text(model), use_cache=False).logits
    assert logits.shape[-2] == TOKENS
    assert torch.isfinite(logits).all()
    assert logits.std() > 0
    assert sum(parameter.numel() for parameter in model.parameters()) < MOST_PARAMETERS


@pytest.mark.parametrize("model_type", ["glm5_next_text", "hy_v4_vl_text", "mistral_large4_text", "qwen3_vl_text"])
def test_runs_the_text_part_of_a_multimodal_model(model_type: str) -> None:
    """Check classes that are registered as no language model, and relations between sizes that only they have."""
    config = CONFIG_MAPPING[model_type]()
    small = small_config(config)
    assert_same_choices(config, small)
    model = build_small(MODEL_MAPPING[type(config)], small)
    with torch.no_grad():
        assert torch.isfinite(model(random_text(model)).last_hidden_state).all()


@pytest.mark.parametrize("model_type", [*ALL_KINDS])
def test_runs_all_kinds_of_layers_of_a_decoder(model_type: str) -> None:
    model_class, config = config_with_all_kinds(model_type)
    small = small_config(config)
    assert_same_choices(config, small)
    model = build_small(model_class, small)
    with torch.no_grad():
        logits = model(random_text(model), use_cache=False).logits
    assert torch.isfinite(logits).all()


def test_a_text_passes_each_limit() -> None:
    """Check that every window, chunk and sparse limit changes the logits of a text of 24 tokens."""
    inert = set()
    for model_type in CAUSAL:
        if model_type not in NOT_RUN:
            model_class, config = config_with_all_kinds(model_type)
            fields = small_config(config).to_dict().items()
            for name in [name for name, value in fields if LIMIT.fullmatch(name) and value]:
                if not changes_logits(model_class, config, name):
                    inert.add(f"{name} of {model_type}")
    assert inert == INERT


INERT = {
    "local_attention of modernbert-decoder",  # its half, sliding_window, limits
    "sliding_window of moshi",  # limits the caches only
}
"""Limits that change nothing."""


def changes_logits(model_class: type[PreTrainedModel], config: PreTrainedConfig, name: str) -> bool:
    """Return whether a limit that no text of 24 tokens passes gives other logits than the small one."""
    logits = []
    for limit in (None, 4 * TOKENS):
        small = small_config(config)
        if limit:
            setattr(small, name, limit)
        model = build_small(model_class, small)
        with torch.no_grad():
            logits.append(model(random_text(model), use_cache=False).logits)
    return bool((logits[0] - logits[1]).abs().max() > 1e-4 * logits[0].abs().max())


@pytest.mark.parametrize(("model_type", "reason"), NOT_RUN.items())
def test_names_what_does_not_run(model_type: str, reason: str) -> None:
    def run() -> None:
        model = small_causal(model_type)
        model(random_text(model), use_cache=False)

    with pytest.raises(Exception, match=reason):  # transformers raises errors of several classes
        run()


@pytest.mark.parametrize("model_type", [name for name in MASKED if name not in NOT_SMALL])
def test_runs_an_encoder(model_type: str) -> None:
    model_class, config = default_config(model_type, masked=True)
    model = build_small(model_class, small_config(config))
    with torch.no_grad():
        logits = model(random_text(model)).logits
    assert torch.isfinite(logits).all()
    assert sum(parameter.numel() for parameter in model.parameters()) < MOST_PARAMETERS


@pytest.mark.parametrize("model_type", CAUSAL)
def test_keeps_the_mathematics(model_type: str) -> None:
    _, config = default_config(model_type)
    assert_same_choices(config, small_config(config))


@pytest.mark.parametrize("model_type", MASKED)
def test_keeps_the_mathematics_of_an_encoder(model_type: str) -> None:
    _, config = default_config(model_type, masked=True)
    assert_same_choices(config, small_config(config))


def test_keeps_the_mathematics_of_catalogued_releases() -> None:
    """Check that no release of the catalogue that transformers reads loses a choice, and that each runs."""
    for path in sorted((files("ridgeline") / "data/catalogue").glob("*.json")):
        if path.stem not in NOT_READ:
            assert_runs_small(json.loads(path.read_text(encoding="utf-8")))


NOT_READ = {"exaone-4.0-1.2b", "kimi-k2"}
"""Releases of the catalogue whose values, or whose model type, transformers' config classes refuse."""


def test_keeps_the_mathematics_of_configs_as_released(data_dir: Path) -> None:
    for path in sorted((data_dir / "configs").glob("*/config.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.get("model_type") in CONFIG_MAPPING:
            assert_runs_small(values)


@pytest.mark.parametrize("name", [*RELEASES])
def test_keeps_the_mathematics_of_sizes_with_relations(name: str) -> None:
    assert_runs_small(RELEASES[name])


def assert_runs_small(values: dict[str, Any]) -> None:
    """Assert that the small copy of a config keeps its choices, and runs if its class takes only text."""
    config = CONFIG_MAPPING[values["model_type"]].from_dict(dict(values))
    masked = type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    if masked and type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        assert_same_choices(config, small_config(config))
        return
    model_class, config = class_and_config(config, masked=masked)
    small = small_config(config)
    assert_same_choices(config, small)
    model = build_small(model_class, small)
    with torch.no_grad():
        logits = model(random_text(model)).logits
    assert torch.isfinite(logits).all(), config.model_type
    assert sum(parameter.numel() for parameter in model.parameters()) < MOST_PARAMETERS, config.model_type


def assert_same_choices(config: PreTrainedConfig, small: PreTrainedConfig) -> None:
    """Assert that all that is no size stays, that a layer of each kind stays, and that 24 tokens pass each limit."""
    old, new = config.to_dict(), small.to_dict()
    for name, value, little in pairs(old, new):
        what = f"{name} of {config.model_type}: {value} -> {little}"
        if name in LISTS_OF_KINDS and value:
            assert set(little) == set(value), what
        elif LIMIT.fullmatch(name) and isinstance(value, int) and value:
            assert 0 < little < TOKENS, what
        elif value is None:
            assert little is None or name in ADDED, what
        elif isinstance(value, bool | str | float):
            assert little == value, what
        elif isinstance(value, int) and not name.endswith("_token_id"):
            assert little <= value, what
        elif isinstance(value, list) and value and isinstance(value[0], bool | str | float):
            assert set(little) <= set(value), what
    assert group(new) == min(4, group(old))


def group(values: dict[str, Any]) -> int:
    """Return the number of heads that share a KV head."""
    heads, kv_heads = values.get("num_attention_heads"), values.get("num_key_value_heads")
    return heads // kv_heads if heads and kv_heads else 1


def pairs(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of a config, and of those inside it, with their small values."""
    for name, value in old.items():
        if is_config(name, value):
            yield from pairs(value, new[name])
        elif name not in DROPPED:
            yield name, value, new[name]


def test_scales_rotary_embeddings_with_the_head() -> None:
    """Check that sections stay the pairs of the part that is rotated, and that factors stay one for each pair."""
    sections = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20]}
    small = small_config(Qwen3VLTextConfig(head_dim=128, rope_parameters=sections))
    assert small.rope_parameters["mrope_section"] == [3, 3, 2]
    assert sum(small.rope_parameters["mrope_section"]) == small.head_dim // 2
    small = small_config(CONFIG_MAPPING["phi3"].from_dict(dict(RELEASES["phi-4-mini"])))
    pairs_rotated = int(small.hidden_size // small.num_attention_heads * 0.75) // 2
    assert len(small.rope_parameters["long_factor"]) == len(small.rope_parameters["short_factor"]) == pairs_rotated
    assert small.rope_parameters["original_max_position_embeddings"] < TOKENS < small.max_position_embeddings


def test_keeps_shared_layers_and_a_layer_of_each_kind() -> None:
    small = small_config(Gemma3nTextConfig())
    assert small.layer_types == ["sliding_attention", "full_attention"] * 3
    assert small.activation_sparsity_pattern == [0.95] * 2 + [0.0] * 4
    assert small.num_kv_shared_layers == 2


def test_keeps_a_whole_period_or_the_layers_asked_for() -> None:
    config = Gemma3TextConfig()
    assert small_config(config).layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    assert small_config(config, layers=3).layer_types == ["sliding_attention"] * 3
    assert small_config(config, layers=8).layer_types == config.layer_types[:8]
    assert small_config(LlamaConfig(), layers=1).num_hidden_layers == 1


def test_leaves_the_config_as_it_is_and_gives_unequal_tokens_unequal_ids() -> None:
    config = LlamaConfig(vocab_size=128256, eos_token_id=[128001, 128008, 128009], pad_token_id=128009, bos_token_id=1)
    before = config.to_dict()
    small = small_config(config)
    assert config.to_dict() == before
    assert small.bos_token_id == 1
    assert small.eos_token_id[2] == small.pad_token_id
    assert len(set(small.eos_token_id)) == 3
    assert max(small.eos_token_id) < small.vocab_size


def test_leaves_a_small_config_small() -> None:
    """Check that a config which is already small does not grow."""
    config = LlamaConfig(
        vocab_size=50, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1,
        intermediate_size=40, max_position_embeddings=32,
    )  # fmt: skip
    small = small_config(config)
    assert (small.vocab_size, small.hidden_size, small.head_dim, small.intermediate_size) == (50, 24, 6, 40)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_keeps_a_small_copy_as_it_is(model_type: str) -> None:
    """Check that a small copy of a small copy is equal to it, so that tests can shrink what is small already."""
    _, config = config_with_all_kinds(model_type)
    small = small_config(config)
    assert small_config(small).to_dict() == small.to_dict()


def test_drops_quantisation() -> None:
    small = small_config(LlamaConfig(quantization_config={"quant_method": "fp8"}, dtype="bfloat16"))
    assert not hasattr(small, "quantization_config")
    assert small.dtype is None
