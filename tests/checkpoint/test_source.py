"""A source: what a name stands for, with all its components, found and read once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models.configs import CONFIGS
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import ModelSource, open_source, read_config
from ridgeline.core.checkpoint.hub_cache import hub_cache
from ridgeline.core.checkpoint.source import name_conflict_note
from ridgeline.core.models import ModelRefused, build
from ridgeline.core.models.common.recipes import read_recipe
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
    ("file", "values", "named", "kv"),
    [
        ("hf_quant_config.json", MODELOPT, "modelopt nvfp4", None),
        ("hf_quant_config.json", {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "NVFP4"}}, "", "nvfp4"),
    ],
)
def test_weights_quantised_by_a_tool_that_says_so_in_a_file_of_its_own(
    file: str, values: object, named: str, kv: str | None, folder: Path
) -> None:
    """The folder and its config are priced as that file says, and do not run; a config that says it too is believed."""
    write(folder / file, values)
    for name in (folder, folder / "config.json"):
        recipe = read_recipe(read_config(str(name)))
        assert (recipe.name, recipe.kv.name if recipe.kv else None) == (named, kv)
        assert not build(read_config(str(name))).runs
    with pytest.raises(ModelRefused, match=r"cannot run yet, only be priced \(ridgeline plan, show"):
        load_model(str(folder))
    with pytest.raises(ModelRefused, match="cannot run yet, only be priced"):
        load_model(str(folder), dummy_weights=True)
    write(folder / "config.json", LLAMA | {"quantization_config": {"quant_method": "fp8"}})
    assert read_recipe(read_config(str(folder))).name == "fp8 tensor"


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32}, "gptq int4 g32"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 32}, "awq int4 g32"),
    ],
)
def test_a_tool_whose_weights_run(file: str, values: object, named: str, folder: Path) -> None:
    """What its own file says is how tensors are looked for: those of a plain checkpoint are not the model's."""
    write(folder / file, values)
    config = read_config(str(folder))
    assert read_recipe(config).name == named
    assert build(config).runs
    with pytest.raises(ModelRefused, match="has tensors that the model lacks"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("section", "kv"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"producer": {"name": "modelopt"}, "quant_algo": "FP8", "kv_cache_scheme": None}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "fp8"}, None),
    ],
)
def test_modelopt_s_file_states_what_its_section_leaves_out(
    section: dict[str, object], kv: str | None, folder: Path
) -> None:
    """Check the format of keys and values: what the section states counts, and another tool's section takes nothing."""
    write(folder / "config.json", LLAMA | {"quantization_config": section})
    write(folder / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    recipe = read_recipe(read_config(str(folder)))
    assert (recipe.kv and recipe.kv.name) == kv
    assert "fp8 tensor" in recipe.name


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("hf_quant_config.json", {}, "does not say how the weights are quantized"),
        ("hf_quant_config.json", {"quantization": {}}, "quant_algo is missing"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP3"}}, "quant_algo 'FP3' is not supported; FP8"),
        ("quantize_config.json", {"group_size": 128}, "bits is missing"),
        ("quant_config.json", {"w_bit": 40}, "w_bit is 40"),
    ],
)
def test_a_tool_s_file_that_does_not_say_enough(file: str, values: object, says: str, folder: Path) -> None:
    """It is named, and never taken for weights that are not quantised."""
    write(folder / file, values)
    with pytest.raises(ModelRefused) as caught:
        build(read_config(str(folder)))
    assert says in str(caught.value)
    assert file in str(caught.value)


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
    source: ModelSource = open_source(str(data_dir / "configs" / release))
    assert (source.pipeline, len(source.components)) == (pipeline, count)
    vae = source.components["vae"]
    assert vae.kind == "AutoencoderKL"
    assert vae.config is not None
    assert f"is a {pipeline} of several components" in refusal(data_dir / "configs" / release)
    assert "AutoencoderKL is an autoencoder, a part of a pipeline that generates images" in built_refusal(
        data_dir / "configs" / release / "vae"
    )


def built_refusal(folder: Path) -> str:
    """What the config of a component is refused with when it is to be built."""
    with pytest.raises(ModelRefused) as caught:
        build(read_config(str(folder)))
    return str(caught.value)


@pytest.mark.parametrize("beside", [True, False])
def test_an_adapter_is_named(beside: bool, folder: Path) -> None:
    """A model without it would not be what the folder holds."""
    adapter: dict[str, Any] = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "somewhere/else"}
    write(folder / "adapter_config.json", adapter)
    if not beside:
        (folder / "config.json").unlink()
    assert open_source(str(folder)).components["adapter"].kind == "LORA"
    assert f"holds an adapter (LORA), not a model by itself; give its base model, and --lora {folder}" in (
        refusal(folder)
    )


# -- the cache of Hugging Face's tools ---------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, which the environment names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, name: str, *commits: str, main: str | None = None) -> None:
    """A model as huggingface_hub keeps it: files are links to blobs, refs/main names a snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    for commit in commits:
        write(repository / "blobs" / commit, LLAMA | {"max_position_embeddings": int(commit, 16) + 64})
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").symlink_to(Path("../../blobs") / commit)
    if main is not None:
        write(repository / "refs" / "main", main)


def context_of(name: str) -> int:
    return build(read_config(name)).context


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HF_HUB_CACHE", "{}"), ("HUGGINGFACE_HUB_CACHE", "{}"), ("HF_HOME", "{}/.."), ("XDG_CACHE_HOME", "{}/../..")],
)
def test_where_the_cache_is(variable: str, value: str, tmp_path: Path) -> None:
    """As huggingface_hub's own constants read the environment, which a process of its own computes."""
    hub = tmp_path / "huggingface" / "hub"
    value = value.format(hub)
    found = hub_cache({variable: value})
    program = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("HF_", "HUGGING", "XDG_"))}
    theirs = subprocess.run(
        [sys.executable, "-c", program], env=environment | {variable: value}, capture_output=True, text=True, check=True
    )
    assert found.resolve() == Path(theirs.stdout.strip()).resolve() == hub


