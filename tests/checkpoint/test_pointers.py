"""A repository that was cloned without Git LFS holds pointers instead of files: each is named as what it is."""

import shutil
from pathlib import Path

import pytest

from ridgeline.core.checkpoint.adapter import read_adapter
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.source import BUILTIN, open_source
from ridgeline.core.models import ModelRefused
from ridgeline.core.text import load_tokenizer
from ridgeline.core.text.chat_template import read_template
from ridgeline.engine.setup import load_engine
from ridgeline.insight.check import check_model
from ridgeline.media.diffusion.pipeline_loader import load_pipeline

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 4850744\n"
SEEN_BY_PEOPLE = {"README.md", "samples.png"}


def files_of(*models: str) -> list[str]:
    """The files of built-in models that something reads."""
    paths = (path for model in models for path in sorted((BUILTIN / model).rglob("*")) if path.is_file())
    return [str(path.relative_to(BUILTIN)) for path in paths if path.name not in SEEN_BY_PEOPLE]


def with_pointer(file: str, folder: Path) -> Path:
    """A copy of the built-in model that has a file, in which that file is a pointer."""
    model, _, inside = file.partition("/")
    shutil.copytree(BUILTIN / model, folder / model)
    (folder / model / inside).write_text(POINTER, encoding="utf-8")
    return folder / model


def check(refused: pytest.ExceptionInfo[ValueError], file: str) -> None:
    """Assert that the refusal is one line that names the file and the fix."""
    message = str(refused.value)
    assert f"{file} is a Git LFS pointer" in message
    assert message.count("git lfs pull") == 1
    assert "again" not in message
    assert "\n" not in message


@pytest.mark.parametrize("file", files_of("tales"))
def test_every_file_of_a_language_model(file: str, tmp_path: Path) -> None:
    """Weights, configs, tokenizer and chat template."""
    with pytest.raises(ModelRefused) as refused:
        load_engine(str(with_pointer(file, tmp_path)))
    check(refused, file)


@pytest.mark.parametrize("file", files_of("digits", "digits-video"))
def test_every_file_of_a_pipeline(file: str, tmp_path: Path) -> None:
    """The denoiser's, the VAE's, the text encoder's and its tokenizer's, the index and the scheduler's."""
    with pytest.raises(ModelRefused) as refused:
        load_pipeline(str(with_pointer(file, tmp_path)))
    check(refused, file)


@pytest.mark.parametrize(
    ("file", "beside"),
    [
        ("vocab.json", "merges.txt"),
        ("merges.txt", "vocab.json"),
        ("vocab.txt", ""),
        ("tokenizer.model", ""),
        ("spiece.model", ""),
        ("special_tokens_map.json", ""),
    ],
)
def test_vocabularies(file: str, beside: str, tmp_path: Path) -> None:
    """A pointer is a vocab.txt of three pieces, and a merges.txt without merges."""
    if beside:
        (tmp_path / beside).write_text("{}" if beside.endswith("json") else "#version: 0.2\n", encoding="utf-8")
    (tmp_path / file).write_text(POINTER, encoding="utf-8")
    with pytest.raises(ValueError, match="pointer") as refused:
        load_tokenizer(tmp_path)
    check(refused, file)


@pytest.mark.parametrize(
    "file",
    ["model-00002-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
     "diffusion_pytorch_model.safetensors"],
)  # fmt: skip
def test_weights(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(POINTER, encoding="utf-8")
    if file.startswith("model-"):
        (tmp_path / "model-00001-of-00002.safetensors").write_text(POINTER, encoding="utf-8")
        file = "model-00001-of-00002.safetensors"
    with pytest.raises(ModelRefused) as refused:
        open_checkpoint(tmp_path)
    check(refused, file)


def test_a_gguf_file(tmp_path: Path) -> None:
    """Shorter than a header is, or not."""
    for pointer in (POINTER, POINTER.replace("4850744", "1")):
        (tmp_path / "m.gguf").write_text(pointer, encoding="utf-8")
        with pytest.raises(ModelRefused) as refused:
            open_source(str(tmp_path / "m.gguf"))
        check(refused, "m.gguf")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter(file: str, tmp_path: Path) -> None:
    config = '{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}'
    (tmp_path / "adapter_config.json").write_text(config, encoding="utf-8")
    (tmp_path / file).write_text(POINTER, encoding="utf-8")
    with pytest.raises(ModelRefused) as refused:
        read_adapter("one", str(tmp_path))
    check(refused, file)


def test_a_chat_template_of_its_own(tmp_path: Path) -> None:
    """`--chat-template FILE`: the pointer would have been the prompt."""
    path = tmp_path / "t.jinja"
    path.write_text(POINTER, encoding="utf-8")
    with pytest.raises(ModelRefused) as refused:
        read_template(path, load_tokenizer(BUILTIN / "tales"))
    check(refused, "t.jinja")


def test_check_names_it(tmp_path: Path) -> None:
    """`ridgeline check` has it as a finding."""
    report = check_model(str(with_pointer("tales/model.safetensors", tmp_path)))
    assert any("Git LFS pointer" in finding.problem for finding in report.findings)


def test_a_file_that_only_begins_like_one_is_none(tmp_path: Path) -> None:
    """A pointer has at most 1024 bytes."""
    path = tmp_path / "t.jinja"
    path.write_text(POINTER + "{# " + "x" * 1024 + " #}", encoding="utf-8")
    read_template(path, load_tokenizer(BUILTIN / "tales"))
