"""`ridgeline trace` as a command: what it prints, what it writes, what it refuses in one line."""

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from ridgeline.insight.calibrate import local_device
from ridgeline.price.devices import load_device
from support.checkpoints import random_model
from support.gguf_models import letters, made, mixed
from text.tiny_tokenizers import write_bytes

CARD = {
    "title": "Slate 2",
    "kind": "cpu",
    "tflops": {"fp32": 7.0},
    "bandwidth": 90.0,
    "memory": {"gb": 24.0},
    "caches": [{"name": "L2", "mib": 2.0, "bandwidth": 700.0}],
    "efficiency": {"default": [3.0, 0.7, 0.8]},
}
CONFIG = {
    "vocab_size": 263, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 128, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small dense model, read as bytes."""
    folder = tmp_path_factory.mktemp("dense") / "pebble"
    random_model("llama", CONFIG, seed=3).save_pretrained(folder)
    write_bytes(folder)
    return str(folder)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file that describes a device."""
    path = tmp_path_factory.mktemp("card") / "slate.json"
    path.write_text(json.dumps(CARD), encoding="utf-8")
    return str(path)


def test_prints_the_way_of_a_token(ridgeline: Run, dense: str, card: str) -> None:
    views = ("--attention", "--lens", "--memory", "--roofline", "-", "--repeats", "1")
    ended = ridgeline("trace", dense, "hello", "--device", card, "--threads", 1, *views)
    assert ended.code == OK, ended.err
    for word in ("'hello'", "Slate 2", "lm_head", "whole step", "slowest in decode", "Attention:", "Lens:", "Memory:",
                 "pebble on Slate 2", "which is another"):  # fmt: skip
        assert word in " ".join(ended.out.split())
    assert dense not in ended.out, "a folder's name is enough"


def test_a_summary_is_a_handful_of_lines(ridgeline: Run, dense: str, card: str) -> None:
    ended = ridgeline("trace", dense, "hello", "--device", card, "--repeats", 1, "--summary")
    assert (ended.code, ended.err) == (OK, "")
    first, heads, *lines = ended.out.splitlines()
    assert first == "pebble: where the time of one token went"
    assert heads.split() == ["at", "best", "predicted", "measured"]
    assert [line.split()[0] for line in lines[:6]] == ["weights", "attention:", "head:", "norms", "Python", "one"]
    assert "candidates" not in ended.out


@pytest.mark.parametrize(
    "more", [["--json"], ["--lens"], ["--layer", "1"], ["--roofline", "-"], ["--experts", "--position", "1"]]
)
def test_a_summary_shows_nothing_else(ridgeline: Run, dense: str, more: list[str]) -> None:
    given = "--roofline -" if "--roofline" in more else more[0]
    ended = ridgeline("trace", dense, "hello", "--summary", *more)
    assert_one_line(ended, USAGE, f"only where the time of a token went; leave out --summary or {given}\n")


def test_no_summary_of_a_picture_or_of_what_is_priced_alone(ridgeline: Run) -> None:
    assert_one_line(
        ridgeline("trace", "digits", "a seven", "--summary"), USAGE, "--summary is for models that generate text"
    )
    priced = ridgeline("trace", "tales", "--summary", "--priced", "l4")
    assert_one_line(priced, USAGE, "--summary is for a model that runs; leave it out")


def test_json_is_one_object(ridgeline: Run, dense: str, card: str) -> None:
    ended = ridgeline("trace", dense, "hello", "--device", card, "--threads", 1, "--repeats", 1, "--json")
    assert ended.code == OK, ended.err
    found = ended.json
    assert [token["id"] for token in found["prompt"]["tokens"]][-5:] == list(b"hello")
    assert set(found["steps"]) == {"prefill", "decode"}
    assert found["device"]["at_hand"] is False


def test_says_what_weights_and_kv_are_stored_in(ridgeline: Run, dense: str, card: str, tmp_path: Path) -> None:
    """Plain ones, quantised while they are loaded, and those of a file."""
    file = tmp_path / "small.gguf"
    made(file, "llama", mixed({"attn_q": Type.Q8_0}, Type.Q4_K), metadata=letters)
    narrow = ("--weights", "int8+head", "--kv", "fp8")
    for model, flags, weights, kv in (
        (dense, (), "fp32", "fp32"), (dense, narrow, "int8+head", "fp8"), (file, (), "gguf q4_k mixed", "fp32"),
    ):  # fmt: skip
        traced = ("trace", model, "hello", "--raw", "--device", card, "--threads", 1, "--repeats", 1, *flags)
        ended = ridgeline(*traced)
        assert ended.code == OK, ended.err
        assert f"stored weights {weights}, KV {kv}" in " ".join(ended.out.split())
        found = ridgeline(*traced, "--json").json
        assert (found["weights"], found["kv"]) == (weights, kv)


def test_writes_its_files(ridgeline: Run, tmp_path: Path, dense: str, card: str) -> None:
    table, traced, drawn = (tmp_path / name for name in ("ops.csv", "trace.json", "roofline.svg"))
    files = ("--csv", table, "--perfetto", traced, "--roofline", drawn)
    ended = ridgeline("trace", dense, "hello", "--device", card, "--threads", 1, "--repeats", 1, *files)
    assert ended.code == OK, ended.err
    assert table.read_text(encoding="utf-8").startswith("step,path,kind")
    assert json.loads(traced.read_text(encoding="utf-8"))["traceEvents"]
    assert drawn.read_text(encoding="utf-8").startswith("<svg")
    assert ended.err.count("wrote ") == 3


def test_this_machine_is_the_default(ridgeline: Run, monkeypatch: pytest.MonkeyPatch, dense: str, card: str) -> None:
    asked: list[int | None] = []

    def here(threads: int | None = None, *, estimate: bool = False) -> object:
        asked.append(threads)
        assert estimate, "a machine that was not calibrated is estimated, not refused"
        return load_device(card)

    monkeypatch.setattr(local_device, "this_device", here)
    ended = ridgeline("trace", dense, "hello", "--threads", 1, "--repeats", 1, "--json")
    assert ended.json["device"]["at_hand"] is True
    assert asked == [1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hi", "--layer", "2"], "--layer is '2', but the model has layers 0 to 1; give one of these, or all"),
        (["hi", "--layer", "-1"], "the model has layers 0 to 1"),
        (["hi", "--layer", "last"], "the model has layers 0 to 1"),
        (["hi", "--experts"], "has no experts: leave out --experts"),
        (["hi", "--source", "a=b"], "--source needs --experts; give both, or neither"),
        (["hi", "--experts", "--source", "a", "--source", "b=c"], "must be NAME=FILE"),
        (["hi", "--experts", "--source", "a=b"], "at least two texts with different names"),
        (["hi", "--experts", "--source", "a=b", "--source", "a=c"], "texts with different names"),
        (
            ["hi", "--experts", "--source", "a=no/b", "--source", "c=no/d"],
            "--source no/b cannot be read: No such file or directory; name",
        ),
        ([""], "the prompt is empty"),
        (["hi", "--position", "99"], "--position is 99; the prompt has positions 0 to "),
        (["hi", "--csv", "no/such/folder/ops.csv"], "no folder no/such/folder"),
        (["hi", "--perfetto", "."], "cannot be written; name a file"),
        (["hi", "--roofline", "picture.png"], "name an .svg file"),
        (["hi", "--device", "slat"], "unknown device 'slat'"),
        (["hi", "--repeats", "0"], "repeats is 0; it must be at least 1"),
        (["hi", "--threads", "0"], "--threads is 0"),
        (["hi", "--system", "be brief"], "--system needs a chat template"),
        (["x" * 400], "the model's context is 128"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    ridgeline: Run, dense: str, card: str, arguments: list[str], said: str
) -> None:
    device = [] if "--device" in arguments else ["--device", card]
    assert_one_line(ridgeline("trace", dense, *arguments, *device), USAGE, said)


def test_whose_experts_of_the_built_in_mixture(ridgeline: Run, card: str) -> None:
    texts = Path(__file__).parents[2] / "docs" / "texts"
    sources = [part for name in ("story", "french") for part in ("--source", f"{name}={texts / name}.txt")]
    ended = ridgeline(
        "trace", "mixture", "Once", "--device", card, "--threads", 1, "--repeats", 1, "--experts", *sources
    )
    assert ended.code == OK, ended.err
    for said in ("Experts: where", "Whose experts: percent of the picks of each text (story ", "Of 8 experts a batch"):
        assert said in ended.out


@pytest.mark.parametrize("arguments", [("--position", "99"), ("--experts",), ("--repeats", "0")])
def test_what_cannot_be_shown_is_refused_before_the_machine_is_probed(
    ridgeline: Run, monkeypatch: pytest.MonkeyPatch, dense: str, arguments: tuple[str, ...]
) -> None:
    def probe(threads: int | None = None, *, estimate: bool = False) -> object:
        pytest.fail("probed for a trace that cannot be")

    monkeypatch.setattr(local_device, "this_device", probe)
    assert_one_line(ridgeline("trace", dense, "hi", *arguments), USAGE)


def test_a_model_that_is_none_is_refused(ridgeline: Run, tmp_path: Path, card: str) -> None:
    assert_one_line(ridgeline("trace", tmp_path, "hi", "--device", card), REFUSED, "no config.json")


# -- priced alone ------------------------------------------------------------------------------------------------------


def test_a_model_and_a_card_that_are_not_here(ridgeline: Run) -> None:
    """Shapes, the three times and layers with their count; no weights, no prompt."""
    ended = ridgeline("trace", "llama-3.1-405b", "--priced", "h100-sxm", "--devices", 8, "--weights", "fp8")
    assert (ended.code, ended.err) == (OK, "")
    for said in ("-> 16 [N,S] ->", "126 layers", "floor", "bound", "expected", "fp8 weights", "N = 1,024"):
        assert said in ended.out
    found = ridgeline("trace", "gpt2", "--priced", "t4", "--input", 64, "--batch", 2, "--json").json
    assert (found["input"], found["batch"], found["layers"]) == (64, 2, 12)
    assert found["steps"]["decode"]["rows"] == 2


def test_a_card_of_a_file_and_a_quantised_config(ridgeline: Run, tmp_path: Path, card: str) -> None:
    """As priced as any; what the card cannot compute in is said."""
    quantised = {"model_type": "llama", "rms_norm_eps": 1e-5, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | quantised), encoding="utf-8")
    ended = ridgeline("trace", tmp_path, "--priced", card, "--input", 16)
    out = " ".join(ended.out.split())
    assert ended.code == OK, ended.err
    assert "stored fp8 tensor weights" in out
    assert "Slate 2 does not compute in fp8: matrix products are predicted at the peak of the next wider format" in out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["gpt2"], "PROMPT is missing; give the text to trace, or --priced DEVICE"),
        (["gpt2", "--device", "t4"], "give the text to trace, or --priced t4 instead of --device"),
        (["gpt2", "hi", "--priced", "t4"], "--priced runs no model, but a prompt is for a model that runs"),
        (["gpt2", "--priced", "t4", "--lens"], "--lens is for a model that runs"),
        (["gpt2", "--priced", "t4", "--csv", "x.csv"], "--csv is for a model that runs"),
        (["gpt2", "--priced", "t4", "--max-tokens", "3"], "--max-tokens is for a model that runs"),
        (["gpt2", "hi", "--batch", "2"], "--batch applies only to a prediction without a run; give --priced DEVICE"),
        (["gpt2", "--priced", "t4", "--input", "many"], "--input is 'many'"),
        (["gpt2", "--priced", "t4", "--input", "1k"], "the model's context is 1,024"),
        (["gpt2", "--priced", "t4", "--rope", "yarn:4"], "--rope yarn:4 does not suit gpt2"),
        (["gpt2", "hi", "--rope", "yarn:4"], "--rope applies only to a prediction without a run"),
        (["gpt2", "--priced", "t4", "--weights", "fp3"], "--weights is 'fp3'"),
        (["gpt2", "--priced", "t4", "--devices", "16"], "devices is 16"),
        (["gpt2", "--priced", "a100"], "a100-sxm-80gb"),
    ],
)
def test_what_is_refused_of_a_priced_request(ridgeline: Run, flags: list[str], says: str) -> None:
    """In one line; nothing is accepted and ignored."""
    ended = ridgeline("trace", *flags)
    assert_one_line(ended, USAGE, says)
    assert ended.out == ""
