"""The command line's contract: exit codes, one line for an error, what --json holds, and the list of all options."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import typer.main
from gguf import GGMLQuantizationType as Type
from typer.testing import CliRunner

from cli.running import INTERRUPTED, OK, REFUSED, USAGE, Ended, Run, assert_one_line
from engine.folders import CHAT, write_model
from engine.small_models import LLAMA, MAMBA
from ridgeline import __version__
from ridgeline.backends.cpu.library import library
from ridgeline.cli import calibrate, env
from ridgeline.cli import main as command_line
from ridgeline.core.checkpoint.gguf_header import read_gguf_header
from ridgeline.core.models.from_transformers import installed_package
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.insight.calibrate.calibration import Calibration, FittedClass
from ridgeline.insight.calibrate.calibration_file import save
from ridgeline.insight.calibrate.roofs import MemoryStream
from ridgeline.price.device import Cache, Efficiency, HostTime
from ridgeline.price.host_parts import HostParts, PartTime, SamplingTime
from ridgeline.price.slowdown import Slowdown
from ridgeline.util.host import cores
from support.gguf_models import made, mixed

COMMANDS = Path(__file__).parent / "commands.txt"
PROGRAM = Path(sys.executable).with_name("ridgeline")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A model that a test may break."""
    return write_model(tmp_path / "model")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


# -- errors -----------------------------------------------------------------------------------------------------------


def test_no_such_folder(ridgeline: Run, tmp_path: Path) -> None:
    assert_one_line(ridgeline("run", tmp_path / "nowhere", "hi"), REFUSED, "no such folder", "nowhere")
    assert_one_line(ridgeline("show", tmp_path / "nowhere"), REFUSED, "no such folder")
    assert_one_line(ridgeline("tokenize", tmp_path / "nowhere", "hi"), REFUSED, "no such folder")


def test_misspelt_models(ridgeline: Run) -> None:
    """The nearest names, and what there is: every command takes the built-in models and those of the catalogue."""
    assert_one_line(ridgeline("run", "talez", "hi"), REFUSED, "no such model or folder: talez; did you mean tales")
    assert_one_line(ridgeline("run", "nosuch", "hi"), REFUSED, "a built-in model (mixture, tales, translate), or an id")
    planned = ridgeline("plan", "lama3-8b", "--device", "h100-sxm")
    assert_one_line(planned, REFUSED, "no such model or folder: lama3-8b; did you mean llama-3-8b or")
    for command in (("plan", "nope", "--device", "h100-sxm"), ("show", "nope")):
        ended = ridgeline(*command)
        assert_one_line(ended, REFUSED, "no such model or folder: nope; give a config.json", "`ridgeline plan --list`")
    absent = ridgeline("plan", "/nonexistent/config.json", "--device", "h100-sxm")
    assert_one_line(absent, REFUSED, "no such file: /nonexistent/config.json; give a config.json")


def test_not_a_model(ridgeline: Run, tmp_path: Path) -> None:
    assert_one_line(ridgeline("run", tmp_path, "hi"), REFUSED, "no config.json")
    assert_one_line(ridgeline("show", tmp_path), REFUSED, "no config.json")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert_one_line(ridgeline("run", tmp_path, "hi"), REFUSED, "has neither architectures nor model_type")
    (tmp_path / "config.json").write_text("{nonsense", encoding="utf-8")
    assert_one_line(ridgeline("run", tmp_path, "hi"), REFUSED, "not valid JSON")


def test_weights_as_pickle_only(ridgeline: Run, own_folder: Path) -> None:
    (own_folder / "model.safetensors").rename(own_folder / "pytorch_model.bin")
    assert_one_line(ridgeline("run", own_folder, "hi"), REFUSED, "pickle", "safetensors")


