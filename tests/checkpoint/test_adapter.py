"""Adapters that cannot be used are refused in one line that names what is wrong; nothing of them is guessed."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.parity_cases import CASES
from ridgeline.core.checkpoint.adapter import adapt, read_adapter
from ridgeline.core.models import FAMILIES, Fields, build, family_of
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.ops.matrix import LoraWeights
from support.adapters import adapted, write_adapter
from support.checkpoints import edit_config, random_model
from support.wall_models import wall_model

TEXT = next(case.config for case in CASES if case.id == "gemma3-plain")
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of models, by the model type."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama-gqa3", "mixtral-plain"):
        case = next(case for case in CASES if case.id == name)
        random_model(case.model_type, case.config, seed=1).save_pretrained(folder / case.model_type)
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter of the llama that a test may break."""
    case = next(case for case in CASES if case.id == "llama-gqa3")
    model = random_model(case.model_type, case.config, seed=1)
    return write_adapter(tmp_path / "adapter", model, ["q_proj", "down_proj"], base_model_name_or_path="some/llama")


def change(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def change_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path)


def renamed(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


def refusal(models: Path, adapter: Path, model: str = "llama") -> str:
    """The one line with which it is refused."""
    with pytest.raises(ModelRefused) as refused:
        adapted(models / model, {"a": adapter})
    said = str(refused.value)
    assert "\n" not in said
    return said


def test_what_an_adapter_is(models: Path, adapter: Path) -> None:
    _, (read,) = adapted(models / "llama", {"a": adapter})
    assert (read.name, read.rank, read.base, len(read.matrices)) == ("a", 4, "some/llama", 6)
    assert read.parameters == 3 * 4 * ((36 + 60) + (44 + 36))
    assert read_adapter("b", str(adapter)).digest == read.digest
    change(adapter, lora_alpha=7)
    assert read_adapter("a", str(adapter)).digest != read.digest


CONFIGS: dict[str, tuple[Mapping[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "DoRA is not supported; merge"),
    "modules to save": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "biases": ({"bias": "all"}, "bias is 'all': an adapter that changes biases is not supported"),
    "biases of its own": ({"lora_bias": True}, "biases in an adapter (lora_bias)"),
    "another kind": ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LoRA"),
    "experts": ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "LoRA on experts' parameters"),
    "layers copied": ({"layer_replication": [[0, 2]]}, "layer_replication is not supported"),
    "the base changed": ({"init_lora_weights": "pissa_niter_16"}, "which changes the model's own weights"),
    "something new": ({"use_later_idea": True}, "use_later_idea = True is not supported"),
    "no rank": ({"r": 0}, "r is 0; it must be an integer from 1 to 4096"),
    "another rank": ({"r": 5}, "adapter_config.json says rank 5"),
    "a rank of its own": (
        {"rank_pattern": {"q_proj": 3}},
        "A and B of model.layers.0.self_attn.q_proj have shapes [4, 36]",
    ),
    "a hostile pattern": ({"alpha_pattern": {"(.*)*(.*)*x": 3}}, "a pattern that is too complex"),
    "a broken pattern": ({"alpha_pattern": {"(": 3}}, "not a regular expression"),
    "no number": ({"lora_alpha": "much"}, "lora_alpha is 'much'; it must be a finite number"),
    "an integer beyond floats": ({"lora_alpha": 10**400}, "lora_alpha is 1000000000000000000000000000000000000000; it"),
    "an alpha of NaN": ({"alpha_pattern": {"q_proj": float("nan")}}, "lora_alpha is nan; it must be"),
    "targets that are none": ({"target_modules": 3}, "target_modules is neither"),
    "a target that is not there": (
        {"target_modules": ["q_proj", "Wqkv"]},
        "target_modules has 'Wqkv', which the model",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configs(models: Path, adapter: Path, case: str) -> None:
    values, says = CONFIGS[case]
    change(adapter, **values)
    assert says in refusal(models, adapter)


TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "half is missing": (lambda t: t.pop(f"{Q}B.weight"), "lacks lora_B of model.layers.0.self_attn.q_proj; fetch"),
    "another width": (
        lambda t: t.update({f"{Q}A.weight": torch.ones(4, 48)}),
        "have shapes [4, 48] and [60, 4], but the model's matrix has 36 inputs and 60 outputs; "
        "use its base model, some/llama",
    ),
    "another depth": (
        lambda t: renamed(t, "layers.2.", "layers.9."),
        "the adapter adapts model.layers.9.mlp.down_proj, which the model lacks; use its base model, some/llama",
    ),
    "the head": (lambda t: renamed(t, "model.layers.0.self_attn.q_proj", "lm_head"), "LoRA on the LM head (lm_head)"),
    "what expands latents": (
        lambda t: renamed(t, "self_attn.q_proj", "self_attn.kv_b_proj"),
        "LoRA on the matrix that expands latents (model.layers.0.self_attn.kv_b_proj) is not supported; merge it",
    ),
    "the embedding": (
        lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 97)}),
        "LoRA on embeddings is not supported",
    ),
    "DoRA's magnitudes": (
        lambda t: t.update({f"{Q}magnitude_vector": torch.ones(60)}), "q_proj.lora_magnitude_vector: DoRA",
    ),
    "a whole module": (
        lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(97, 36)}), "is neither lora_A nor lora_B",
    ),
    "NaN": (lambda t: t[f"{Q}A.weight"].fill_(float("nan")), "A or B of model.layers.0.self_attn.q_proj holds NaN"),
    "whole numbers": (lambda t: t.update({f"{Q}A.weight": torch.ones(4, 36).int()}), "A.weight is stored in I32"),
    "codes": (
        lambda t: t.update({f"{Q}B.weight": t[f"{Q}B.weight"].to(torch.float8_e4m3fn)}), "is stored in F8_E4M3",
    ),
    "a matrix twice": (
        lambda t: t.update({f"{Q[:17]}{Q[23:]}{h}.weight": t[f"{Q}{h}.weight"].clone() for h in "AB"}), "q_proj twice",
    ),
    "nothing": (lambda t: t.clear(), "holds no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_tensors(models: Path, adapter: Path, case: str) -> None:
    edit, says = TENSORS[case]
    change_tensors(adapter, edit)
    assert says in refusal(models, adapter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_beyond_the_range_of_the_model_are_refused(
    models: Path, adapter: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    """Expect no infinities in a model of fp16."""
    folder = shutil.copytree(models / "llama", tmp_path / "llama")
    edit_config(folder, dtype="float16")
    change_tensors(adapter, lambda t: [t.update({name: each.to(dtype)}) for name, each in t.items()])
    adapted(folder, {"a": adapter})
    change_tensors(adapter, lambda t: t[f"{Q}B.weight"].view(-1)[2:3].fill_(1e5))
    with pytest.raises(ModelRefused, match=r"q_proj\.lora_B\.weight is stored in .* beyond the range of float16"):
        adapted(folder, {"a": adapter})


def test_an_adapter_for_experts(models: Path, adapter: Path) -> None:
    change(adapter, target_modules="all-linear")
    change_tensors(adapter, lambda t: renamed(t, "mlp.down_proj", "block_sparse_moe.experts.1.w2"))
    assert "LoRA on experts (model.layers.0.block_sparse_moe.experts.1.w2)" in refusal(models, adapter, "mixtral")


def test_an_adapter_of_a_mixture(models: Path, adapter: Path) -> None:
    """Beside its attention."""
    change(adapter, target_modules=["q_proj"])
    change_tensors(adapter, lambda t: [t.pop(name) for name in list(t) if "down_proj" in name])
    model, (read,) = adapted(models / "mixtral", {"a": adapter})
    assert len(read.matrices) == 3
    assert model.adapters is not None


@pytest.mark.parametrize("trunk", ["model.language_model.", "language_model.model.", "model."])
def test_an_adapter_of_a_text_half(trunk: str, tmp_path: Path) -> None:
    """By the names of transformers 5, of those before it, and of the text alone."""
    config = Fields({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": TEXT}, "config.json")
    model, name = build(config), f"{trunk}layers.1.self_attn.q_proj"
    adapter = read_adapter("a", str(write_adapter(tmp_path / "a", {name: (60, 42)}, ["q_proj"])))
    assert adapt(model, family_of(config), [adapter]) == 1
    assert sum(isinstance(module, LoraWeights) for module in model.modules()) == 1


def test_a_model_with_an_encoder(adapter: Path) -> None:
    """Its rows are not the tokens' alone."""
    model, read = wall_model("encoder-decoder"), read_adapter("a", str(adapter))
    with pytest.raises(ModelRefused, match="adapters of models with an encoder are not supported; merge"):
        adapt(model, FAMILIES[0], [read])


def test_folders(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"rank 4, but --max-lora-rank is 3; raise it"):
        read_adapter("a", str(adapter), 3)
    weights = adapter / "adapter_model.safetensors"
    weights.rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelRefused, match="only as pickle"):
        read_adapter("a", str(adapter))
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(ModelRefused, match=r"lacks adapter_model\.safetensors"):
        read_adapter("a", str(adapter))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelRefused, match=r"holds no adapter \(adapter_config\.json\)"):
        read_adapter("a", str(tmp_path / "empty"))
    weights.write_bytes(b"nonsense")
    with pytest.raises(ModelRefused, match="truncated"):
        read_adapter("a", str(adapter))
