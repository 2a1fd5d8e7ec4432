"""--lora and --lora-modules: what they take, what they refuse, and that the adapter is what runs."""

import json
from pathlib import Path

import pytest

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from ridgeline.cli import serve as command
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.server.lifecycle import ServedLLM
from support.adapters import own_widths, write_adapter
from support.planned import LLAMA_3_8B

SIZES = [(192, 192), (512, 192), (192, 512)] * 5  # of q_proj, down_proj and gate_proj, in each layer
GREEDY = ("--temperature", 0, "--max-tokens", 8)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "loud"
    return write_adapter(folder, own_widths("tales"), ["q_proj", "down_proj", "gate_proj"], std=0.2)


def test_run(ridgeline: Run, adapter: Path) -> None:
    """The text is another, its steps read the adapter too, and what it takes is said."""
    plain = ridgeline("run", "tales", "Once upon a time", *GREEDY, "--json").json
    other = ridgeline("run", "tales", "Once upon a time", *GREEDY, "--json", "--lora", adapter).json
    assert plain["text"] != other["text"]
    ended = ridgeline("run", "tales", "Once upon a time", *GREEDY, "--lora", f"mine={adapter}")
    assert (ended.code, ended.out) == (OK, other["text"] + "\n")
    assert "adapter mine: rank 4, 15 matrices, " in ended.err


