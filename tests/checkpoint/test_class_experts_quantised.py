"""Quantised mixtures without a family here: the experts of their classes load one by one, in the released spelling."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import Fields, registry
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.routed_experts import RoutedExperts
from ridgeline.core.models.from_transformers.small_config import small_config
from support.checkpoints import edit_config, fill_random
from support.layouts import Quantiser, awq, fp8, gptq, packed
from support.quantised import off

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
GROUPS = {"group_0": {"targets": [r"re:.*experts.*"], "weights": INT4, "input_activations": None}}
# A section of config.json, the key by which it lists the matrices that stay plain, and what quantises.
FORMATS: dict[str, tuple[dict[str, Any], str, Quantiser]] = {
    "fp8": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 32]},
        "modules_to_not_convert",
        fp8(16, 32, "weight_scale_inv"),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True},
        "modules_to_not_convert",
        awq(16),
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False},
        "dynamic",
        gptq(4, 16),
    ),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "config_groups": GROUPS, "format": "pack-quantized"},
        "ignore",
        packed(4, 16),
    ),
}
# A released name of each type.
RELEASED = {
    "olmoe": "model.layers.0.mlp.experts.0.gate_proj.weight",
    "phimoe": "model.layers.0.block_sparse_moe.experts.0.w1.weight",
}


def write_folders(
    folder: Path, model_type: str, section: dict[str, Any], listed: str, quantise: Quantiser
) -> tuple[Path, Path]:
    """Write a random model in the released layout twice: with quantised experts, and the numbers they stand for."""
    theirs = AutoModelForCausalLM.from_config(small_config(CONFIG_MAPPING[model_type]()), dtype=torch.float32)
    fill_random(theirs, 0)
    folders = folder / "quantised", folder / "plain"
    for each in folders:
        theirs.save_pretrained(each)
    given = load_file(folders[1] / "model.safetensors")
    assert RELEASED[model_type] in given
    stored, plain = dict(given), dict(given)
    for name, tensor in given.items():
        if ".experts." in name:
            tensors, numbers = quantise(tensor.numpy())
            del stored[name]
            stored |= {name.removesuffix("weight") + own: held for own, held in tensors.items()}
            plain[name] = torch.from_numpy(numbers)
    save_file(stored, folders[0] / "model.safetensors")
    save_file(plain, folders[1] / "model.safetensors")
    others = [name for name, tensor in given.items() if tensor.dim() == 2 and ".experts." not in name]
    kept = [name.removesuffix(".weight") for name in others if "embed" not in name]  # routers too
    left = {f"-:{name}": {} for name in kept} if listed == "dynamic" else kept
    edit_config(folders[0], quantization_config={**section, listed: left})
    return folders


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("model_type", RELEASED)
def test_quantised_experts_run(model_type: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare logits with those of a plain folder of the numbers that the codes stand for."""
    folders = write_folders(tmp_path, model_type, *FORMATS[name])
    values = json.loads((folders[1] / "config.json").read_text(encoding="utf-8"))
    family = class_family(Fields(values, "config.json"))
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, family))
    assert off(folders) < 1e-5
    quantised, plain = ([op for _, op in load_model(str(each)).ops_of(RoutedExperts)] for each in folders)
    assert len(quantised) == len(plain) > 0
    assert all(None not in op.stored.values() for op in quantised)
    assert all(set(op.stored.values()) == {None} for op in plain)
