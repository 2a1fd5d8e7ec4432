"""The classes of transformers that a config.json names: the right one is found, and everything else is refused.

The expected names are those of `AutoModelForCausalLM` and `AutoModel`, whose rules the lookup narrows: a class that a
config names and that transformers does not have is refused, where transformers would use another one.
"""

import importlib.metadata
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.from_transformers import installed_package
from ridgeline.core.models.from_transformers.class_config import transformers_config
from ridgeline.core.models.from_transformers.class_construction import context_of
from ridgeline.core.models.from_transformers.class_lookup import (
    causal_class,
    encoder_class,
    find_class,
    registered_causal_types,
)
from ridgeline.core.models.registry import family_of

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 99}
REMOTE = {
    "AutoConfig": "configuration_internlm2.InternLM2Config",
    "AutoModelForCausalLM": "internlm/internlm2--modeling_internlm2.InternLM2ForCausalLM",
}


def fields(model_type: str | None = None, architecture: str = "", **more: Any) -> Fields:
    named = {"architectures": [architecture]} if architecture else {}
    typed = {} if model_type is None else {"model_type": model_type}
    return Fields({**SIZES, **typed, **named, **more}, "config.json")


def refusal(config: Fields) -> str:
    with pytest.raises(ModelRefused) as refused:
        find_class(config)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith("config.json: ")
    return message


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("gpt_neox", "GPTNeoXForCausalLM"),
        ("gpt_neox", ""),
        (None, "BloomForCausalLM"),
        ("bert", "BertLMHeadModel"),
        ("ctrl", "CTRLLMHeadModel"),
        ("ernie4_5", "Ernie4_5_ForCausalLM"),  # spelt with one underscore more than the class
    ],
)
def test_a_decoder_is_the_class_that_transformers_uses(model_type: str | None, architecture: str) -> None:
    found = find_class(fields(model_type, architecture))
    reference = AutoConfig.for_model(model_type or "bloom", **SIZES)
    expected = AutoModelForCausalLM._model_mapping[type(reference)]
    assert (found.kind, found.type, found.section) == ("decoder", expected, "")
    assert found.name == expected.__name__
    assert found.config.num_hidden_layers == SIZES["num_hidden_layers"]


@pytest.mark.parametrize(
    ("model_type", "architecture", "expected"),
    [
        ("distilbert", "DistilBertForMaskedLM", "DistilBertModel"),
        ("distilbert", "DistilBertForSequenceClassification", "DistilBertForSequenceClassification"),
        ("mpnet", "MPNetModel", "MPNetModel"),
        ("electra", "ElectraForPreTraining", "ElectraModel"),
        ("electra", "", "ElectraModel"),  # it is also registered for text generation
        ("albert", "AlbertModel", "AlbertModel"),
    ],
)
def test_an_encoder_is_the_class_without_the_heads_of_its_training(
    model_type: str, architecture: str, expected: str
) -> None:
    found = find_class(fields(model_type, architecture))
    assert (found.name, found.kind, found.type.__name__) == (expected, "encoder", expected)


def test_a_model_is_a_decoder_or_an_encoder_but_not_both() -> None:
    electra = transformers_config(fields("electra"))
    assert causal_class(electra, "ElectraForPreTraining") is None
    assert encoder_class(electra, "ElectraForCausalLM") is None
    generating = causal_class(electra, "ElectraForCausalLM")
    assert generating is not None
    assert generating.__name__ == "ElectraForCausalLM"
    assert encoder_class(transformers_config(fields("gpt_neox")), "") is None