def test_no_weights(ridgeline: Run, own_folder: Path) -> None:
    (own_folder / "model.safetensors").unlink()
    assert_one_line(ridgeline("run", own_folder, "hi"), REFUSED, "no *.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights(ridgeline: Run, own_folder: Path, kept: int) -> None:
    path = own_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert_one_line(ridgeline("run", own_folder, "hi"), REFUSED, "truncated", "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor is nan"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ({"architectures": ["BrandNewForCausalLM"]}, "BrandNewForCausalLM is not supported"),
        ({"architectures": [], "model_type": "brand_new"}, "brand_new is not supported"),
        ({"torch_dtype": "int3"}, "int3"),
        (
            {"quantization_config": {"quant_method": "aqlm"}},
            "'aqlm' are not supported; fp8, fbgemm_fp8, compressed-tensors",
        ),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
    ],
)
def test_configs_that_cannot_be(ridgeline: Run, own_folder: Path, changes: dict[str, Any], says: str) -> None:
    change_config(own_folder, **changes)
    assert_one_line(ridgeline("run", own_folder, "hi"), REFUSED, says)
    shown = ridgeline("show", own_folder)
    assert shown.code == REFUSED
    assert says in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x" * 300], "the prompt has 300 tokens, but the model's context is 256"),
        (["hi", "--temperature", "nan"], "temperature is nan"),
        (["hi", "--temperature", "-1"], "temperature is -1"),
        (["hi", "--top-p", "0"], "ridgeline: --top-p is 0"),
        (["hi", "--min-p", "2"], "ridgeline: --min-p is 2"),
        (["hi", "--max-tokens", "0"], "--max-tokens is '0'"),
        (["hi", "--max-tokens", "many"], "--max-tokens"),
        (
            ["hi", "--max-tokens", "100000"],
            "2 tokens of prompt and 100,000 of --max-tokens are 100,002; the model's context is 256; "
            "give --max-tokens 254 or less",
        ),
        (["hi", "--max-tokens", "64", "--kv-memory", "10KiB"], "KV memory holds 32; give --max-tokens 30 or less"),
        (["hi", "-n", "0"], "n is 0"),
        (["hi", "--stop", ""], "stop"),
        (["hi", "--kv-memory", "512"], "--kv-memory is '512'; write an amount of memory above 0 with its unit"),
        (["hi", "--kv-memory", "0GiB"], "--kv-memory is '0GiB'; write an amount of memory"),
        (["hi", "--kv-memory", "0.1KiB"], "does not hold a single page of 16 positions: raise --kv-memory to 4KiB"),
        (["hi", "--seed", str(2**70)], "(if not given, a random seed is drawn)"),
        (["hi", "--chunk", "0"], "--chunk is '0'"),
        (["hi", "--max-batch-tokens", "0"], "--max-batch-tokens is '0'"),
        (["hi", "--page-size", "0"], "--page-size is 0; it must be at least 1 position"),
        (["hi", "--kv-memory", "1"], "(B, KiB, MiB, GiB, TiB, KB, MB, GB or TB)"),
        (["hi", "--kv-memory", "1GiB", "--memory-share", "0.5"], "--kv-memory and --memory-share both limit"),
        (["hi", "--min-tokens", "9", "--max-tokens", "4"], "--min-tokens is 9; give at most --max-tokens, which is 4"),
        (["hi", "--speculate", "ngram", "--speculate-tokens", "99"], "--speculate-tokens is 99; give an integer"),
        (["hi", "-sc", '{"method": "eagle"}'], "--speculative-config: method is 'eagle', but only ngram and"),
        (["hi", "--traceback"], "--traceback must come first: ridgeline --traceback COMMAND ..."),
        (["hi", "--threads", "0"], "--threads is 0"),
        (["hi", "--system", "be kind"], "--system needs a chat template"),
        (["hi", "--logprobs", "9999", "--json"], "logprobs is 9999"),
        (["hi", "--logprobs", "2"], "--json"),
        ([""], "the prompt is empty"),
        (["hi", "--no-such-option"], "--no-such-option"),
        ([], "prompt"),
        (["hi", "there"], "unexpected argument 'there'; put the prompt in quotes (see ridgeline run --help)"),
    ],
)
def test_usage_errors(ridgeline: Run, folder: Path, arguments: list[str], says: str) -> None:
    assert_one_line(ridgeline("run", folder, *arguments), USAGE, says)


def test_a_prompt_too_long_for_kv_memory(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("run", folder, "x" * 60, "--kv-memory", "10KiB")
    assert_one_line(ended, USAGE, "the prompt has 60 tokens, but the KV cache holds 32")


def test_by_default_the_context_is_filled(ridgeline: Run, folder: Path) -> None:
    """Only a --max-tokens that was given is refused: nobody asked for 256 tokens here."""
    ended = ridgeline("run", folder, "x" * 200, "--ignore-eos", "--json")
    assert (ended.code, len(ended.json["token_ids"])) == (OK, 56)


def test_an_unknown_command(ridgeline: Run) -> None:
    assert_one_line(ridgeline("fly"), USAGE, "fly", "(see ridgeline --help)")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lab", "none"], "no such command: none; lab has "),
        (["lab", "memori"], "no such command: memori; did you mean memory? (see ridgeline lab --help)"),
        (["bench", "foo"], "no such command: foo; bench has serve and engine (see ridgeline bench --help)"),
        (["serve", "tales", "--api-key", ""], "--api-key is empty; give at least one printable character"),
        (["serve", "tales", "--record", "no/dir"], "cannot write no/dir: there is no folder no; make it first"),
        (["serve", "tales", "--allowed-hosts", "[bad"], "--allowed-hosts is '[bad', which is not a valid JSON list"),
        (["lab", "memory", "--no-such-option"], "(see ridgeline lab memory --help)"),
        (
            ["run"],
            'ridgeline: MODEL is missing; for example: ridgeline run tales "Once upon a time" (see ridgeline run',
        ),
    ],
)
def test_a_usage_error_names_the_help_that_answers(ridgeline: Run, arguments: list[str], says: str) -> None:
    assert_one_line(ridgeline(*arguments), USAGE, says)


def test_a_command_that_needs_weights_suggests_only_models_with_weights(ridgeline: Run, tmp_path: Path) -> None:
    for command in (
        ("run", "{}", "hi"),
        ("check", "{}"),
        ("quantize", "{}", tmp_path / "o", "--weights", "int8"),
        ("tokenize", "{}", "hi"),
    ):
        ended = ridgeline(*(str(each).format("meta-llama/Llama-3-8B") for each in command))
        assert_one_line(ended, REFUSED, "no such folder: meta-llama/Llama-3-8B", "a built-in model (")
        assert "plan --list" not in ended.err
        assert "did you mean" not in ended.err
        assert "digits-fast" not in ended.err
    dummy = ridgeline("run", "meta-llama/Llama-3-8B", "hi", "--dummy-weights")
    assert_one_line(dummy, REFUSED, "did you mean llama-3-8b", "`ridgeline plan --list`")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"])
