"""Latent attention of transformers classes: detected by what their code keeps, and kept by the engine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.youtu.modeling_youtu import YoutuAttention

from models.comparing import off
from models.test_class_decoders import GREEDY, logits_of, prompts_of
from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models import Fields, build
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.recipes import PLAIN
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_latents import latent_cache_of
from ridgeline.core.models.from_transformers.small_layers import keep_layers
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price
from support.engines import RecordingRunner, complete, token_engine
from support.registered_classes import load_class, random_class_model, registered_config, registered_fields

RUN = ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "minicpm3", "youtu")
"""The types with latent attention that the engine runs."""


def built(model_type: str) -> ClassDecoder:
    """Return the model of a small registered class, to be priced in bf16."""
    class_family.cache_clear()
    fields = registered_fields(model_type)
    model = build(fields, torch.bfloat16, recipe=PLAIN, family=class_family(fields))
    assert isinstance(model, ClassDecoder)
    return model


@pytest.mark.parametrize("model_type", RUN)
def test_latents_are_kept(model_type: str) -> None:
    """Compare what a token takes with the sizes in the config."""
    config, model = registered_config(model_type), built(model_type)
    latent, rotary = config.kv_lora_rank, config.qk_rope_head_dim
    assert all(isinstance(op, LatentAttention) for _, op in model.ops_of(Attention))
    assert {(spec.k_dim, spec.v_dim, spec.bytes_per_token) for spec in model.kv_specs} == {
        (latent + rotary, 0, 2 * (latent + rotary))
    }
    heads, value = config.num_attention_heads, config.v_head_dim
    whole, own = sizes_of(model).sharing
    assert whole.bytes_per_token / own.bytes_per_token == pytest.approx(
        heads * (config.qk_nope_head_dim + rotary + value) / (latent + rotary)
    )
    assert not model.priced_only


@pytest.mark.parametrize("model_type", ["seed_oss", "olmoe", "gpt_neox"])
def test_other_attention_keeps_keys_and_values(model_type: str) -> None:
    """Check ops, and that no module of a class without latents is given a cache."""
    model = built(model_type)
    assert model.ops_of(Attention)
    assert model.latent == model.unused_latent == 0
    assert not any(latent_cache_of(module) or module._forward_pre_hooks for module in model.modules())


def test_keys_that_are_computed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep keys and values if the class computes them from latents in a way that our op does not."""
    expand = YoutuAttention.expand_kv

    def squared(self: Any, latent: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = expand(self, latent, turned)
        return keys, values * values

    monkeypatch.setattr(YoutuAttention, "expand_kv", squared)
    model = built("youtu")
    config = registered_config("youtu")
    assert (model.latent, model.unused_latent) == (0, config.kv_lora_rank + config.qk_rope_head_dim)
    assert not model.priced_only
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    shapes = {(spec.heads, spec.k_dim, spec.v_dim) for spec in model.kv_specs}
    assert shapes == {(config.num_attention_heads, key, config.v_head_dim)}


def test_the_class_expands_one_position(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Count the positions that the code of the class expands in steps of several rows."""
    random_class_model("youtu", seed=3).save_pretrained(tmp_path)
    model, expand, seen = load_class(tmp_path), YoutuAttention.expand_kv, set[int]()

    def noted(self: Any, latent: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        seen.add(latent.shape[2])
        out: tuple[Tensor, Tensor] = expand(self, latent, turned)
        return out

    monkeypatch.setattr(YoutuAttention, "expand_kv", noted)
    complete(token_engine(model), [list(range(3, 20))], GREEDY)
    assert seen == {1}
    caches = [cache for module in model.modules() if (cache := latent_cache_of(module)) is not None]
    assert len(caches) == len(model.kv_specs)
    assert all(cache.given is cache.returned is None for cache in caches), "rows of the last step are still in memory"


def decode_cost(model: ClassDecoder, keys: int) -> Cost:
    """Return the cost of a decode step of one sequence of some length."""
    return Price(model).step(Work.of([StepSegment(1, keys)], model.attention_patterns))


@pytest.mark.parametrize("model_type", ["kimi_linear", "bailing_hybrid"])
def test_latents_next_to_states(model_type: str) -> None:
    """Compare what 1,000 more keys cost with the sums of scores, sums of latents and bytes of the attention layers.

    The class's own code expands all latents in each step. A price has the form with fewer FLOPs, on latents.
    """
    config, model = registered_config(model_type), built(model_type)
    assert model.priced_only
    layers = len(model.ops_of(LatentAttention))
    assert 0 < layers < config.num_hidden_layers
    latent, kept = config.kv_lora_rank, config.kv_lora_rank + config.qk_rope_head_dim
    assert sum(spec.bytes_per_token for spec in model.kv_specs) == layers * kept * 2
    short, long = (decode_cost(model, keys) for keys in (1000, 2000))
    scores = 2 * config.num_attention_heads * (kept + latent) * 1000
    assert long.flops["bf16"] - short.flops["bf16"] == layers * scores  # the class's mask takes further ones in fp32
    assert long.kv_read_bytes - short.kv_read_bytes == layers * kept * 2 * 1000
    assert long.activation_bytes == pytest.approx(short.activation_bytes)
    assert long.weight_bytes == short.weight_bytes


def test_latents_that_an_index_chooses() -> None:
    """Compare the growth of a step's cost below and above the number of keys that the index of DeepSeek V3.2 chooses.

    All index keys are read in each step, and at most that number of latents.
    """
    config, model = registered_config("deepseek_v32"), built("deepseek_v32")
    chosen, kept = config.index_topk, config.kv_lora_rank + config.qk_rope_head_dim
    layers, latent = config.num_hidden_layers, config.kv_lora_rank
    assert {spec.bytes_per_token for spec in model.kv_specs} == {2 * kept, 2 * config.index_head_dim}
    assert len(model.ops_of(LatentAttention)) == layers
    few, all_chosen, many = (decode_cost(model, keys) for keys in (chosen - 3, chosen, chosen + 1000))
    index = layers * config.index_head_dim * 2
    assert all_chosen.kv_read_bytes - few.kv_read_bytes == 3 * (layers * kept * 2 + index)
    assert many.kv_read_bytes - all_chosen.kv_read_bytes == 1000 * index
    per_key = (many.total_flops - all_chosen.total_flops) / 1000  # of the index
    scores = 2 * config.num_attention_heads * (kept + latent) * layers
    assert all_chosen.total_flops - few.total_flops == pytest.approx(3 * (per_key + scores), rel=1e-6)


def test_an_index_over_the_latents_of_a_family() -> None:
    """Compare DeepSeek V3.2, by its class, with the family of V3, which has the same sizes and no index."""
    values = json.loads(CONFIG_MAPPING["deepseek_v32"]().to_json_string(use_diff=False))
    by_class = Fields({**keep_layers(values, 4), "architectures": ["DeepseekV32ForCausalLM"]}, "config.json")
    ours = Fields(keep_layers(dict(read_config("deepseek-v3").values), 4), "config.json")
    new = build(by_class, torch.bfloat16, recipe=PLAIN, family=class_family(by_class))
    old = build(ours, torch.bfloat16, recipe=PLAIN)
    latent, index = 2 * 576, 2 * 128
    for segment in (StepSegment(1, 1500), StepSegment(512, 512)):
        one, other = (Price(model).step(Work.of([segment], model.attention_patterns)) for model in (new, old))
        assert one.kv_read_bytes / other.kv_read_bytes == pytest.approx((latent + index) / latent)
        assert 1.0 < one.total_flops / other.total_flops < 1.05, "an index of 64 narrow heads takes a few percent"
    step = Price(new).step(Work.of([StepSegment(1, 100_000)], new.attention_patterns))
    assert step.kv_read_bytes == 4 * (2048 * latent + 100_000 * index)


@pytest.mark.parametrize(("kv", "tolerance"), [("int8", 0.02), ("fp8", 0.1)])
def test_narrow_latents(kv: str, tolerance: float, tmp_path: Path) -> None:
    """Run with quantised latents, whose logits are near those of the class and not equal."""
    theirs = random_class_model("minicpm3", seed=3)
    theirs.save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    family = class_family(source.config)
    model = build_to_run(source.config, kv=kv, family=family)
    load_weights(model, source, family=family)
    entries = theirs.config.kv_lora_rank + theirs.config.qk_rope_head_dim
    assert {spec.bytes_per_token for spec in model.kv_specs} == {entries + (2 if kv == "int8" else 0)}
    engine = token_engine(model, runner=RecordingRunner)
    prompt, _ = prompts_of(theirs)
    (output,) = complete(engine, [prompt], GREEDY)
    assert isinstance(engine.executor, RecordingRunner)
    ids = (prompt + output)[:-1]
    ours_TV = torch.stack([engine.executor.logits[1, position] for position in range(len(ids))])
    assert 0 < off(ours_TV, logits_of(theirs, ids)) <= tolerance
