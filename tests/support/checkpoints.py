"""Small random checkpoints of transformers' models, and raw safetensors files, good and broken."""

import json
import struct
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from ridgeline.core.models import Fields, build, family_of
from ridgeline.core.models.common.model import Model

logging.disable_progress_bar()

WEIGHT_STD = 0.18  # large enough that every gate, norm and bias moves the logits


def random_model(
    model_type: str, config: Mapping[str, Any], seed: int, auto: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """A transformers model, of the class that `auto` has for its type, in fp32, in evaluation mode, with eager
    attention and weights from `seed`.

    Matrices have std WEIGHT_STD; scales of norms lie around 1, biases around 0, none of them trivially there. States of
    recurrent layers are forgotten slowly, else rounding decides what is left of them after many positions.
    """
    settings = AutoConfig.for_model(model_type, **deepcopy(dict(config)))  # which writes into what it is given
    settings._attn_implementation = settings._experts_implementation = "eager"
    model: PreTrainedModel = auto.from_config(settings, dtype=torch.float32).eval()
    fill_random(model, seed)
    return model


def fill_random(model: PreTrainedModel, seed: int) -> None:
    """Weights as `random_model` has them."""
    redraw(model, seed)
    model.tie_weights()


def redraw(model: nn.Module, seed: int) -> None:
    """The same of any module, in which no parameter is another."""
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        noise = torch.randn(parameter.shape, generator=generator) * WEIGHT_STD
        scale = parameter.dim() == 1 and not name.endswith("bias")
        parameter.data = noise - 3 if name.endswith("A_log") else 1 + noise if scale else noise
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # stored as a weight is
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * WEIGHT_STD)
    model.requires_grad_(False)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of a folder's config.json; None removes a field."""
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}), encoding="utf-8")


def write_raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file of any header and data, and a header length that may lie."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entries_of(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], bytes]:
    """The header and the data of fp32 tensors, as the format wants them."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def random_tensors(values: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """A random tensor in the config's dtype for every parameter of its model, by its name in a checkpoint."""
    model = build(Fields(values, "config.json"))
    with torch.device("meta"):
        model.create_parameters()
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(parameter.shape, generator=generator) * WEIGHT_STD).to(parameter.dtype)
        for name, parameter in parameters_of(model, values).items()
    }


def parameters_of(model: Model, values: Mapping[str, Any]) -> dict[str, nn.Parameter]:
    """The parameters of a config's model by their names in a checkpoint."""
    family = family_of(Fields(values, "config.json"))
    return {
        family.checkpoint_name(model.checkpoint_name(path)): parameter for path, parameter in model.named_parameters()
    }


def write_folder(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Path:
    """A checkpoint folder: config.json and, if given, model.safetensors."""
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    if tensors is not None:
        save_file(dict(tensors), folder / "model.safetensors")
    return folder


def random_ours(values: Mapping[str, Any], seed: int = 0) -> Model:
    """Our model of a config, filled with `random_tensors`, without a folder."""
    model = build(Fields(values, "config.json"))
    with torch.device("meta"):
        model.create_parameters()
    tensors = random_tensors(values, seed)
    for path, name in zip(
        [path for path, _ in model.named_parameters()], list(parameters_of(model, values)), strict=True
    ):
        module, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(module), attribute, nn.Parameter(tensors[name], requires_grad=False))
    model.tie()
    return model