def test_a_file_of_weights_is_named_as_such(ridgeline: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe{}")
    what = "the index of weights files" if name.endswith("json") else "a weights file"
    ended = ridgeline("run", tmp_path / name, "hi")
    assert_one_line(ended, REFUSED, f"{name} is {what}; give the folder that holds it and config.json")


def test_the_catalogue_has_names_but_no_weights(ridgeline: Run) -> None:
    """Errors name the model as it was asked for, not a file of the installed package."""
    says = "ridgeline: llama-3-8b is a catalogue config without weights; add --dummy-weights, or give a checkpoint"
    assert_one_line(ridgeline("run", "llama-3-8b", "hi"), REFUSED, says)


def test_devices_that_a_model_does_not_divide_over(ridgeline: Run) -> None:
    """The model is fine: it is the question that is at fault."""
    ended = ridgeline("plan", "llama-3-8b", "--device", "h100-sxm", "--devices", 3)
    says = "ridgeline: llama-3-8b: 8 KV heads do not divide over 3 devices; give --devices 1, 2, 4 or 8\n"
    assert_one_line(ended, USAGE, says)


def test_a_folder_that_takes_no_files(ridgeline: Run, folder: Path) -> None:
    """/proc grants access and then refuses: known before anything is measured."""
    ended = ridgeline("trace", folder, "hi", "--perfetto", "/proc/x.json")
    assert_one_line(ended, USAGE, "/proc/x.json cannot be written: ", "; name a file in another folder")


def test_bad_logits_are_an_error_of_the_request(ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise FloatingPointError("the matrix\nexploded")

    monkeypatch.setattr("ridgeline.engine.runner.Runner.forward", broken)
    ended = ridgeline("run", folder, "hi", "--json")
    assert ended.code != OK
    assert ended.err == "ridgeline: the request failed: FloatingPointError: the matrix exploded\n"


def test_an_interrupt_is_quiet(ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ridgeline.engine.engine.Engine.step", interrupted)
    ended = ridgeline("run", folder, "hi")
    assert (ended.code, ended.out, "Traceback" in ended.err) == (INTERRUPTED, "", False)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wanted(folder: Path) -> tuple[str, list[int]]:
    llm = LLM(str(folder), EngineSettings(kv_bytes=1e6))
    (completion,) = llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=8))
    return completion.text, completion.choices[0].token_ids


def test_run_as_json(ridgeline: Run, folder: Path, wanted: tuple[str, list[int]]) -> None:
    ended = ridgeline("run", folder, "hello", "--max-tokens", 8, "--temperature", 0, "--json")
    assert (ended.code, ended.err) == (OK, "")
    assert ended.json.keys() == {"text", "token_ids", "prompt_tokens", "finish_reason", "timing"}
    assert (ended.json["text"], ended.json["token_ids"]) == wanted
    assert (ended.json["prompt_tokens"], ended.json["finish_reason"]) == (5, "length")
    assert ended.json["timing"].keys() == {"prefill", "decode"}
    assert [ended.json["timing"][phase]["tokens"] for phase in ("prefill", "decode")] == [5, 7]
    for phase in ended.json["timing"].values():
        assert phase.keys() >= {"tokens", "seconds", "tokens_per_second", "bytes_per_second"}
        assert phase["seconds"] > 0


def test_run_for_people(ridgeline: Run, folder: Path, wanted: tuple[str, list[int]]) -> None:
    """The text and nothing else on stdout; what it took on stderr."""
    ended = ridgeline("run", folder, "hello", "--max-tokens", 8, "--temperature", 0)
    assert (ended.code, ended.out) == (OK, wanted[0] + "\n")
    assert re.search(r"prefill\s+5 tokens", ended.err)
    assert re.search(r"decode\s+7 tokens", ended.err)


@pytest.mark.parametrize(
    "flags",
    [
        ["--chunk", "2"],
        ["--chunk", "1k", "--max-batch-tokens", "2k"],
        ["--page-size", "1"],
        ["--no-prefix-cache"],
        ["--raw"],
    ],
)
def test_how_it_runs_does_not_change_what_it_says(
    ridgeline: Run, folder: Path, wanted: tuple[str, list[int]], flags: list[str]
) -> None:
    ended = ridgeline("run", folder, "hello", "--max-tokens", 8, "--temperature", 0, "--json", *flags)
    assert (ended.json["text"], ended.json["token_ids"]) == wanted


def test_the_prompt_from_standard_input(ridgeline: Run, folder: Path, wanted: tuple[str, list[int]]) -> None:
    flags = ("--max-tokens", 8, "--temperature", 0, "--json")
    assert ridgeline("run", folder, "-", *flags, stdin="hello").json["text"] == wanted[0]
    assert_one_line(ridgeline("run", folder, "-", stdin=""), USAGE, "the prompt is empty")


def test_several_choices_and_log_probabilities(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("run", folder, "hello", "-n", 3, "--seed", 1, "--max-tokens", 4, "--logprobs", 2, "--json")
    assert len(ended.json["choices"]) == 3
    first = ended.json["choices"][0]
    assert {key: ended.json[key] for key in first} == first
    assert len(first["logprobs"]) == len(first["token_ids"]) == 4
    assert first["logprobs"][0].keys() == {"token", "text", "logprob_raw", "logprob", "top_raw", "top"}
    assert "".join(each["text"] for each in first["logprobs"]) == first["text"]
    assert len(first["logprobs"][0]["top"]) == 2
    assert all(top.keys() == {"token", "text", "logprob"} for top in first["logprobs"][0]["top_raw"])
    again = ridgeline("run", folder, "hello", "-n", 3, "--seed", 1, "--max-tokens", 4, "--json")
    assert [c["token_ids"] for c in again.json["choices"]] == [c["token_ids"] for c in ended.json["choices"]]


def test_quiet_leaves_the_text_alone(ridgeline: Run, folder: Path) -> None:
    flags = ("--max-tokens", 4, "--temperature", 0)
    told, quiet = ridgeline("run", folder, "hello", *flags), ridgeline("run", folder, "hello", *flags, "--quiet")
    assert told.err
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out == told.out
    wrong = ridgeline("run", folder, "hello", "--quiet", "--max-tokens", 10_000_000)
    assert_one_line(wrong, USAGE, "--max-tokens")


def test_verbose_says_what_loading_took(ridgeline: Run, folder: Path, torch_only: None) -> None:
    flags = ("run", folder, "hello", "--max-tokens", 1)
    mapped, read, cold = ridgeline(*flags, "--verbose").err.splitlines()[:3]
    assert re.match(
        r"loading: [\d,]+ tensors of 1 file, headers .*; .* mapped, with every page read, .*: .* GB/s", mapped
    )
    assert re.match(
        r"for comparison, reading .* into fresh memory from the page cache: .* GB/s, so .* for the whole model, x ",
        read,
    )
    assert re.match(
        r"minimum cold start: .* from an NVMe disk on PCIe 5 \(13.0 GB/s\), .*; copying to a GPU adds ", cold
    )
    random = ridgeline(*flags, "--verbose", "--dummy-weights")
    assert "loading: nothing was read, because the weights are random\n" in random.err
    assert "loading" not in ridgeline(*flags).err


def test_a_package_without_kernels_says_so_and_runs(
    ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch_only: None
) -> None:
    """One line, with what to do, from each command that computes or measures; none for who has turned them off."""
    flags = ("run", folder, "hello", "--max-tokens", 2, "--temperature", 0)
    workloads = tmp_path / "workloads.json"
    workloads.write_text('{"two": {"sequences": 2, "prompt": 3, "output": 2}}')
    measured = (("bench", "engine", folder, "--workloads", workloads, "--json"), ("calibrate", "--threads", 1))
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "_measure", Mock(side_effect=ValueError("it would take two minutes")))
    off = ridgeline(*flags)
    assert "kernels" not in off.err
    monkeypatch.delenv("RIDGELINE_KERNELS")
    monkeypatch.setattr(sys.modules[library.__module__], "PATH", tmp_path / "none.so")
    library.cache_clear()
    without = ridgeline(*flags)
    assert without.out == off.out
    for ended in (without, *(ridgeline(*command) for command in measured)):
        (said,) = (line for line in ended.err.splitlines() if "kernels" in line)
        assert said.startswith(
            "Ridgeline's compiled CPU kernels are missing, and PyTorch's alone are several times slower: none "
            "were compiled"
        )
        assert "apt install g++, then reinstall ridgeline" in said


def test_a_model_with_states_is_said_to_keep_them(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """Bytes of a request, not tokens; and that a prefix cache which is asked for finds nothing, in a line."""
    states = write_model(tmp_path, config=MAMBA)
    flags = ("hello", "--max-tokens", 2, "--context", 64)
    kept = re.compile(r"KV cache: 128 bytes a token, and a state of [\d,]+ bytes a request of any length \(")
    ways = ("--prefix-cache",), (), ("--no-prefix-cache",)
    asked, unasked, off = (ridgeline("run", states, *flags, *way) for way in ways)
    for ended in (asked, unasked, off):
        assert ended.code == OK, ended.err
        assert kept.search(ended.err), ended.err
        assert "maximum concurrency for 64 tokens: " in ended.err
    said = "--prefix-cache has no effect for this model: layers keep a recurrent state, which is"
    assert [said in ended.err for ended in (asked, unasked, off)] == [True, False, False]
    assert said not in ridgeline("run", folder, *flags, "--enable-prefix-caching").err


def test_tokenize_tells_bytes_once(ridgeline: Run) -> None:
    lines = ridgeline("tokenize", "tales", "Hé").out.splitlines()
    assert lines[3].startswith("3 tokens, 2 characters, ")
    assert lines[4] == "4 tokens with the special tokens that the tokenizer adds to a prompt"
    assert [line.split() for line in lines[:3]] == [["41", "'H'", "48"], ["129", "c3"], ["104", "a9"]]


def test_a_chat_template_is_applied_unless_raw(ridgeline: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path, template=CHAT)
    flags = ("--max-tokens", 1, "--json")
    rendered = len("user: hello\nassistant:") + 1
    assert ridgeline("run", folder, "hello", *flags).json["prompt_tokens"] == rendered
    with_system = ridgeline("run", folder, "hello", "--system", "be kind", *flags)
    assert with_system.json["prompt_tokens"] == rendered + len("system: be kind\n")
    assert ridgeline("run", folder, "hello", "--raw", *flags).json["prompt_tokens"] == 5


def test_dummy_weights(ridgeline: Run, own_folder: Path) -> None:
    (own_folder / "model.safetensors").unlink()
    ended = ridgeline("run", own_folder, "hello", "--dummy-weights", "--max-tokens", 4, "--json")
    assert (ended.code, len(ended.json["token_ids"])) == (OK, 4)


def test_bytes_stand_in_for_a_tokenizer_only_under_random_weights(ridgeline: Run, own_folder: Path) -> None:
    (own_folder / "tokenizer.json").unlink()
    (own_folder / "tokenizer_config.json").unlink()
    for command in ("run", "tokenize"):
        assert_one_line(ridgeline(command, own_folder, "hi"), REFUSED, "holds no tokenizer", "copy tokenizer.json")
    change_config(own_folder, vocab_size=300)
    for command, *more in (["run"], ["trace", "--device", "a100-sxm-80gb"]):
        ended = ridgeline(command, own_folder, "hello", "--dummy-weights", "--max-tokens", 2, *more)
        assert (ended.code, ended.err.count("each byte of the prompt is a token")) == (OK, 1)


def test_the_catalogue_has_no_tokenizers(ridgeline: Run) -> None:
    assert_one_line(
        ridgeline("tokenize", "llama-3-8b", "hi"),
        REFUSED,
        "the catalogue has no tokenizer for llama-3-8b; give the folder of its checkpoint",
    )


def test_show_as_json(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("show", folder, "--json")
    assert (ended.code, ended.err) == (OK, "")
    assert ended.json["architecture"] == LLAMA["architectures"][0]
    assert ended.json["context"] == 256
    assert ended.json["total"] == sum(ended.json["parameters"].values())
    assert ended.json["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert ridgeline("show", folder / "config.json", "--json").json == ended.json


def test_show_with_a_scaled_context(ridgeline: Run) -> None:
    assert ridgeline("show", "qwen3-32b", "--rope", "yarn:4", "--json").json["context"] == 131_072
    assert_one_line(ridgeline("show", "llama-3.1-8b", "--rope", "yarn:4"), USAGE, "already scales the context")


def test_show_for_people(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("show", folder)
    assert (ended.code, ended.err) == (OK, "")
    assert "context 256" in ended.out
    assert re.search(r"weights +[\d,]+ bytes = \d{3} kB = \d{3} KiB", ended.out)
    llama = " ".join(ridgeline("show", "llama-3-8b").out.split())
    for said in (
        "= 16.06 GB = 14.96 GiB", "hidden size 4,096, FFN width 14,336, 32 heads over 8 KV heads of 128",
        "131,072 bytes per token as GQA: 32 query heads share 8 KV heads",
        "GQA 8 131,072 4.00 x", "MQA 1 16,384 32.0 x",
    ):  # fmt: skip
        assert said in llama
    assert ", attention in chunks of 8,192" in " ".join(ridgeline("show", "llama-4-scout-17b-16e").out.split())
    assert " MHA 32 524,288 GQA " in llama, "MHA itself is smaller by no factor"
    assert "part one layer all share" in llama
    deepseek = " ".join(ridgeline("show", "deepseek-v3").out.split())
    assert "part most common layer all share" in deepseek, "three of its 61 layers are dense"
    mixture = " ".join(ridgeline("show", "qwen3-30b-a3b").out.split())
    assert "128 experts of width 768 in 48 layers, top-8: 8 per token" in mixture


def test_show_of_quantised_weights(ridgeline: Run, own_folder: Path) -> None:
    """As they are stored, in a folder and by its config.json."""
    change_config(own_folder, quantization_config={"quant_method": "fbgemm_fp8", "rotations": 3})
    for name in (own_folder, own_folder / "config.json"):
        shown = ridgeline("show", name)
        assert shown.code == OK
        assert "stored as fp8 channel" in " ".join(shown.out.split())
        assert "vocabulary 260, fp8 channel and fp32, head" in " ".join(shown.out.split())
        assert "rotations" not in shown.out + shown.err
    assert ridgeline("show", own_folder, "--json").json["weights"] == "fp8 channel"
    change_config(own_folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert_one_line(ridgeline("run", own_folder, "hi"), REFUSED, "priced (ridgeline plan, show, trace --priced)")


def test_show_of_a_gguf_file(ridgeline: Run, tmp_path: Path) -> None:
    """Bytes are the file's, of F16 too, which is held in fp32."""
    path = tmp_path / "small.gguf"
    made(path, "llama", mixed({"attn_q": Type.F16}, Type.Q8_0))
    header = read_gguf_header(path)
    stored = sum(tensor.end - tensor.begin for tensor in header.tensors.values())
    assert f"weights {stored:,} bytes = " in " ".join(ridgeline("show", path).out.split())
    assert ridgeline("show", path, "--json").json["nbytes"] == stored


def test_show_says_where_activations_are_rounded_too(ridgeline: Run, own_folder: Path) -> None:
    rounded = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
    said = {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"]}
    rounds = "stored as compressed-tensors w8a8 channel; activations are rounded to int8 too"
    for inputs, wanted in ((rounded, rounds), (None, "stored as compressed-tensors int8 channel")):
        groups = {"config_groups": {"group_0": group | {"input_activations": inputs}}}
        change_config(own_folder, quantization_config=said | groups)
        shown = " ".join(ridgeline("show", own_folder).out.split())
        assert wanted in shown
        assert ("rounded" in shown) == (inputs is not None)


def test_show_refuses_in_one_line(ridgeline: Run, own_folder: Path) -> None:
    """What the name says stood on stdout, the reason on stderr; and nothing said what there is instead."""
    change_config(own_folder, architectures=["DeciLMForCausalLM"])
    said = ("DeciLM (dense, causal LM) cannot be built: ", "is not supported yet; missing: layers of unequal sizes")
    built = "`ridgeline plan --list` shows supported models"
    assert_one_line(ridgeline("show", own_folder), REFUSED, *said, built)
    assert_one_line(ridgeline("show", own_folder, "--json"), REFUSED, *said)
    assert_one_line(ridgeline("plan", "qwen-image", "--card", "h100-sxm"), REFUSED, "is not supported yet", built)
    wanted = "give a folder or config.json with the architecture Gemma4ForConditionalGeneration"
    assert_one_line(ridgeline("plan", "gemma-4", "--card", "h100-sxm"), REFUSED, "has no family here", wanted)


def test_the_list_says_where_other_architectures_come_from(ridgeline: Run) -> None:
    rule = (
        "Of an architecture that no family builds, the class of transformers is traced (docs/models.md): transformers 5"
    )
    assert rule in " ".join(ridgeline("plan", "--list").out.split())


def test_tokenize_as_json(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("tokenize", folder, "héllo<eos>", "--json")
    assert (ended.code, ended.err) == (OK, "")
    assert bytes.fromhex("".join(row["bytes"] for row in ended.json["tokens"])).decode() == "héllo<eos>"
    assert ended.json["characters"] == 10
    special = ridgeline("tokenize", folder, "héllo<eos>", "--special", "--json")
    assert len(special.json["tokens"]) == 7


def test_env_as_json(ridgeline: Run) -> None:
    ended = ridgeline("env", "--json")
    assert (ended.code, ended.err) == (OK, "")
    assert ended.json["ridgeline"] == __version__
    assert ended.json["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_env_names_the_transformers_whose_classes_are_used(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ridgeline("env", "--json").json["transformers"] == version("transformers")
    monkeypatch.setattr(installed_package, "installed_version", lambda: (5, 2))
    old = ridgeline("env", "--json").json["transformers"]
    assert ", not used: transformers 5.24 or newer, below 6, is needed; transformers 5.2 is installed: pip" in old
    monkeypatch.setattr(env, "installed_version", lambda: None)
    assert ridgeline("env", "--json").json["transformers"].startswith("not installed: pip install")


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """One of this machine, made up, in a cache folder of its own."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    return Calibration(
        title="A Chip, 2 cores", kind="cpu", threads=1, made="2026-11-21 12:00", seconds=48.6, memory=float(8 << 30),
        streams=(MemoryStream(1 << 20, 40e9, 20e9), MemoryStream(64 << 20, 10e9, 8e9)), bandwidth=10e9,
        caches=(Cache("L2", float(1 << 20), 40e9),), products={"fp32": 2e11, "bf16": 5e10},
        classes={
            "attention.prefill.128.few/bf16": FittedClass(Efficiency(123e-6, 1.0, 0.05, 0.2, 8.0), 104, 0.3, 2.73),
            "linear.one/bf16": FittedClass(Efficiency(31e-6, 0.7, 0.8, recorded=1.5e-6), 40, 0.02, -0.11),
        },
        host=HostTime(4e-4, 6e-6, 9e-5, 1e-6, 0.0, asked=1e-4), host_error=0.03, native=True,
        pace=Slowdown(1e-3, 2e-3, 3e-3), disturbed=Slowdown(1.2, 1.1, 1.05), residuals=(),
    )  # fmt: skip


def test_a_calibration_is_shown(ridgeline: Run, calibration: Calibration) -> None:
    save([calibration, replace(calibration, threads=2)])
    ended = ridgeline("calibrate", "--show", "--threads", 1)
    assert (ended.code, ended.err) == (OK, "")
    shown = " ".join(ended.out.split())
    assert shown.startswith("A Chip, 2 cores: 1 thread, 2026-11-21 12:00 UTC, 49 s")
    for said in (
        "bandwidth L2 1 MiB 40.0 GB/s, memory 10.0 GB/s", "bf16 50 GFLOP/s of the 200 that a kernel could reach",
        "400 us per step, 90 per sequence, 1.00 per token, 0.0 per MiB moved; a step without a recorded "
        "graph takes 100 more, "
        "and 6.0 per op (median error 3.0% of a step)",
        "compared with an undisturbed machine, launches take 20% longer, arithmetic 10% and memory traffic "
        "5%, on average: "
        "ridgeline simulate predicts steps with this slowdown",
        "64 MiB 10.0 8.0", "linear.one/bf16 31.0 1.5 70.0% 80.0% 2 0 40 2.0% -11%",
    ):  # fmt: skip
        assert said in shown
    assert "\nattention.prefill.128.few/bf16  " in ended.out, "a class's name is not broken"
    assert "scheduler" not in shown
    assert ridgeline("calibrate", "--show").out.count("A Chip") == 2
    assert ridgeline("calibrate", "--show", "--json").json == {
        "calibrations": [json.loads(json.dumps(replace(calibration, threads=n).as_json())) for n in (1, 2)]
    }


def test_the_parts_of_the_host_time_are_shown(ridgeline: Run, calibration: Calibration) -> None:
    parts = HostParts(
        PartTime(1e-5, 2.5e-6, 3e-8, 0.0, 9e-5, 2e-5),
        PartTime(3e-5, 3e-6, 0.0, 8e-5, 1e-5, 4e-5),
        {"greedy": SamplingTime(5e-5, 3e-6, 3e-10), "top-p": SamplingTime(6e-5, 4e-6, 1.25e-9)},
    )
    assert calibration.host is not None
    save([replace(calibration, host=replace(calibration.host, parts=parts))])
    shown = " ".join(ridgeline("calibrate", "--show").out.split())
    for said in (
        "scheduler 10 us per step, 2.5 per sequence, 0.03 per token, 90 if the step has prompts and 20.0 for each",
        "batch 30 us per step, 3.0 per sequence, 0.00 per token, 10 if the step has prompts and 40.0 for each, 80 "
        "without a recorded graph",
        "sampling greedy 50 us per step, 3.0 per row, 0.30 per 1,000 logits; top-p 60 us per step, 4.0 per row, 1.25 "
        "per 1,000 logits",
    ):
        assert said in shown


def test_a_simulation_of_this_machine_meets_what_disturbs_it(ridgeline: Run, calibration: Calibration) -> None:
    """Steps that are launches alone take as much longer as those do; a plan's do not."""
    classes = {"default": FittedClass(Efficiency(1e-4, 1.0, 1.0), 1, 0.0, 0.0)}
    simulated, planned = list[dict[str, Any]](), list[dict[str, Any]]()
    for disturbed in (None, calibration.disturbed):
        own = replace(calibration, classes=classes, disturbed=disturbed)
        save([replace(own, threads=threads) for threads in {1, cores()}])
        asked = (
            "simulate",
            "tales",
            "--device",
            "this",
            "--rate",
            "2",
            "--requests",
            "40",
            "--input",
            "80",
            "--output",
            "40",
        )
        simulated.append(ridgeline(*asked, "--json").json)
        planned.append(
            ridgeline("plan", "tales", "--device", "this", "--input", "200", "--output", "50", "--json").json
        )
    alone, beside = (each["figures"]["tpot_p50"]["mid"] for each in simulated)
    assert beside / alone == pytest.approx(1.2, rel=0.02)
    assert [each["inputs"]["disturbed"] is None for each in simulated] == [True, False]
    assert planned[0] == planned[1]


def test_a_calibration_that_is_not_there_is_not_shown(ridgeline: Run, calibration: Calibration) -> None:
    for flags in ((), ("--json",), ("--threads", 1)):
        ended = ridgeline("calibrate", "--show", *flags)
        assert_one_line(ended, USAGE, "this machine is not calibrated; run `ridgeline calibrate` (three minutes)")
    save([replace(calibration, threads=2)])
    ended = ridgeline("calibrate", "--show", "--threads", 1)
    assert_one_line(ended, USAGE, "calibrated for 2 threads, not for 1; run `ridgeline calibrate --threads 1`")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--device", "tpu"], "--device is 'tpu': give cpu, cuda, cuda:N"),
        (["--threads", "0"], "--threads is 0"),
        (["--seconds", "0"], "--seconds is 0; it must be from 1 to 3600"),
    ],
)
def test_what_cannot_be_calibrated(ridgeline: Run, flags: list[str], says: str) -> None:
    assert_one_line(ridgeline("calibrate", *flags), USAGE, says)


# -- the list of commands ---------------------------------------------------------------------------------------------


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it, by their whole names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def command_list() -> str:
    """Every command with its arguments, and below it its options."""
    lines = []
    for name, command in sorted(commands_of(typer.main.get_command(command_line.build_app()))):
        arguments = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
        options = [[*p.opts, *p.secondary_opts] for p in command.params if p.param_type_name == "option"]
        lines.append(" ".join([name, *arguments]))
        lines += sorted("    " + " ".join(sorted(names, key=len)) for names in options)
    return "\n".join(lines) + "\n"


def test_commands_and_options_are_those_of_the_list() -> None:
    """People's scripts depend on them. A change that is meant: `PYTHONPATH=tests python tests/cli/test_cli.py` writes
    the list anew, and the changelog says so."""
    assert command_list() == COMMANDS.read_text(encoding="ascii")


def help_of(app: typer.Typer) -> str:
    """What `--help` prints."""
    return CliRunner().invoke(app, ["--help"], prog_name="ridgeline").output


def test_the_list_of_commands_is_what_the_commands_say() -> None:
    """It is printed without importing them."""
    assert help_of(command_line.build_list()) == help_of(command_line.build_app())


def test_help_needs_no_torch() -> None:
    """It takes seconds to import."""
    code = "import sys, ridgeline.__main__ as m\ntry: m.main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    for arguments in (["--help"], ["--version"], []):
        ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert ended.stderr == "False\n"


def test_models_that_write_do_not_wait_for_what_draws() -> None:
    """What draws is imported where a pipeline is given."""
    code = (
        "import importlib, sys\n"
        "for command in ('plan', 'trace', 'serve'):\n"
        "    importlib.import_module(f'ridgeline.cli.{command}')\n"
        "    print(command, *(name for name in sys.modules if '.media.diffusion' in name))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["plan", "trace", "serve"]


# Flags that mean something of its own in each command: threads to measure with, what a lab's experiment is about, the
# lengths and the seed of a load, a server's own name for a model; of pictures, how many, what is written and said, what
# is compiled before it runs (a plan prices it so anyway), which step is traced and what of it is shown.
OWN = {"--device", "--threads", "--seconds", "--model", "--tokens", "--context", "--prompt"}
OWN_OF_BENCH = {"--model", "--input", "--output", "--seed", "--csv", "--ignore-eos", "--api-key"}
OWN_OF_IMAGE = {"--n", "--output", "--force", "--quiet", "--size", "--steps", "--guidance", "--frames", "--compile"}
OWN_OF_QUANTIZE = {"--weights", "--force"}  # what is written, over what was there
OWN_OF_EXPORT = {"--weights", "--kv", "--devices", "--force", "--trace"}  # lists to choose from; over what was there
OWN_OF_TRACE = {
    "--svg",
    "--size",
    "--frames",
    "--steps",
    "--guidance",
    "--second-guidance",
    "--negative",
    "--full",
    "--section",
}
OWN_OF_PLAN = {"--report", "--csv", "--force", "--requests"}  # files of a plan, not of a run; requests to simulate
OWN_OF_SIMULATE = {  # traffic that nobody sends, to what is not there
    "--trace", "--rate", "--users", "--turns", "--think", "--arrival", "--burstiness", "--speed", "--input", "--output",
    "--seed", "--requests", "--duration", "--slo", "--report", "--out", "--force", "--prefix-cache",
}  # fmt: skip


def test_a_flag_means_the_same_in_every_command() -> None:
    """Its help and panel are declared once."""
    declared: dict[str, dict[tuple[str, str], str]] = {}
    for name, command in commands_of(typer.main.get_command(command_line.build_app())):
        for param in command.params:
            own = OWN if name.startswith(("lab", "cal")) else OWN_OF_BENCH if name.startswith("bench") else set()
            own = OWN_OF_IMAGE if name in ("image", "video") else OWN_OF_TRACE if name == "trace" else own
            own = OWN_OF_QUANTIZE if name == "quantize" else OWN_OF_EXPORT if name == "page export" else own
            own = OWN_OF_SIMULATE if name == "simulate" else OWN_OF_PLAN if name == "plan" else own
            if param.param_type_name == "option" and not own & set(param.opts):
                declared.setdefault(param.opts[-1], {})[param.help, param.rich_help_panel] = name
    differing = {flag: found for flag, found in declared.items() if len(found) > 1}
    # The help of the first has the default, 8 or 256; a plan prices the second, a model that runs has it already; a
    # server draws seeds from the third, and takes the key that a client gives. A model says what kind of model, a plan
    # takes several batches, and of adapters and formats some are run and some priced. A device is a card to price, or
    # where something runs. A trace is priced where nothing is measured, a server for a card that it has not. Replicas
    # are simulated, on other signals and cards too, or run on Ray, and so are engines for prompts and answers, over a
    # link that is priced or the one that there is.
    own = {"--max-tokens", "--dtype", "--kv", "--seed", "--api-key", "--model", "--batch", "--lora", "--device"}
    own |= {"--devices"}  # a comparison tries several numbers of them
    own |= {"--rope"}  # a command that runs a model also loads it so
    own |= {"--priced", "--replicas", "--ray-address", "--router", "--scale", "--split"}
    assert set(differing) <= own, differing


def test_a_plan_waits_for_neither_the_engine_nor_symbols() -> None:
    """Tracing a model with torch's own meta kernels took a plan of a 70B from 2.4 to 9 s, of which a good second was
    torch importing sympy."""
    program = (
        "import atexit, sys; from ridgeline.cli.main import main; late = 'ridgeline.engine', 'sympy', 'torch._dynamo'\n"
        "atexit.register(lambda: print([name for name in late if name in sys.modules]))\n"
        "main()"
    )
    asked = ["plan", "mixture", "--device", "h200-sxm", "--input", "100", "--output", "20"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *asked],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1] == "[]"


# -- the installed program --------------------------------------------------------------------------------------------


def installed(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a shell finds it."""
    program = [str(PROGRAM)] if PROGRAM.exists() else [sys.executable, "-m", "ridgeline"]
    return subprocess.run(
        [*program, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_the_program_runs_a_model(folder: Path, wanted: tuple[str, list[int]]) -> None:
    ended = installed("run", folder, "-", "--max-tokens", 8, "--temperature", 0, "--json", input="hello")
    assert (ended.returncode, ended.stderr) == (OK, "")
    assert json.loads(ended.stdout)["token_ids"] == wanted[1]


def test_the_program_refuses_in_one_line(tmp_path: Path) -> None:
    ended = installed("run", tmp_path, "hi")
    assert_one_line(Ended(ended.returncode, ended.stdout, ended.stderr), REFUSED, "no config.json")


def test_the_reader_of_the_program_may_leave(folder: Path) -> None:
    """`ridgeline run ... | head -c 1` is no error."""
    program = str(PROGRAM) if PROGRAM.exists() else f"{sys.executable} -m ridgeline"
    command = f"set -o pipefail; {program} run '{folder}' hello --max-tokens 200 --ignore-eos | head -c 1 > /dev/null"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == OK


if __name__ == "__main__":
    COMMANDS.write_text(command_list(), encoding="ascii")
