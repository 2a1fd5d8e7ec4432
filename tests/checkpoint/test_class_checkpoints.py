"""Released checkpoints are loaded into the models that classes of transformers define."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ridgeline.core.checkpoint.adapter import targets_of
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.weight_loader import load_tensors
from ridgeline.core.models.building import build
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.from_transformers.class_family import class_family
from support.checkpoints import edit_config, fill_random
from support.class_stand_ins import small_class
from support.engines import uncached_logits

# Renamed matrices, experts one by one and in one tensor, renamed routers, a scaled and tied embedding, and the text
# model of a multimodal checkpoint.
TYPES = ("exaone", "mixtral", "granitemoe", "phimoe", "gemma3_text", "gemma3")
KEPT = "transformer.h.0.mlp.c_fc_0"


def saved(folder: Path, model_type: str) -> PreTrainedModel:
    """Write a small random model in the released layout, and return it."""
    torch.manual_seed(0)
    theirs = small_class(model_type)
    fill_random(theirs, 0)
    theirs.save_pretrained(folder)
    return theirs


def loaded(folder: Path) -> Model:
    """Return the model of a folder, as its class defines it."""
    fields = Fields(json.loads((folder / "config.json").read_text(encoding="utf-8")), str(folder))
    family = class_family(fields)
    model = build(fields, torch.float32, family=family)
    load_tensors(model, open_checkpoint(folder), family)
    return model


def assert_filled(model: Model, name: str, full: Tensor) -> None:
    """Check that a tensor of the model has these numbers."""
    module, own = model.tensors()[name]
    for path, wanted in module.load_tensor(own, full).items():
        assert torch.equal(module.get_parameter(path), wanted)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_class_computes_with_its_released_checkpoint(model_type: str, tmp_path: Path) -> None:
    """Compare logits with those of the model that transformers saved."""
    theirs = saved(tmp_path, model_type).eval()
    model, ids = loaded(tmp_path), torch.randint(3, 80, (11,), generator=torch.Generator().manual_seed(0))
    assert not any(parameter.is_meta for parameter in model.parameters())
    with torch.inference_mode():
        wanted = theirs(input_ids=ids[None], use_cache=False).logits[0]
    torch.testing.assert_close(uncached_logits(model, [ids.tolist()])[0], wanted, rtol=1e-4, atol=1e-4)


def test_every_parameter_that_a_class_ties_is_shared(tmp_path: Path) -> None:
    """Load a head whose bias is tied too, as its weight is to the embedding."""
    saved(tmp_path, "roberta")
    model = loaded(tmp_path)
    assert sorted(path.rpartition(".")[2] for path in model.ties) == ["bias", "weight"]
    assert all(model.get_parameter(path) is model.get_parameter(held) for path, held in model.ties.items())


def test_a_quantised_checkpoint_speaks_in_released_names(tmp_path: Path) -> None:
    """Check that scales, and a list of modules that stay plain, find the class's modules."""
    saved(tmp_path, "exaone")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    blocks = [name for name in tensors if ".h." in name and tensors[name].dim() > 1 and not name.startswith(KEPT)]
    for name in blocks:
        rows, columns = (-(-size // 128) for size in tensors[name].shape)
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.full((rows, columns), 0.5)
    save_file(tensors, path)
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": [KEPT]}
    edit_config(tmp_path, quantization_config=quantised)
    model = loaded(tmp_path)
    assert_filled(model, "model.layers.0.mlp.gate_proj.weight", tensors[f"{KEPT}.weight"])
    assert sum(name.endswith("_scale_inv") for name in model.tensors()) == len(blocks) > 6


def test_an_expert_in_another_format_than_the_config_s_is_refused(tmp_path: Path) -> None:
    """Check that the line names the tensor, if a config says nothing of its format."""
    saved(tmp_path, "mixtral")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(each for each in tensors if ".experts." in each)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, path)
    with pytest.raises(ModelRefused, match=rf"tensor {name} has dtype torch.float8_e4m3fn, but the config requires"):
        loaded(tmp_path)


def test_an_adapter_finds_its_modules_by_either_name(tmp_path: Path) -> None:
    """Compare the target of the class's name, which PEFT stores, with that of the released name."""
    saved(tmp_path, "exaone")
    fields = Fields(json.loads((tmp_path / "config.json").read_text(encoding="utf-8")), str(tmp_path))
    family = class_family(fields)
    targets = targets_of(build(fields, torch.float32, family=family), family)
    for module in (KEPT, "model.layers.0.mlp.gate_proj"):
        assert family.checkpoint_name(family.model_name(module)) in targets
