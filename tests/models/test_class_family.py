"""The family of a class of transformers: found once, silent, and refused in a line if the class cannot be built."""

import logging
from typing import Any

import pytest

from ridgeline.core.models import Fields, ModelRefused, build, family_of
from ridgeline.core.models.common.fields import DivisionRefused
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.plan.scenario import Deployment, ModelCache

NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 99, "max_position_embeddings": 64,
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
    assert "it cannot be constructed from this config (KeyError" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_encoder_that_cannot_be_constructed_is_refused_in_a_line() -> None:
    config = {"architectures": ["DistilBertModel"], "model_type": "distilbert", "activation": "nosuch"}
    problem = "DistilBertModel of transformers 5.* cannot be constructed from this config .KeyError: "
    with pytest.raises(ModelRefused, match=problem):
        build(Fields(config, "config.json"))


@pytest.mark.parametrize("model_type", ["gpt_neox", "distilbert"])
def test_a_class_is_not_divided(model_type: str) -> None:
    """Check that the refusal names the option of a plan that fits."""
    with pytest.raises(DivisionRefused, match=r"config\.json: \w+ is a class of transformers, .* give --devices 1"):
        build(Fields({"model_type": model_type}, "config.json"), shard=Shard(0, 2))


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
