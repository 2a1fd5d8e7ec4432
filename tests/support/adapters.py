"""LoRA adapters in PEFT's layout for transformers' models, and what those models are once an adapter is merged in."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ridgeline.core.checkpoint.adapter import Adapter, adapt, fill_adapters, read_adapter, targets_of
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models import build, build_to_run, family_of
from ridgeline.core.models.common.model import Model

STD = 0.3  # of A and B: large enough that an adapter changes what is said
_CONFIG: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True}


Widths = Mapping[str, tuple[int, int]]
"""The outputs and inputs of matrices by their names in a checkpoint."""


def widths_of(model: PreTrainedModel) -> Widths:
    """Of the linear modules of transformers' model."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    return {
        name: (each.weight.shape[1], each.weight.shape[0]) if isinstance(each, Conv1D) else tuple(each.weight.shape)
        for name, each in found.items()
    }


def own_widths(name: str) -> Widths:
    """Of the matrices of a folder or a built-in model that an adapter may add to."""
    config = open_source(name).config
    targets = targets_of(build(config), family_of(config))
    return {module: (target.matrix.outputs, target.matrix.inputs) for module, target in targets.items()}


def write_adapter(
    folder: Path,
    model: PreTrainedModel | Widths,
    targets: Sequence[str],
    *,
    rank: int = 4,
    std: float = STD,
    alpha: float = 6,
    ranks: Mapping[str, int] | None = None,
    seed: int = 0,
    **config: Any,
) -> Path:
    """An adapter as PEFT saves it, of random numbers. targets: ends of the names of modules. std: of A and B. ranks: by
    the end of a name, where it is another. config: other keys."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    widths = widths_of(model) if isinstance(model, PreTrainedModel) else model
    for name, (outputs, inputs) in widths.items():
        if not name.endswith(tuple(targets)):
            continue
        own = next((r for end, r in (ranks or {}).items() if name.endswith(end)), rank)
        prefix = f"base_model.model.{name}.lora_"
        tensors[f"{prefix}A.weight"] = torch.randn(own, inputs, generator=generator) * std
        tensors[f"{prefix}B.weight"] = torch.randn(outputs, own, generator=generator) * std
    assert tensors, f"{targets} are no modules"
    pattern = {"rank_pattern": dict(ranks)} if ranks else {}
    values = _CONFIG | {"r": rank, "lora_alpha": alpha, "target_modules": list(targets)} | pattern | config
    (folder / "adapter_config.json").write_text(json.dumps(values), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged(model: PreTrainedModel, folder: Path, *, alphas: Mapping[str, float] | None = None) -> PreTrainedModel:
    """The model with W + s B A in the place of each W that an adapter changes. alphas: by the end of a name."""
    whole = copy.deepcopy(model)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "adapter_model.safetensors")
    for key in [key for key in tensors if key.endswith("lora_A.weight")]:
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        first, second = tensors[key].double(), tensors[key.replace("lora_A", "lora_B")].double()
        alpha = next((a for end, a in (alphas or {}).items() if name.endswith(end)), config["lora_alpha"])
        rank = len(first)
        delta = second @ first * (alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
        module = whole.get_submodule(name)
        own = module.weight.data.double() + (delta.T if isinstance(module, Conv1D) else delta)
        module.weight.data = own.float()
    return whole


def adapted(folder: Path, adapters: Mapping[str, Path]) -> tuple[Model, list[Adapter]]:
    """Our model of a folder with adapters beside it, by their names."""
    source = open_source(str(folder))
    model, family = build_to_run(source.config), family_of(source.config)
    read = [read_adapter(name, str(path)) for name, path in adapters.items()]
    adapt(model, family, read)
    load_weights(model, source)
    fill_adapters(model, family, read)
    return model, read
