"""The dtype of the weights, wherever releases state it, against transformers' reading of the same folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from models.configs import CONFIGS
from models.test_kin import saved
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.core.models.building import stored_dtype
from ridgeline.core.models.common.architecture_alias import KIN
from support.checkpoints import parameters_of, random_tensors, write_folder

FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    """Make a small model with a text half in transformers, and its folder."""
    folder = tmp_path_factory.mktemp("half")
    return saved("qwen3_5", folder), folder


def stored_in(folder: Path, tmp_path: Path, dtype: str, top: dict[str, Any], text: dict[str, Any]) -> Path:
    """Copy a folder, with its weights in a dtype and these fields at the top of its config and in its text's."""
    tensors = {name: tensor.to(FORMATS[dtype]) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del values["text_config"]["dtype"]
    values |= top | {"text_config": values["text_config"] | text}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return tmp_path


PLACES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("bfloat16", {"dtype": "bfloat16"}, {}),
    ("float16", {"torch_dtype": "float16"}, {}),
    ("bfloat16", {"dtype": "bfloat16", "torch_dtype": "float32"}, {}),
    ("bfloat16", {"dtype": None, "torch_dtype": "bfloat16"}, {"dtype": "float32"}),
    ("bfloat16", {}, {"dtype": "bfloat16"}),
    ("float16", {}, {"torch_dtype": "float16"}),
    ("bfloat16", {}, {}),
    ("float32", {}, {}),
    ("bfloat16", {}, {"dtype": "float32"}),  # the weights count, not a part of the config
)


@pytest.mark.parametrize(("dtype", "top", "text"), PLACES)
def test_a_folder_is_read_as_transformers_reads_it(
    half: tuple[PreTrainedModel, Path], dtype: str, top: dict[str, Any], text: dict[str, Any], tmp_path: Path
) -> None:
    """Expect the top of the config to count, or else the weights."""
    folder = stored_in(half[1], tmp_path, dtype, top, text)
    theirs = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")
    assert theirs.dtype == FORMATS[dtype]
    assert load_model(str(folder)).storage.dtype == theirs.dtype


WITHOUT_WEIGHTS: tuple[tuple[dict[str, Any], dict[str, Any], torch.dtype], ...] = (
    ({}, {"dtype": "bfloat16"}, torch.bfloat16),
    ({}, {"torch_dtype": "float16"}, torch.float16),
    ({"dtype": "float16"}, {"dtype": "bfloat16"}, torch.float16),
    ({"dtype": "auto"}, {"dtype": None, "torch_dtype": "bfloat16"}, torch.bfloat16),
    ({"torch_dtype": "torch.float16"}, {}, torch.float16),
    ({"torch_dtype": "half"}, {}, torch.float16),
    ({"dtype": "float"}, {"dtype": "half"}, torch.float32),
    ({}, {"torch_dtype": "torch.half"}, torch.float16),
    ({"dtype": "double"}, {}, torch.float32),
    ({"dtype": "torch.float64"}, {}, torch.float32),
    ({}, {"dtype": "auto"}, torch.float32),
    ({}, {}, torch.float32),
)


@pytest.mark.parametrize(("top", "text", "dtype"), WITHOUT_WEIGHTS)
def test_a_config_alone_says_it_anywhere(
    half: tuple[PreTrainedModel, Path], top: dict[str, Any], text: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    """Expect its top to count, then its text's section; fp32 if neither states one, bf16 then if it is quantised."""
    folder = stored_in(half[1], tmp_path, "float32", top, text)
    (folder / "model.safetensors").unlink()
    assert build(open_source(str(folder)).config).storage.dtype == dtype
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    values["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    stated = {**values["text_config"], **values}
    says = any(stated.get(name) not in (None, "auto") for name in ("dtype", "torch_dtype"))
    assert stored_dtype(Fields(values, "config.json")) == (dtype if says else torch.bfloat16)


def test_a_dtype_that_is_none_is_named_with_its_place() -> None:
    """Expect the field, the section and the formats that there are."""
    kin = next(kin for kin in KIN if kin.section)
    values = {
        "architectures": [kin.architecture],
        kin.section: CONFIGS["gemma3_text"] | {"torch_dtype": "float8_e4m3fn"},
    }
    with pytest.raises(ModelRefused, match=r"c: text_config: torch_dtype: unknown number format 'float8_e4m3fn'; use"):
        build(Fields(values, "c"))


@pytest.mark.parametrize("name", ["half", "float16", "bfloat16", "float", "float32", "double", "float64"])
def test_every_name_that_transformers_takes(name: str, tmp_path: Path) -> None:
    """Expect the dtype and the numbers of transformers, and fp32 for fp64, in which nothing computes here."""
    tensors = {n: tensor * 0.1 for n, tensor in random_tensors(CONFIGS["llama"]).items()}
    values = {key: value for key, value in CONFIGS["llama"].items() if key != "torch_dtype"} | {"dtype": name}
    theirs = AutoModelForCausalLM.from_pretrained(write_folder(tmp_path, values, tensors), dtype="auto")
    ours = load_model(str(tmp_path))
    wanted = torch.float32 if theirs.dtype == torch.float64 else theirs.dtype
    assert ours.storage.dtype == wanted
    for own, parameter in parameters_of(ours, CONFIGS["llama"]).items():
        assert parameter.dtype == wanted
        assert torch.equal(parameter, theirs.state_dict()[own].to(wanted))


def test_few_numbers_in_fp32_beside_bf16(half: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    """Qwen3.5 stores decays and norms of its linear attention so; transformers takes them in the model's dtype."""
    folder = stored_in(half[1], tmp_path, "bfloat16", {}, {"dtype": "bfloat16"})
    file = folder / "model.safetensors"
    original, tensors = load_file(half[1] / "model.safetensors"), load_file(file)
    wide = {n: original[n] for n in tensors if n.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))}
    assert len(wide) == 4
    save_file(tensors | wide, file, metadata={"format": "pt"})
    theirs = dict(AutoModelForImageTextToText.from_pretrained(folder, dtype="auto").named_parameters())
    ours = load_model(str(folder))
    for name in wide:
        path = name.replace("model.language_model.", "model.")
        mine = next(p for own, p in ours.named_parameters() if ours.checkpoint_name(own) == path)
        assert mine.dtype == torch.bfloat16
        assert torch.equal(mine, theirs[name])
