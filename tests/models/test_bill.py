"""The parameter bill against what was published, what indexes of checkpoints say, and transformers' own count."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from models.configs import CONFIGS
from models.covered import check_covered
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import FAMILIES, Family, Fields, ModelRefused, build
from ridgeline.core.models.common.architecture_name import parse
from ridgeline.core.models.common.parameter_breakdown import PARTS, ParameterBreakdown, parameter_breakdown
from ridgeline.core.models.registry import REGISTERED
from ridgeline.core.ops.experts import Experts

# Billions of parameters of the releases: of all, and of those that a token passes through.
PUBLISHED: dict[str, tuple[float, float]] = {
    "meta-llama__Llama-2-7b-chat-hf": (6.738, 6.738),
    "mistralai__Mistral-7B-Instruct-v0.3": (7.248, 7.248),
    "meta-llama__Llama-3.2-1B-Instruct": (1.236, 1.236),
    "Qwen__Qwen2.5-7B-Instruct": (7.616, 7.616),
    "Qwen__Qwen3-8B": (8.191, 8.191),
    "microsoft__phi-4": (14.66, 14.66),
    "openai-community__gpt2": (0.1244, 0.1244),
    "mistralai__Mixtral-8x7B-v0.1": (46.70, 12.88),
    "openai__gpt-oss-20b": (20.91, 3.61 + 0.579),
    "openai__gpt-oss-120b": (116.83, 5.13 + 0.579),
    "Qwen__Qwen3-30B-A3B": (30.53, 3.35),
}

# `total_size` in the model.safetensors.index.json of the releases.
INDEXED: dict[str, int] = {
    "llama-2-7b": 13_476_839_424,  # the rotary frequencies of every layer with it
    "llama-3-8b": 16_060_522_496,
    "llama-3-70b": 141_107_412_992,
    "mistral-7b-v0.3": 14_496_047_104,
    "mixtral-8x7b": 93_405_585_408,
    "phi-4": 29_319_014_400,
    "qwen2.5-7b": 15_231_233_024,
    "qwen3-4b": 8_044_936_192,
    "qwen3-8b": 16_381_470_720,
    "qwen3-32b": 65_524_246_528,
    "qwen3-30b-a3b": 61_064_245_248,
}


# Configs as they are released, whose fields are nested, quantised or beside inert ones: billions of parameters of the
# text, GB of weights and bytes of keys and values a token. Qwen3-Coder's and Kimi's are those that were published, and
# DeepSeek's 671; the others' follow from the layouts of their tensors.
RELEASED: dict[str, tuple[float, float, int]] = {
    "Qwen__Qwen3-VL-2B-Instruct": (1.7206, 3.441, 114_688),
    "Qwen__Qwen3.5-27B": (26.896, 53.792, 65_536),
    "Qwen__Qwen3-Coder-480B-A35B-Instruct": (480.15, 960.3, 253_952),
    "nvidia__Qwen3.6-35B-A3B-NVFP4": (34.66, 20.825, 10_240),
    "moonshotai__Kimi-K2.5": (1026.4, 594.2, 70_272),
    "Qwen__Qwen3-32B-FP8-Static-PerTensor": (32.762, 34.319, 131_072),
}


def bill_of(values: dict[str, Any]) -> ParameterBreakdown:
    """The bill of a config."""
    return parameter_breakdown(build(Fields(values, "config.json")))


def test_every_family_is_counted() -> None:
    """A family that is not in the list would not be."""
    check_covered(CONFIGS, FAMILIES, "CONFIGS in tests/models/configs.py")


@pytest.mark.parametrize("release", PUBLISHED)
def test_published_counts(release: str, data_dir: Path) -> None:
    """All parameters and the active ones, within half a percent."""
    counted = parameter_breakdown(build(read_config(str(data_dir / "configs" / release / "config.json"))))
    total, active = PUBLISHED[release]
    assert counted.total == pytest.approx(total * 1e9, rel=0.005)
    assert counted.active == pytest.approx(active * 1e9, rel=0.005)
    assert counted.total == sum(counted.parameters.values())


@pytest.mark.parametrize("release", RELEASED)
def test_released_layouts(release: str, data_dir: Path) -> None:
    """Compare the parameters, the bytes of weights, and those of keys and values a token."""
    model = build(read_config(str(data_dir / "configs" / release / "config.json")))
    total, gigabytes, kept = RELEASED[release]
    assert parameter_breakdown(model).total == pytest.approx(total * 1e9, rel=0.0005)
    assert parameter_breakdown(model).nbytes == pytest.approx(gigabytes * 1e9, rel=0.0005)
    assert sum(spec.bytes_per_token for spec in model.kv_specs) == kept


def test_experts_in_4_bits_next_to_attention_in_8(data_dir: Path) -> None:
    """Add up Qwen3.6-35B-A3B-NVFP4 from its sizes: 16 numbers of 4 bits share a scale of 8 bits."""
    hidden, width, layers, full, vocabulary = 2048, 512, 40, 10, 248_320
    narrow = layers * 257 * 3 * hidden * width + vocabulary * hidden
    linear = (layers - full) * hidden * (8192 + 2 * 4096)
    attention = full * hidden * (2 * 4096 + 2 * 512 + 4096)
    plain = vocabulary * hidden + layers * 257 * hidden + (layers - full) * 2 * hidden * 32
    counted = parameter_breakdown(
        build(read_config(str(data_dir / "configs" / "nvidia__Qwen3.6-35B-A3B-NVFP4" / "config.json")))
    )
    assert counted.nbytes == pytest.approx(narrow * 4.5 / 8 + linear + attention + 2 * plain, rel=0.0005)


@pytest.mark.parametrize("name", INDEXED)
def test_bytes_of_released_checkpoints(name: str) -> None:
    """Weights as stored, within a thousandth of what the index says."""
    assert parameter_breakdown(build(read_config(name))).nbytes == pytest.approx(INDEXED[name], rel=0.001)


def test_bytes_of_the_indexes_at_hand(data_dir: Path) -> None:
    """Every index of real data that lies beside the config of a model that can be built."""
    compared = 0
    for index in sorted(data_dir.glob("configs/*/model.safetensors.index.json")):
        try:
            model = build(read_config(str(index.parent)))
        except ModelRefused:
            continue
        assert parameter_breakdown(model).nbytes == pytest.approx(
            json.loads(index.read_text())["metadata"]["total_size"], rel=0.001
        )
        compared += 1
    if not compared:
        pytest.skip("the data hold no index of a language model that can be built")


def test_llama_405b_by_part() -> None:
    """The text's figures are off by ten for attention and feed-forward; these are the config's (seed number 9)."""
    counted = parameter_breakdown(build(read_config("llama-3.1-405b")))
    hidden, width, vocabulary, layers = 16_384, 53_248, 128_256, 126
    attention = hidden * hidden * 2 + hidden * 1024 * 2
    assert counted.layer == {
        "embedding": 0,
        "attention": attention,
        "feed-forward": 3 * hidden * width,
        "norms": 2 * hidden,
        "head": 0,
    }
    assert (attention, 3 * hidden * width) == (570_425_344, 2_617_245_696)
    assert sum(counted.layer.values()) == 3_187_703_808
    assert counted.parameters == {
        "embedding": vocabulary * hidden,
        "attention": layers * attention,
        "feed-forward": layers * 3 * hidden * width,
        "norms": (2 * layers + 1) * hidden,
        "head": vocabulary * hidden,
    }
    assert counted.total == counted.active == 405_853_388_800
    assert round(counted.nbytes / 1e9, 1) == 811.7


def test_shares_that_the_texts_round() -> None:
    """Seed numbers 21 and 22: feed-forward and embedding of Llama-3-8B."""
    counted = parameter_breakdown(build(read_config("llama-3-8b")))
    assert counted.parameters["feed-forward"] / counted.total == pytest.approx(0.702, abs=0.0005)
    assert counted.layer["feed-forward"] / sum(counted.layer.values()) == pytest.approx(0.808, abs=0.0005)
    assert counted.parameters["embedding"] == 525_336_576


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_counts_the_same(family: str, tied: bool, tmp_path: Path) -> None:
    """Parameter by parameter: the same total, and the same sum in each part, going by transformers' names."""
    if tied and family in ("phi", "nemotron_h"):
        pytest.skip("its head is never the embedding")
    values = CONFIGS[family] | {"tie_word_embeddings": tied, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    parts = dict.fromkeys(PARTS, 0)
    for name, parameter in theirs.named_parameters():
        parts[part_of(name)] += parameter.numel()
    for name, buffer in theirs.named_buffers():  # what a checkpoint stores and transformers does not count
        if name.endswith("e_score_correction_bias"):
            parts["feed-forward"] += buffer.numel()
    counted = bill_of(values)
    assert counted.parameters == parts
    assert counted.total == sum(parts.values())
    assert counted.nbytes == 4 * counted.total


def part_of(name: str) -> str:
    """The part that a parameter of transformers' belongs to."""
    if name.startswith("lm_head"):
        return "head"
    if "norm" in name or ".ln_" in name:
        return "norms"
    if ".mixer." in name:
        return "feed-forward" if any(part in name for part in ("up_proj", "down_proj", "gate")) else "attention"
    if "embed_tokens" in name or ".embeddings." in name or ".wte" in name or ".wpe" in name:
        return "embedding"
    return "attention" if "attn" in name else "feed-forward"


@pytest.mark.parametrize(("family", "matrices"), [("mixtral", 2 * 3), ("qwen3_moe", 3), ("nemotron_h", 2)])
def test_active_parameters_of_a_mixture(family: str, matrices: int) -> None:
    """All but the experts that a token does not pick, in the layers that have a mixture."""
    values = CONFIGS[family]
    width = values.get("moe_intermediate_size", values["intermediate_size"])
    experts = next(values[name] for name in ("num_local_experts", "num_experts", "n_routed_experts") if name in values)
    idle = matrices * (experts - values["num_experts_per_tok"]) * values["hidden_size"] * width
    counted = bill_of(values)
    assert counted.total - counted.active == idle


NAMES: dict[str, tuple[str, str, str, str]] = {
    "LlamaForCausalLM": ("Llama", "", "dense", "causal LM"),
    "MistralForCausalLM": ("Mistral", "", "dense", "causal LM"),
    "MixtralForCausalLM": ("Mixtral", "", "MoE", "causal LM"),
    "Qwen2ForCausalLM": ("Qwen", "2", "dense", "causal LM"),
    "Qwen2MoeForCausalLM": ("Qwen", "2", "MoE", "causal LM"),
    "Qwen3ForCausalLM": ("Qwen", "3", "dense", "causal LM"),
    "Qwen3MoeForCausalLM": ("Qwen", "3", "MoE", "causal LM"),
    "Qwen3NextForCausalLM": ("Qwen", "3-Next", "MoE", "causal LM"),
    "Qwen3_5ForCausalLM": ("Qwen", "3.5", "dense", "causal LM"),
    "Qwen3_5MoeForCausalLM": ("Qwen", "3.5", "MoE", "causal LM"),
    "Phi3ForCausalLM": ("Phi", "3", "dense", "causal LM"),
    "PhiMoEForCausalLM": ("Phi", "", "MoE", "causal LM"),
    "Ministral3ForCausalLM": ("Ministral", "3", "dense", "causal LM"),
    "NemotronHForCausalLM": ("NemotronH", "", "dense", "causal LM"),
    "GPT2LMHeadModel": ("GPT", "2", "dense", "causal LM"),
    "GPTNeoXForCausalLM": ("GPTNeoX", "", "dense", "causal LM"),
    "MiniMaxM2ForCausalLM": ("MiniMax", "M2", "MoE", "causal LM"),
    "Llama4ForCausalLM": ("Llama", "4", "MoE", "causal LM"),
    "GptOssForCausalLM": ("GptOss", "", "MoE", "causal LM"),
    "DeepseekV2ForCausalLM": ("Deepseek", "2", "MoE", "causal LM"),
    "DeepseekV3ForCausalLM": ("Deepseek", "3", "MoE", "causal LM"),
    "Gemma2ForCausalLM": ("Gemma", "2", "dense", "causal LM"),
    "Gemma3ForCausalLM": ("Gemma", "3", "dense", "causal LM"),
    "Gemma3ForConditionalGeneration": ("Gemma", "3", "dense", "conditional generation"),
    "GraniteForCausalLM": ("Granite", "", "dense", "causal LM"),
    "Olmo2ForCausalLM": ("Olmo", "2", "dense", "causal LM"),
    "SmolLM3ForCausalLM": ("SmolLM", "3", "dense", "causal LM"),
    "GlmForCausalLM": ("Glm", "", "dense", "causal LM"),
    "Glm4ForCausalLM": ("Glm", "4", "dense", "causal LM"),
    "CohereForCausalLM": ("Cohere", "", "dense", "causal LM"),
    "Cohere2ForCausalLM": ("Cohere", "2", "dense", "causal LM"),
    "Starcoder2ForCausalLM": ("Starcoder", "2", "dense", "causal LM"),
    "Exaone4ForCausalLM": ("Exaone", "4", "dense", "causal LM"),
    "PhiForCausalLM": ("Phi", "", "dense", "causal LM"),
    "Glm4MoeForCausalLM": ("Glm", "4", "MoE", "causal LM"),
    "T5ForConditionalGeneration": ("T5", "", "dense", "conditional generation"),
    "T5EncoderModel": ("T5", "", "dense", "encoder model"),
    "MarianMTModel": ("Marian", "", "dense", "conditional generation"),
    "Qwen2VLForConditionalGeneration": ("Qwen", "2-VL", "dense", "conditional generation"),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen", "2.5-VL", "dense", "conditional generation"),
    "Qwen3VLMoeForConditionalGeneration": ("Qwen", "3-VL", "MoE", "conditional generation"),
    "KimiK25ForConditionalGeneration": ("Kimi", "K25", "MoE", "conditional generation"),
    "Kimi_K25ForConditionalGeneration": ("Kimi", "K25", "MoE", "conditional generation"),
    "BartForConditionalGeneration": ("Bart", "", "dense", "conditional generation"),
    "WhisperForConditionalGeneration": ("Whisper", "", "dense", "conditional generation"),
    "BertForSequenceClassification": ("Bert", "", "dense", "sequence classification"),
    "CLIPModel": ("CLIP", "", "dense", "bare model, no head"),
    "CLIPTextModel": ("CLIP", "", "dense", "text model"),
    "CLIPTextModelWithProjection": ("CLIP", "", "dense", "text model with projection"),
    "MiMoV2FlashForCausalLM": ("MiMo", "2-Flash", "dense", "causal LM"),
    "MPTForCausalLM": ("MPT", "", "dense", "causal LM"),
    "Some Thing-Else": ("Some Thing-Else", "", "unknown", "unknown"),
}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.architecture not in NAMES])
def test_names_of_families(family: Family) -> None:
    """Expect of a name that is not in NAMES the words that it begins with, and a mixture if the model has experts."""
    name, model = parse(family.architecture), build(Fields(CONFIGS[family.model_type], "config.json"))
    assert name.family
    assert family.architecture.startswith(name.family + name.version.replace(".", "_").replace("-", ""))
    assert name.kind == ("MoE" if model.ops_of(Experts) else "dense")
    assert name.task == "causal LM"


TEXTS = {family.architecture for family in REGISTERED if family.kind not in ("denoiser", "autoencoder")}


@pytest.mark.parametrize("architecture", sorted(TEXTS))
def test_every_name_comes_apart(architecture: str) -> None:
    """Expect words for what it is, and a task."""
    name = parse(architecture)
    assert name.kind in ("MoE", "dense")
    assert name.task not in ("", "unknown")


@pytest.mark.parametrize("architecture", NAMES)
def test_architecture_names(architecture: str) -> None:
    """Family, version, dense or mixture, task (seed number 11)."""
    name = parse(architecture)
    assert (name.family, name.version, name.kind, name.task) == NAMES[architecture]


def test_architecture_names_of_the_data(data_dir: Path) -> None:
    """Every released config's architecture has parts; none comes back whole."""
    names = set()
    for path in sorted(data_dir.glob("configs/**/config.json")):
        names.update(json.loads(path.read_text()).get("architectures") or [])
    assert len(names) >= 12
    assert not {name for name in names if parse(name).task == "unknown"}