def test_a_model_of_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id, by its folder's name and by its path: the snapshot of refs/main, else the only one."""
    put(cache, "org/name", "a1", "b2", main="b2\n")
    put(cache, "org/other.v1_x", "c3")
    for name in ("org/name", "models--org--name", str(cache / "models--org--name")):
        assert context_of(name) == 0xB2 + 64
        assert open_source(name).name == name
    assert context_of("org/other.v1_x") == 0xC3 + 64
    write(cache.parent / "org" / "name" / "config.json", LLAMA)
    assert context_of("org/name") == LLAMA["max_position_embeddings"], "a path comes before an id"


@pytest.mark.parametrize("main", ["ff", "../../..", "", "a1/../a1", "\u00e9", "a" * 500])
def test_a_cache_that_does_not_say_which(main: str, cache: Path) -> None:
    """A ref that names no snapshot beside it is refused, whatever stands in it."""
    put(cache, "org/name", "a1", "b2", main=main)
    assert "names a snapshot that does not exist" in refusal("org/name")
    (cache / "models--org--name" / "refs" / "main").unlink()
    assert "has 2 snapshots and no refs/main" in refusal("org/name")


def test_an_id_that_is_nowhere(cache: Path) -> None:
    """Near names of the cache and of the catalogue are offered, and the command that downloads the model is named."""
    put(cache, "somebody/Tiny-Llama", "a1")
    message = refusal("someone/tiny-lama")
    cached = f"and no model of that id in the Hugging Face cache ({cache}), where `hf download someone/tiny-lama` would"
    assert f"{cached} put it; did you mean somebody/Tiny-Llama" in message
    assert "did you mean qwen3-0.6b" in refusal("Qwen/Qwen3-0.6B")
    assert "did you mean" not in refusal("zzz/qqqqqq")
    assert "no such folder: ../somewhere; give" in refusal("../somewhere")
    assert "no such file: ../some.gguf; give" in refusal("../some.gguf")
    assert "no such model or folder: models--a--b" in refusal("models--a--b")


def test_a_folder_of_gguf_files_names_them(tmp_path: Path) -> None:
    """As releases of GGUF come: a folder with a file for each type, and no config.json."""
    for number in range(10):
        (tmp_path / f"model.Q{number}.gguf").touch()
    said = refusal(tmp_path)
    assert "no config.json; give one of its GGUF files by its path: model.Q0.gguf, model.Q1.gguf" in said
    assert said.endswith("model.Q7.gguf or 2 more")


def test_a_folder_with_the_name_of_a_known_model(cache: Path) -> None:
    """What is passed over is named; a name that is no folder passes nothing over."""
    put(cache, "org/name", "a1")
    assert [name_conflict_note(name) for name in ("tales", "org/name", "llama-3-8b")] == ["", "", ""]
    for name in ("tales", "org/name", "llama-3-8b", "mine"):
        write(cache.parent / name / "config.json", LLAMA)
    assert name_conflict_note("tales") == "tales means the folder of that name here, not the built-in model tales"
    assert name_conflict_note("org/name").endswith("not the model org/name in the Hugging Face cache")
    assert name_conflict_note("llama-3-8b").endswith("not the config llama-3-8b of the catalogue")
    assert [name_conflict_note(name) for name in ("./tales", "mine")] == ["", ""]
    assert context_of("tales") == LLAMA["max_position_embeddings"]


@pytest.mark.parametrize("name", ["tales", "org/name", "llama-3-8b"])
def test_a_folder_that_nothing_describes_hides_no_model(name: str, cache: Path) -> None:
    """`tales` beside one's own texts was "not a model: it has no config.json"."""
    put(cache, "org/name", "a1")
    wanted = context_of(name)
    write(cache.parent / name / "notes.txt", "once upon a time")
    assert context_of(name) == wanted
    assert name_conflict_note(name).endswith(", not the folder of that name here, which has no config.json")
    assert open_source(name).title == name
    assert "no config.json" in refusal(f"./{name}")


def test_an_adapter_or_a_pipeline_is_no_empty_folder(cache: Path) -> None:
    write(cache.parent / "tales" / "adapter_config.json", {"peft_type": "LORA"})
    assert "holds an adapter (LORA)" in refusal("tales")
    write(cache.parent / "gpt2" / "model_index.json", {"_class_name": "FluxPipeline"})
    assert "is a FluxPipeline" in refusal("gpt2")


def test_a_source_is_called_as_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` called a model by its whole path."""
    write(tmp_path / "My-8B" / "config.json", LLAMA)
    write(tmp_path / "wider.json", LLAMA)
    monkeypatch.chdir(tmp_path / "My-8B")
    for name in (".", "config.json", "../My-8B/", str(tmp_path / "My-8B"), str(tmp_path / "My-8B" / "config.json")):
        assert open_source(name).title == "My-8B", name
    assert open_source("../wider.json").title == "wider"
    assert [open_source(name).title for name in ("tales", "llama-3-8b")] == ["tales", "llama-3-8b"]


@pytest.mark.parametrize("name", ["", " "])
def test_no_name_at_all(name: str) -> None:
    """It was the folder that one is in."""
    assert refusal(name).startswith("the name of the model is empty; give a config.json")
