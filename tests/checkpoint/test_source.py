"""A source: what a name stands for, with all its components, found and read once."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.configs import CONFIGS
from ridgeline.checkpoint import Source, load_model, open_source, read_config
from ridgeline.models import ModelRefused, build
from support.checkpoints import random_tensors, write_folder

LLAMA = CONFIGS["llama"]
MODELOPT = {"producer": {"name": "modelopt", "version": "0.29"}, "quantization": {"quant_algo": "NVFP4"}}


def write(path: Path, values: object) -> None:
    """A JSON file, in a folder that is made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")


def refusal(name: Path | str) -> str:
    """The one line with which the config of a source is refused."""
    with pytest.raises(ModelRefused) as caught:
        open_source(str(name)).config  # noqa: B018 - a property that checks
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 600
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small, whole Llama in one file."""
    return write_folder(tmp_path, LLAMA, random_tensors(LLAMA))


# -- quantised weights that the config does not tell of ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("hf_quant_config.json", MODELOPT, "ModelOpt NVFP4"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, "ModelOpt FP8"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, "ModelOpt FP8"),
        ("hf_quant_config.json", {}, "ModelOpt"),
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "GPTQ"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128}, "AWQ"),
    ],
)
def test_weights_quantised_by_a_tool_that_says_so_in_a_file_of_its_own(
    file: str, values: object, named: str, folder: Path
) -> None:
    """The method and the file are named, whether the folder is to be run or its config to be priced."""
    write(folder / file, values)
    for way in (lambda: load_model(str(folder)), lambda: build(read_config(str(folder / "config.json")))):
        with pytest.raises(ModelRefused, match=f"quantised by {named} .*{file}"):
            way()


def test_a_tool_that_left_the_weights_alone(folder: Path) -> None:
    """ModelOpt writes its file also where it quantised nothing."""
    write(folder / "hf_quant_config.json", {"quantization": {"quant_algo": None, "kv_cache_quant_algo": None}})
    load_model(str(folder))


@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "hf_quant_config.json", "adapter_config.json"]
)
@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{", "[]", " " * (16 << 20) + "{}"], ids=["deep", "cut", "list", "long"]
)
def test_a_file_that_describes_a_model_and_is_broken(file: str, content: str, folder: Path) -> None:
    """Its path, in one line."""
    write(folder / file, content)
    assert str(folder / file) in refusal(folder)


# -- components --------------------------------------------------------------------------------------------------------


def test_a_folder_is_one_model(folder: Path) -> None:
    """Its config and its defaults are there, read once; a source serves instead of a name."""
    write(folder / "generation_config.json", {"temperature": 0.5})
    source = open_source(str(folder))
    assert list(source.components) == ["model"]
    assert source.model.kind == "LlamaForCausalLM"
    assert source.config is source.model.config
    assert source.config.values == LLAMA
    assert source.generation == {"temperature": 0.5}
    assert source.has_weights
    for path in folder.glob("*.json"):
        path.unlink()  # what was read is not read again
    assert load_model(source).vocabulary == LLAMA["vocab_size"]


def test_a_config_by_itself_and_one_of_the_catalogue(tmp_path: Path) -> None:
    """A config has the folder around it, whatever it is called; the catalogue has neither weights nor a folder."""
    write(tmp_path / "llama.json", LLAMA)
    source = open_source(str(tmp_path / "llama.json"))
    assert (source.folder, source.has_weights, source.generation) == (tmp_path, False, {})
    assert source.config.values == LLAMA
    listed = open_source("llama-3-8b")
    assert (listed.folder, listed.has_weights) == (None, False)
    assert open_source("tales").has_weights


def test_a_pipeline_has_components_and_is_not_run(tmp_path: Path) -> None:
    """Each has its class, and its config where its folder is there; a name that leads elsewhere is none."""
    entries = {
        "_class_name": "SomePipeline",
        "scheduler": ["diffusers", "FlowMatch"],
        "text_encoder": ["transformers", "T5EncoderModel"],
        "vae": [None, None],
        "requires_safety_checker": True,
        "../outside": ["diffusers", "Outside"],
    }
    write(tmp_path / "pipe" / "model_index.json", entries)
    write(tmp_path / "pipe" / "text_encoder" / "config.json", LLAMA)
    source = open_source(str(tmp_path / "pipe"))
    assert {name: part.kind for name, part in source.components.items()} == {
        "scheduler": "FlowMatch", "text_encoder": "T5EncoderModel",
    }  # fmt: skip
    assert source.components["text_encoder"].config is not None
    assert source.components["scheduler"].config is None
    message = refusal(tmp_path / "pipe")
    assert "SomePipeline of several components (scheduler: FlowMatch, text_encoder: T5EncoderModel)" in message
    assert open_source(str(tmp_path / "pipe" / "text_encoder")).model.kind == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("release", "pipeline", "count"),
    [
        ("black-forest-labs__FLUX.1-schnell", "FluxPipeline", 7),
        ("stabilityai__stable-diffusion-3-medium-diffusers", "StableDiffusion3Pipeline", 9),
    ],
)
def test_real_pipelines(release: str, pipeline: str, count: int, data_dir: Path) -> None:
    """Those of two releases."""
    source: Source = open_source(str(data_dir / "configs" / release))
    assert (source.pipeline, len(source.components)) == (pipeline, count)
    vae = source.components["vae"]
    assert vae.kind == "AutoencoderKL"
    assert vae.config is not None
    assert f"is a {pipeline} of several components" in refusal(data_dir / "configs" / release)
    assert "AutoencoderKL is not supported" in built_refusal(data_dir / "configs" / release / "vae")


def built_refusal(folder: Path) -> str:
    """What the config of a component is refused with when it is to be built."""
    with pytest.raises(ModelRefused) as caught:
        build(read_config(str(folder)))
    return str(caught.value)


@pytest.mark.parametrize("beside", [True, False])
def test_an_adapter_is_named(beside: bool, folder: Path) -> None:
    """Nothing applies it yet, so that a model without it would not be what the folder holds."""
    adapter: dict[str, Any] = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "somewhere/else"}
    write(folder / "adapter_config.json", adapter)
    if not beside:
        (folder / "config.json").unlink()
    assert open_source(str(folder)).components["adapter"].kind == "LORA"
    assert "holds an adapter (LORA)" in refusal(folder)