@pytest.mark.parametrize(
    ("model_type", "architecture", "expected"),
    [
        ("gemma3n", "Gemma3nForConditionalGeneration", "Gemma3nForCausalLM"),
        ("gemma4", "Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
        ("llava", "LlavaForConditionalGeneration", "MistralForCausalLM"),
        ("emu3", "Emu3ForCausalLM", "Emu3ForCausalLM"),  # registered with the whole config only
    ],
)
def test_a_multimodal_model_is_its_text_part(model_type: str, architecture: str, expected: str) -> None:
    text = {"llava": {"model_type": "mistral", **SIZES}}.get(model_type, SIZES)
    found = find_class(fields(model_type, architecture, text_config=text))
    assert (found.name, found.section) == (expected, "text_config")
    assert found.config.hidden_size == SIZES["hidden_size"]
    assert isinstance(found.config, found.type.config_class)


def test_code_of_a_checkpoint_is_named_and_never_run() -> None:
    unknown = refusal(fields("internlm2", "InternLM2ForCausalLM", auto_map=REMOTE))
    assert "needs code of the checkpoint (configuration_internlm2.py, modeling_internlm2.py)" in unknown
    assert "never run" in unknown
    # A known model_type does not make a class of the checkpoint one of transformers.
    assert "no class for MyForCausalLM: it needs code" in refusal(
        fields("falcon", "MyForCausalLM", auto_map={"AutoModelForCausalLM": "modeling_my.MyForCausalLM"})
    )
    # A release from before its class came into transformers still names its own code.
    assert find_class(fields("falcon", "FalconForCausalLM", auto_map=REMOTE)).name == "FalconForCausalLM"


def test_keys_that_choose_code_do_not_reach_the_config() -> None:
    # Kernels of attention may come from a repository of the hub, and a backbone's config would be fetched from it.
    chosen = {"attn_implementation": "someone/kernel", "_attn_implementation": "someone/kernel", "use_kernels": True}
    text = {"model_type": "mistral", **SIZES, **chosen}
    config = transformers_config(
        fields("llava", text_config=text, vision_config={"model_type": "dpt", "backbone": "someone/net"}, **chosen)
    )
    for part in (config, config.text_config, config.vision_config):
        assert "someone" not in repr(vars(part))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (fields("bart", "BartForConditionalGeneration"), "is an encoder-decoder"),
        (fields("qwen2_vl", "Qwen2VLForConditionalGeneration"), r"its text model \(qwen2_vl_text\) has no class"),
        (fields("deberta-v2", "DebertaV2ForTokenClassification"), "has a head that is not supported"),
        (fields("vit", "ViTModel"), "is neither a model that generates text nor an encoder"),
        (fields("gpt_neox", "GPTNeoXForSequenceClassification"), "is neither a model that generates text nor"),
        (fields("llava", "LlavaForSomethingElse"), "has no class for LlavaForSomethingElse"),
        (fields("llama", "LlamaForCausalLMEagle3"), "has no class for LlamaForCausalLMEagle3"),
        (fields("gpt_neox", "PreTrainedModel"), "has no class for PreTrainedModel"),  # imported there, not a model
        (fields(None, "NoSuchForCausalLM"), "has no class for NoSuchForCausalLM$"),
        (
            fields("falcon", hidden_act="gelu", ffn_hidden_size="wide"),
            "FalconConfig|for falcon refuses it: .*ffn_hidden",
        ),
        (fields("falcon", get_text_config=3), "for falcon refuses it: "),
    ],
)
def test_everything_else_is_refused_in_one_line(config: Fields, problem: str) -> None:
    assert re.search(problem, refusal(config))


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_labels", "n_layer"])
def test_absurd_counts_are_refused_before_a_config_class_makes_lists_of_them(name: str) -> None:
    assert f"{name} is {10**12}; it must be an integer up to" in refusal(fields("gpt_neox", **{name: 10**12}))
    inside = fields("llava", text_config={"model_type": "mistral", name: 10**12})
    assert f"{name} is {10**12}" in refusal(inside)
    assert find_class(fields("llama", rope_theta=10**9)).config.rope_parameters["rope_theta"] == 10**9


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (fields("gpt_neox", layer_norm_eps=math.nan), "layer_norm_eps is nan; it must be a finite number"),
        (fields("gpt_neox", layer_norm_eps=math.inf), "layer_norm_eps is inf; it must be a finite number"),
        (fields("gpt_neox", layer_norm_eps=-1.0), "layer_norm_eps is -1.0; it must be a number above 0"),
        (fields("gpt_neox", rope_theta=-1e4), "rope_theta is -10000.0; it must not be negative"),
        (fields("gpt_neox", rope_scaling={"factor": math.nan}), "rope_scaling.factor is nan; it must be a finite"),
        (fields("mamba2", time_step_limit=[0.0, math.nan]), r"time_step_limit\[1\] is nan; it must be a finite number"),
        (fields("mamba2", initializer_range={"__float__": "NaN"}), "initializer_range is nan; it must be a finite"),
        (fields("mamba2", initializer_range={"__float__": "wide"}), "initializer_range is .*; it must be a number"),
        (fields("gpt_neox", max_position_embeddings=0), "max_position_embeddings is 0; it must be an integer above 0"),
        (fields("gpt_neox", max_position_embeddings=-5), "max_position_embeddings is -5; it must be an integer above"),
        (fields("gpt_neox", num_attention_heads=0), "num_attention_heads is 0; it must be an integer"),
        (fields("gpt_neox", hidden_size="48"), "hidden_size is '48'; it must be an integer above 0"),
        (fields("gpt_neox", vocab_size=True), "vocab_size is True; it must be an integer above 0"),
        (fields("bloom", n_head=0), "n_head is 0; it must be an integer above 0"),
        (fields("olmoe", num_key_value_heads=3), "num_attention_heads is 4; it must be a multiple of the 3 KV heads"),
        (fields("olmoe", num_experts=-4), "num_experts is -4; it must not be negative"),
        (fields("gpt_neox", text_config="x"), "text_config is 'x'; it must be an object"),
        (fields("gpt_neox", rope_scaling={"factor": -2.0}), "rope_scaling.factor is -2.0; it must be a number above 0"),
        (fields("gpt_neox", torch_dtype="float7"), "torch_dtype: unknown number format 'float7'"),
        (fields("gpt_neox", quantization_config="fp8"), "quantization_config is 'fp8'; it must be an object"),
        (
            fields("llava", text_config={"model_type": "mistral", "num_attention_heads": -4}),
            r"text_config\.num_attention_heads is -4; it must be an integer above 0",
        ),
    ],
)
def test_numbers_that_no_model_has_are_refused_with_their_field(config: Fields, problem: str) -> None:
    assert re.search(f"^config.json: {problem}", refusal(config))


