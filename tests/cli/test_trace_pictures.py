"""`ridgeline trace` of a pipeline as a command: what it prints, what it writes, what it refuses in one line."""

import json
from pathlib import Path

import pytest

from cli.running import OK, USAGE, Run, assert_one_line
from support.checkpoints import random_model
from text.tiny_tokenizers import write_bytes


@pytest.fixture(scope="module")
def brook(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small pipeline."""
    from support.pipelines import z_image

    folder = tmp_path_factory.mktemp("drawing") / "brook"
    z_image(folder)
    return str(folder)


def test_traces_a_picture(ridgeline: Run, tmp_path: Path, brook: str) -> None:
    table, traced, drawn = (tmp_path / name for name in ("ops.csv", "trace.json", "roofline.svg"))
    files = ("--csv", table, "--perfetto", traced, "--roofline", drawn)
    drawing = ("--steps", 3, "--step", 2, "--guidance", 2, "--negative", "rain", "--size", "64x96", "--seed", 4)
    ended = ridgeline(
        "trace", brook, "a heron", *drawing, "--device", "h100-sxm", "--threads", 1, "--repeats", 1, *files
    )
    assert ended.code == OK, ended.err
    for word in ("'a heron'", "64x96 pixels", "seed 4", "guidance 2 (w = 3); step 2 was traced", "one step fewer saves",
                 "more: --full, --section NAME", "brook on NVIDIA H100", "which is another"):  # fmt: skip
        assert word in " ".join(ended.out.split()), word
    assert table.read_text(encoding="utf-8").startswith("step,path,kind")
    assert json.loads(traced.read_text(encoding="utf-8"))["traceEvents"]
    assert drawn.read_text(encoding="utf-8").startswith("<svg")
    assert ended.err.count("wrote ") == 3


def test_sections(ridgeline: Run, brook: str) -> None:
    """By name, or all of them after the answer."""
    quick = ("--device", "h100-sxm", "--threads", 1, "--repeats", 1, "--steps", 2, "--guidance", 0)
    for asked, there, others in (
        (("--section", "decode,encode"), ["decode: the", "encode: the"], ["denoise: one step", "lever"]),
        (("--full",), ["lever", "encode: the", "denoise: one step", "decode: the"], ["more: --full"]),
        (("--layer", "1"), ["denoise: one step", "layers, layer 1"], ["decode: the", "lever"]),
    ):
        ended = ridgeline("trace", brook, "hi", *quick, *asked)
        assert ended.code == OK, ended.err
        assert all(words in ended.out for words in there), ended.out
        assert not any(words in ended.out for words in others), ended.out


def test_json_is_one_object(ridgeline: Run, brook: str) -> None:
    quick = ("--device", "h100-sxm", "--threads", 1, "--repeats", 1, "--json")
    ended = ridgeline("trace", brook, "hi", "--steps", 2, "--guidance", 0, *quick)
    assert ended.code == OK, ended.err
    assert set(ended.json["stages"]["denoise"]["steps"]) == {"denoise"}
    assert ended.json["passes"] == 2


def test_the_second_expert_has_its_own_guidance(ridgeline: Run, tmp_path: Path) -> None:
    from support.pipelines import wan

    wan(tmp_path, experts=True)
    asked = ("--frames", 5, "--steps", 4, "--step", 4, "--guidance", 3, "--second-guidance", 2)
    ended = ridgeline("trace", tmp_path, "hi", *asked, "--device", "h100-sxm", "--threads", 1, "--repeats", 1)
    assert ended.code == OK, ended.err
    assert "guidance 3 (w = 3, 2 for the second expert); step 4 was traced" in " ".join(ended.out.split())


def test_looks_into_a_picture(ridgeline: Run, tmp_path: Path, brook: str) -> None:
    drawn = tmp_path / "looks.svg"
    quick = ("--device", "h100-sxm", "--threads", 1, "--repeats", 1, "--steps", 2)
    ended = ridgeline("trace", brook, "a heron", *quick, "--attention", "--pull", "--svg", drawn)
    assert ended.code == OK, ended.err
    assert "Effect of guidance" in ended.out
    assert "heron:" in ended.out
    assert "Effect of guidance" in drawn.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lens"], "generates images, but --lens is for models that generate text; leave it out"),
        (["--max-tokens", "3"], "--max-tokens is for models that generate text"),
        (["--temperature", "0.5"], "--temperature is for models that generate text"),
        (["--raw"], "--raw is for models that generate text"),
        (["--lora", "x"], "--lora is for models that generate text"),
        (["--position", "3"], "--position is for models that generate text"),
        (["--second-guidance", "3"], "this model has one denoiser, but a second guidance scale needs two"),
        (["--step", "0"], "step is 0; give 1 to"),
        (["--steps", "2", "--step", "3"], "step is 3; give 1 to 2"),
        (["--size", "7x7"], "this model cannot make size 7x7; give one of "),
        (["--size", "wide"], "write width x height"),
        (["--layer", "2"], "but the model has layers 0 to 1; give one of these, or all"),
        (["--section", "stages"], "--section is 'stages'; it must be one or more of encode, pooled, prepare, denoise"),
        (["--repeats", "0"], "repeats is 0; it must be at least 1"),
        (["--pull", "--guidance", "0"], "guidance is off: give --guidance"),
        (["--svg", "looks.svg"], "--svg needs --attention or --pull"),
        (["--pull", "--svg", "looks.png"], "name an .svg file"),
        (["--guidance", "0", "--negative", "rain"], "the negative prompt would have no effect"),
    ],
)
def test_bad_input_is_one_line(ridgeline: Run, brook: str, arguments: list[str], said: str) -> None:
    ended = ridgeline("trace", brook, "a heron", "--device", "h100-sxm", "--threads", 1, *arguments)
    assert_one_line(ended, USAGE, said)


def test_options_of_pictures_are_not_of_texts(ridgeline: Run, tmp_path: Path) -> None:
    sizes = {"vocab_size": 263, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    random_model("llama", sizes, seed=3).save_pretrained(tmp_path)
    write_bytes(tmp_path)
    for name in ("--steps", "--second-guidance"):
        said = f"generates text, but {name} is for diffusion pipelines; leave it out"
        assert_one_line(ridgeline("trace", str(tmp_path), "hi", name, 3), USAGE, said)
