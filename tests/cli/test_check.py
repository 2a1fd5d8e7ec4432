"""`ridgeline check`: sound folders are said to be, each thing that may be wrong is one line and exit code 1."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from cli.running import FAULT, OK, REFUSED, Run, assert_one_line
from engine.folders import CHAT, write_model
from engine.small_models import LLAMA
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.text import load_tokenizer
from ridgeline.insight.check.tokenizer_check import check_tokenizer
from support.gguf_models import letters, made, mixed

MATRIX, NORM = "model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that a test may break."""
    return write_model(tmp_path / "model", template=CHAT, generation={"temperature": 0.5, "do_sample": True})


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def change_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def in_shards(folder: Path) -> Mapping[str, str]:
    """Make two shards and their index of a folder's one file; what the index says."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    listed: dict[str, str] = {}
    for shard, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :])):
        file = f"model-0000{shard + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        listed |= dict.fromkeys(part, file)
    write_index(folder, listed)
    return listed


def write_index(folder: Path, listed: Mapping[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}), encoding="utf-8")


@pytest.mark.parametrize("sharded", [False, True])
def test_a_sound_folder(ridgeline: Run, folder: Path, sharded: bool) -> None:
    if sharded:
        in_shards(folder)
    ended = ridgeline("check", folder)
    assert ended.code == OK, ended.out
    assert ended.out.startswith("model is sound\n")
    assert "8 tokens after 'Once upon a time'" in ended.out
    told = ridgeline("check", folder, "--json").json
    assert told["sound"]
    assert not told["findings"]
    assert told["facts"].keys() == {"config", "files", "tensors", "tokenizer", "chat template", "run"}


@pytest.mark.parametrize(
    ("name", "noted"), [("tales", []), ("mixture", ["chat template"]), ("digits-ar", ["chat template"])]
)
def test_a_built_in_model_is_sound(ridgeline: Run, name: str, noted: list[str]) -> None:
    """mixture has no chat template, and needs none."""
    ended = ridgeline("check", name, "--json")
    assert (ended.code, ended.json["findings"]) == (OK, [])
    assert [note["part"] for note in ended.json["notes"]] == noted


def test_a_name_without_a_folder(ridgeline: Run, tmp_path: Path) -> None:
    assert_one_line(ridgeline("check", "llama-3-8b"), REFUSED, "without files; give a checkpoint folder")
    assert_one_line(ridgeline("check", tmp_path / "nowhere"), REFUSED, "no such folder")


def poke(tensors: dict[str, torch.Tensor], name: str, value: float) -> None:
    tensors[name].view(-1)[3] = value


TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "NaN in a matrix": (lambda t: poke(t, MATRIX, float("nan")), f"numbers: tensor {MATRIX} holds 1 NaN or infinite"),
    "infinity in a norm": (lambda t: poke(t, NORM, float("inf")), f"numbers: tensor {NORM} holds 1 NaN or infinite"),
    "a hole": (lambda t: t[MATRIX].zero_(), f"numbers: tensor {MATRIX} is all zeros"),
    "one that is missing": (
        lambda t: t.pop(MATRIX),
        f"tensors: {MATRIX} is missing; use the checkpoint's own config.json, or fetch",
    ),
    "one too many": (lambda t: t.update(stray=torch.ones(2, 3)), "tensors: stray [2, 3] is not a tensor of this model"),
    "a shape": (lambda t: t.update({MATRIX: t[MATRIX][:5].clone()}), f"tensors: tensor {MATRIX} has shape [5,"),
    "a dtype": (
        lambda t: t.update({NORM: t[NORM].char()}),
        f"tensors: tensor {NORM} has dtype torch.int8, but the config",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors(ridgeline: Run, folder: Path, case: str) -> None:
    """One line each; what was not to be changed is not complained of, and nothing is run."""
    edit, says = TENSORS[case]
    change_tensors(folder, edit)
    ended = ridgeline("check", folder)
    assert ended.code == FAULT
    assert ended.out.count("\n") == 1
    assert ended.out.startswith(says), ended.out


@pytest.mark.parametrize("weights", ["int8", "int4-g32", "fp8"])
def test_a_quantised_folder(ridgeline: Run, tmp_path: Path, weights: str) -> None:
    """Codes and scales are held against each other as they are loaded."""
    write_model(tmp_path / "plain", config={**LLAMA, "hidden_size": 64, "intermediate_size": 96})
    quantise_folder(open_source(str(tmp_path / "plain")), tmp_path / "model", weights)
    assert ridgeline("check", tmp_path / "model").out.startswith("model is sound\n")
    scale = MATRIX.replace("weight", "weight_scale")
    change_tensors(tmp_path / "model", lambda t: poke(t, scale, float("nan")))
    ended = ridgeline("check", tmp_path / "model")
    assert ended.code == FAULT
    assert f"tensors: tensor {scale} holds NaN" in ended.out


def test_a_gguf_file(ridgeline: Run, tmp_path: Path) -> None:
    """Sound, cut off, with a scale that is no number, with a hole, of a type that is not read."""
    path = tmp_path / "small.gguf"
    made(path, "llama", mixed({"attn_q": Type.F16}, Type.Q8_0), metadata=letters)
    ended = ridgeline("check", path)
    assert ended.code == OK, ended.out
    assert ended.out.startswith("small is sound\n")
    assert "8 tokens after" in ended.out
    assert "Q8_0 and F16 and F32" in ended.out
    header, whole = open_source(str(path)).gguf, path.read_bytes()
    assert header is not None
    place = header.tensors["blk.1.ffn_up.weight"]

    def broken(raw: bytes) -> str:
        path.write_bytes(raw)
        found = ridgeline("check", path)
        assert found.code == FAULT
        assert found.out.count("\n") == 1
        return found.out

    nan = whole[: place.begin] + b"\x00\x7e" + whole[place.begin + 2 :]
    assert broken(nan).startswith(f"tensors: tensor {MATRIX} has scales that are NaN or infinity")
    hole = whole[: place.begin] + bytes(place.end - place.begin) + whole[place.end :]
    assert broken(hole).startswith(f"numbers: tensor {MATRIX} is all zeros")
    assert broken(whole[:-100]).startswith(f"header: {path} is truncated: tensor")
    wide = whole.replace(b"llama.context_length", b"llama.expert_counted")
    assert "max_position_embeddings" in broken(wide)


def test_what_is_wrong_with_all_tensors_is_a_few_lines(ridgeline: Run, folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({name: tensor.char() for name, tensor in t.items()}))
    lines = ridgeline("check", folder).out.splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith("tensors: and so are ")


def test_shards(ridgeline: Run, folder: Path) -> None:
    listed = in_shards(folder)
    first, second = sorted(set(listed.values()))
    one = next(name for name, file in listed.items() if file == first)
    write_index(folder, {**listed, one: second})
    ended = ridgeline("check", folder)
    assert ended.code == FAULT
    assert f"files: {first} holds {one}, which" in ended.out
    assert f"files: {second} lacks {one}, which" in ended.out
    write_index(folder, listed)
    data = (folder / first).read_bytes()
    (folder / first).write_bytes(data[:-10])
    (folder / second).unlink()
    lines = ridgeline("check", folder).out.splitlines()
    assert len(lines) == 2
    assert "is truncated" in lines[0]
    assert lines[1].startswith(f"files: {second} is missing")


def test_special_ids(ridgeline: Run, folder: Path) -> None:
    change(folder, "config.json", bos_token_id=99_999)
    change(folder, "generation_config.json", eos_token_id=[1, 2], pad_token_id="x")
    lines = ridgeline("check", folder).out.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "special ids: config.json: bos_token_id is 99999, but the model has ids 0 to 259",
        "special ids: generation_config.json: pad_token_id is 'x'",
        "special ids: config.json has the end-of-text tokens 257, but generation_config.json has 1 and 2",
    ]


def test_generation_config(ridgeline: Run, folder: Path) -> None:
    """What is out of range is wrong; what this version does not do is worth knowing."""
    change(folder, "generation_config.json", num_beams=4)
    ended = ridgeline("check", folder)
    assert (ended.code, ended.err) == (OK, "generation_config: sets num_beams, which this version does not support\n")
    change(folder, "generation_config.json", temperature=-1)
    ended = ridgeline("check", folder)
    assert (ended.code, ended.out.count("\n")) == (FAULT, 1)
    assert ended.out.startswith("generation_config: temperature")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ nothing.at.all }}", "chat template: chat template: "),
        ("{{ bos_token }}assistant:", "leaves out this user message"),
        ("{% if %}", "not valid Jinja"),
    ],
)
def test_chat_templates(ridgeline: Run, folder: Path, template: str, says: str) -> None:
    change(folder, "tokenizer_config.json", chat_template=template)
    ended = ridgeline("check", folder)
    assert ended.code == FAULT
    assert says in ended.out


def test_keys_that_nothing_reads_are_named_here_alone(ridgeline: Run, tmp_path: Path) -> None:
    """Also those of the quantization config. A newcomer's `run`, `plan` and `show` spoke of them too."""
    write_model(tmp_path / "plain", template=CHAT)
    folder = tmp_path / "model"
    quantise_folder(open_source(str(tmp_path / "plain")), folder, "int8")
    section = json.loads((folder / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    change(folder, "config.json", _model_name_or_path="x", quantization_config=section | {"rotations": [1, 2]})
    named = ["'_model_name_or_path'", "'quantization_config.rotations'"]
    ended = ridgeline("check", folder)
    assert (ended.code, ended.err.splitlines()) == (
        OK,
        [f"config: the unknown field {name} is ignored" for name in named],
    )
    short = ("--device", "l4", "--input", 20, "--output", 8)
    for command in (("run", folder, "hi", "--max-tokens", 1), ("plan", folder, *short), ("show", folder)):
        ended = ridgeline(*command)
        assert ended.code == OK, ended.err
        assert not any(name in ended.out + ended.err for name in ("_model_name_or_path", "rotations"))


def test_a_template_without_a_system_message(ridgeline: Run, folder: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT
    change(folder, "tokenizer_config.json", chat_template=refusing)
    ended = ridgeline("check", folder)
    assert (ended.code, ended.err) == (OK, "chat template: does not support a system message\n")


def test_a_tokenizer_of_another_model(ridgeline: Run, folder: Path) -> None:
    """Its ids reach beyond the embedding: such a prompt would fail."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    ended = ridgeline("check", folder)
    assert ended.code == FAULT
    assert ended.out.startswith(
        "tokenizer: it has ids up to 260, but the model has only 260: 1 would fail, the first is '<pad>'"
    )
    (folder / "tokenizer.json").unlink()
    assert "tokenizer: " in ridgeline("check", folder).out


def test_a_tokenizer_that_loses_text(tmp_path: Path) -> None:
    """One that spells every byte may lose none: here a normalizer drops digits."""
    folder = write_model(tmp_path / "model")
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    assert check_tokenizer(load_tokenizer(folder), None) == ([], [])
    values["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": ""}
    path.write_text(json.dumps(values), encoding="utf-8")
    problems, _ = check_tokenizer(load_tokenizer(folder), None)
    assert [problem.partition(":")[0] for problem in problems] == ["encoding loses digits", "encoding loses code"]