def test_a_batch_chooses_by_model(ridgeline: Run, adapter: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [{"model": name, "prompt": "Once", "max_tokens": 8, "temperature": 0} for name in ("tales", "loud", "x")]
    lines = [{"custom_id": b["model"], "method": "POST", "url": "/v1/completions", "body": b} for b in bodies]
    source.write_text("\n".join(map(json.dumps, lines)))
    assert ridgeline("run", "tales", "-i", source, "-o", target, "--lora", adapter).code == OK
    answers = {each["custom_id"]: each["response"] for each in map(json.loads, target.read_text().splitlines())}
    texts = {name: answers[name]["body"]["choices"][0]["text"] for name in ("tales", "loud")}
    assert texts["tales"] != texts["loud"]
    assert answers["x"]["status_code"] == 404


def test_what_is_refused(ridgeline: Run, adapter: Path, tmp_path: Path) -> None:
    twice = ridgeline("run", "tales", "hi", "--lora", f"a={adapter}", "--lora", f"b={adapter}")
    assert_one_line(twice, USAGE, "--lora is given more than once")
    assert_one_line(ridgeline("run", "tales", "hi", "--lora", tmp_path), REFUSED, "holds no adapter")
    sound = tmp_path / "sound.wav"
    sound.write_bytes(b"RIFF\xff\xfe")
    for name in ("nowhere", sound):
        none = ridgeline("run", "tales", "hi", "--lora", name)
        assert_one_line(none, REFUSED, f"{name} is neither a folder nor in the Hugging Face cache; give the folder of")
    assert_one_line(ridgeline("run", "tales", "hi", "--lora", "=x"), USAGE, "--lora is '=x'; write NAME=FOLDER")
    other = write_adapter(tmp_path / "other", {"model.layers.0.self_attn.q_proj": (64, 48)}, ["q_proj"])
    ended = ridgeline("run", "tales", "hi", "--lora", other)
    assert_one_line(
        ended, REFUSED, "A and B of model.layers.0.self_attn.q_proj have shapes [4, 48] and [64, 4], but the model's"
    )


def settings_of(ridgeline: Run, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> EngineSettings:
    """What `serve` would set up."""
    calls: list[ServedLLM] = []
    monkeypatch.setattr(command, "run_server", lambda served, *_: calls.append(served) or OK)
    monkeypatch.setattr(command, "set_up_logs", lambda _: None)
    assert ridgeline("serve", "tales", *arguments).code == OK
    assert calls[0].settings is not None
    return calls[0].settings


def test_serve(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM's command line has it: several after one option, in either form."""
    flags = ("--enable-lora", "--max-lora-rank", 8, "--max-loras", 3, "--lora-modules", "a=/x", "b=/y")
    found = settings_of(ridgeline, monkeypatch, *flags, '{"name": "c", "path": "/z", "base_model_name": "tales"}')
    assert (found.adapters, found.adapter_rank) == ({"a": "/x", "b": "/y", "c": "/z"}, 8)


def test_what_serve_refuses(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_line(
        ridgeline("serve", "tales", "--enable-lora"), USAGE, "--enable-lora needs --lora-modules NAME=FOLDER"
    )
    twice = ridgeline("serve", "tales", "--lora-modules", "a=/x", "a=/y")
    assert_one_line(twice, USAGE, "gives two adapters the name 'a'")
    few = ridgeline("serve", "tales", "--lora-modules", "a=/x", "b=/y", "--max-loras", 1)
    assert_one_line(few, USAGE, "--max-loras is 1, but all 2 adapters can be in one step")
    assert_one_line(
        ridgeline("serve", "tales", "--lora-modules", '{"name": 1'), USAGE, '{"name": NAME, "path": FOLDER}'
    )


# -- price ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a model of the catalogue."""
    folder = tmp_path_factory.mktemp("adapters") / "large"
    widths = {name: each for name, each in own_widths("llama-3-8b").items() if ".0." in name or ".31." in name}
    return write_adapter(folder, widths, ["q_proj", "v_proj", "down_proj"], rank=16, base_model_name_or_path="a/base")


NUMBERS = 2 * 16 * ((4096 + 4096) + (4096 + 1024) + (14336 + 4096))


def test_show(ridgeline: Run, large: Path) -> None:
    told = ridgeline("show", "llama-3-8b", "--lora", large, "--json").json
    (adapter,) = told["adapters"]
    assert adapter == {
        "name": "large", "made_for": "a/base", "rank": 16, "matrices": 6, "parameters": NUMBERS,
        "bytes": 2 * NUMBERS, "flops_per_token": 2 * NUMBERS,
    }  # fmt: skip
    assert told["total"] == ridgeline("show", "llama-3-8b", "--json").json["total"]
    assert "a/base" in ridgeline("show", "llama-3-8b", "--lora", large).out
    assert_one_line(
        ridgeline("show", "tales", "--lora", large),
        REFUSED,
        "the model's matrix has 512 inputs and 192 outputs; use its base model, a/base",
    )


def test_a_priced_trace(ridgeline: Run, large: Path) -> None:
    """Two adapters that four requests ask in turn: each is read once a step, and computes for its own rows."""
    asked = ("trace", "llama-3-8b", "--priced", "h100-sxm", "--batch", 4, "--input", 128, "--json")
    plain, both = ridgeline(*asked).json, ridgeline(*asked, "--lora", f"a={large}", "--lora", f"b={large}").json
    for step, rows in (("prefill", 512), ("decode", 4)):
        before, after = plain["steps"][step], both["steps"][step]
        assert after["weight_bytes"] - before["weight_bytes"] == 2 * 2 * NUMBERS
        assert after["flops"] - before["flops"] == 2 * rows * NUMBERS
    assert any("LoRA adapters: 2" in note for note in both["notes"])


def test_a_plan(ridgeline: Run, tmp_path: Path) -> None:
    """Their bytes take memory, and every step's time; divided over cards as their matrices are."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_3_8B | {"num_hidden_layers": 2}))
    large = write_adapter(tmp_path / "large", own_widths(str(config)), ["q_proj", "v_proj", "down_proj"], rank=16)
    asked = ("plan", config, "--device", "h100-sxm", "--batch", 4, "--json")
    plain, both = ridgeline(*asked).json, ridgeline(*asked, "--lora", f"a={large}", "--lora", f"b={large}").json
    assert both["memory"]["weights"] - plain["memory"]["weights"] == 2 * 2 * NUMBERS
    assert "LoRA adapters: 2" in ridgeline(*asked[:-1], "--lora", f"a={large}", "--lora", f"b={large}").out
    split = ridgeline(*asked, "--devices", 2, "--lora", large).json
    halved = ridgeline(*asked, "--devices", 2).json
    added = split["memory"]["weights"] - halved["memory"]["weights"]
    both_need, divided = 4096 + 4096 + 4096, 4096 + 1024 + 14336  # A of q and v, B of down; the others
    assert added == 2 * 2 * 16 * (both_need + divided // 2)


def test_a_trace(ridgeline: Run, adapter: Path) -> None:
    """The adapter is what runs, and what is priced."""
    flags = ("--max-tokens", 2, "--temperature", 0, "--repeats", 1, "--device", "h100-sxm", "--json")
    plain = ridgeline("trace", "tales", "Once upon a time", *flags).json
    other = ridgeline("trace", "tales", "Once upon a time", *flags, "--lora", adapter, "--lens").json
    assert plain["answer"] != other["answer"]
    added = other["steps"]["decode"]["weight_bytes"] - plain["steps"]["decode"]["weight_bytes"]
    assert added == 2 * sum(4 * (inputs + outputs) for inputs, outputs in SIZES)
    refused = ridgeline("trace", "tales", "hi", "--lora", adapter, "--memory")
    assert_one_line(refused, USAGE, "--memory shows the neurons of the model without adapters")