def test_infinite_bounds_and_unlimited_positions_are_no_mistakes() -> None:
    for infinity in (math.inf, {"__float__": "Infinity"}):
        found = find_class(fields("mamba2", hidden_size=4096, time_step_limit=[0.0, infinity]))
        assert list(found.config.time_step_limit) == [0.0, math.inf]
    assert context_of(find_class(fields("xlnet", d_head=12)).config) == 2048


@pytest.mark.parametrize("stated", ["mamba", "olmoe_2", None])
def test_a_class_of_another_model_type_is_named_with_its_own(stated: str | None) -> None:
    """Refuse a type that contradicts the class, an unknown one, and a missing one of an encoder's class."""
    name = "MPNetForMaskedLM" if stated is None else "OlmoeForCausalLM"
    with pytest.raises(ModelRefused) as refused:
        family_of(fields(stated, name))
    given, right = ("no model_type", "mpnet") if stated is None else (f"model_type {stated}", "olmoe")
    assert str(refused.value) == (
        f"config.json: the config states {given}, but {name} of transformers 5.24 is a class of model_type {right}; "
        "correct model_type or architectures"
    )


def test_a_family_goes_by_the_architecture_alone() -> None:
    assert family_of(fields("mamba", "Qwen3ForCausalLM")).model_type == "qwen3"


@pytest.mark.parametrize(
    ("stated", "usable"),
    [("5.24.0", True), ("5.31.2", True), ("5.24.0.dev0", True), ("5.23.9", False), ("4.57.1", False), ("6.0.0", False)],
)
def test_the_version_has_a_floor_and_a_ceiling(stated: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_package, "version", lambda name: stated)
    assert installed_package.is_usable() == usable
    if usable:
        assert find_class(fields("gpt_neox")).name == "GPTNeoXForCausalLM"
        return
    message = refusal(fields("gpt_neox", "GPTNeoXForCausalLM"))
    assert "GPTNeoXForCausalLM" in message
    assert "transformers 5.24 or newer, below 6," in message
    assert f"transformers {'.'.join(stated.split('.')[:2])} is installed" in message
    assert "pip install 'ridgeline[transformers]'" in message


def test_the_extra_installs_a_version_between_the_floor_and_the_ceiling() -> None:
    root = Path(__file__).resolve().parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    major, minor = installed_package.FLOOR
    assert extras["transformers"] == [f"transformers>={major}.{minor},<{installed_package.NEXT_MAJOR}"]
    assert "| `ridgeline[transformers]` |" in (root / "docs" / "install.md").read_text(encoding="utf-8")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installed_package, "version", missing)
    assert not installed_package.is_usable()
    assert installed_package.installed_version() is None
    message = refusal(fields("gpt_neox", "GPTNeoXForCausalLM"))
    assert "is not installed: pip install 'ridgeline[transformers]'" in message


def test_every_registered_type_gives_its_class_or_a_reason() -> None:
    types = registered_causal_types()
    assert len(types) > 190
    assert types["gpt_neox"] == "GPTNeoXForCausalLM"
    refused = {}
    for model_type, architecture in types.items():
        try:
            found = find_class(Fields({"model_type": model_type, "architectures": [architecture]}, "config.json"))
        except ModelRefused as error:
            refused[model_type] = str(error)
            continue
        if model_type == "xlm":  # its one class with a head predicts masked tokens, unless the config says causal
            assert (found.kind, found.name) == ("encoder", "XLMModel")
            continue
        assert found.kind == "decoder"
        assert found.section or found.name == architecture
    assert all(re.search("encoder-decoder|has no class that generates|refuses it", line) for line in refused.values())
    assert len(refused) < 20


def test_a_misspelt_architecture_is_told_the_class_of_transformers() -> None:
    with pytest.raises(ModelRefused, match="did you mean OlmoeForCausalLM"):
        family_of(Fields({"architectures": ["OlmoeForCausalML"], "model_type": "olmoe"}, "config.json"))
