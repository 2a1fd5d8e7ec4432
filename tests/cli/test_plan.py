"""`ridgeline plan` as a user meets it: its figures in JSON, its tables, and one line for each mistake."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import main
from ridgeline.cli.options import parse_dollars, parse_seconds, parse_tokens
from ridgeline.roofline.cards import names
from support.planned import TINY, TINY_MIXTURE

CARD = ("--device", "h100-sxm")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A config.json of its own."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Run the command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr("sys.argv", ["ridgeline", "plan", *words])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`plan(*words)` runs the command."""
    return lambda *words: run(capsys, monkeypatch, *words)


@pytest.mark.parametrize(
    ("text", "tokens"), [("1k", 1024), ("1K", 1024), ("128k", 131_072), ("2000", 2000), ("1M", 1 << 20), ("1.5k", 1536)]
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text, "--input") == tokens


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("50 us", 50e-6), ("50 µs", 50e-6), ("1.5ms", 0.0015)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--ttft") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-5", "1.3", "k", "1KB", "1kB", "many", "1e3", "0.0001k"])
def test_no_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="--input is"):
        parse_tokens(text, "--input")


@pytest.mark.parametrize("text", ["", "500", "0ms", "-1s", "1 m", "1h", "ms", "nan s"])
def test_no_seconds(text: str) -> None:
    with pytest.raises(ValueError, match="--ttft is"):
        parse_seconds(text, "--ttft")


def test_dollars() -> None:
    assert parse_dollars("$2.5", "--price") == parse_dollars("2.5", "--price") == 2.5
    for text in ("", "0", "-1", "2 EUR", "free"):
        with pytest.raises(ValueError, match="--price is"):
            parse_dollars(text, "--price")


def test_a_model_is_a_config_a_folder_or_a_name(plan: Any, model: str) -> None:
    figures = []
    for name in (model, str(Path(model).parent)):
        code, out, err = plan(name, *CARD, "--json")
        assert (code, err) == (0, "")
        figures.append({k: v for k, v in json.loads(out).items() if k != "model"})
    assert figures[0] == figures[1]
    code, out, _ = plan("gpt2", *CARD, "--input", "500", "--json")
    assert code == 0
    assert json.loads(out)["model"]["parameters"] == 124_439_808


def test_the_fields_of_json_are_a_contract(plan: Any, model: str) -> None:
    shown = json.loads(
        plan(model, *CARD, "--json", "--batch", "4", "--ttft", "1s", "--tpot", "50ms", "--price", "3")[1]
    )
    assert set(shown) == {
        "model", "device", "workload", "answer", "memory", "weights", "ways_to_fit", "phases", "prefill", "decode",
        "request", "crossings", "sweep", "experts_touched", "load", "levers", "batching", "sensitivities", "cards",
        "words", "definitions",
    }  # fmt: skip
    assert {"TTFT", "ITL", "TPOT", "floor", "bound", "expected", "FLOP/B", "ridge", "gain"} <= set(shown["definitions"])
    assert "default of its kind" in shown["definitions"]["expected"]  # no card but a calibrated one was all measured
    for phase in ("prefill", "decode"):
        assert {"flops", "memory_bytes", "intensity", "ridge", "limit", "classes", "seconds"} <= set(shown[phase])
        assert set(shown[phase]["seconds"]) == {"floor", "bound", "expected"}
    assert [phase["name"] for phase in shown["phases"]] == ["prefill", "decode"]
    for phase in shown["phases"]:
        assert phase.items() <= shown[phase["name"]].items()
    for figure in ("floor", "bound", "expected"):
        total = sum(phase["count"] * phase["seconds"][figure] for phase in shown["phases"])
        assert shown["request"][figure] == pytest.approx(total)
    for figure in ("floor", "bound", "expected"):  # 256 tokens: the prefill gives one, 255 steps the others
        prompt, step = shown["prefill"]["seconds"][figure], shown["decode"]["seconds"][figure]
        assert shown["request"][figure] == pytest.approx(prompt + 255 * step)
        assert shown["request"]["tokens_per_second"][figure] == pytest.approx(4 * 256 / (prompt + 255 * step))
    assert shown["device"]["dollars_per_hour"] == 3
    assert shown["cards"] is None
    assert shown["experts_touched"] is None
    answer = shown["answer"]
    assert answer["fits"]
    load = shown["load"]["most"]
    assert answer["users"] == load["users"]
    assert load["tpot"]["expected"] <= 0.05
    assert answer["dollars_per_million_tokens"] == pytest.approx(3 / 3600 / load["tokens_per_second"]["expected"] * 1e6)


def test_floor_bound_and_expected_stand_side_by_side(plan: Any, model: str) -> None:
    code, out, err = plan(model, *CARD)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "uncalibrated: 4 of 5 published measurements are within 20 %, under load half within 25 %" in lines
    assert [line.split()[0] for line in lines if re.match(r"(fits|users|speed|limit|cost)  ", line)] == [
        "fits", "users", "speed", "limit", "cost",
    ]  # fmt: skip
    assert next(i for i, line in enumerate(lines) if line.startswith("cost")) < 12
    assert any(line.split() == ["floor", "bound", "expected"] for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= 100
    assert "maximum concurrency for 1,280 tokens" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--weights", "fp8", "--kv", "fp8"), ("--dtype", "int4", "--devices", "2"), ("--devices", "4", "--compare"),
        ("--compare", "--json"), ("--ttft", "10ms", "--tpot", "1ms"), ("--ttft", "1us"),
        ("--batch", "64", "--input", "4k"),
        ("--memory-utilization", "0.5", "--kv", "int8"), ("--max-batch-tokens", "128", "--batch", "3"),
        ("--output", "1"), ("--input", "1", "--output", "1"), ("--weights", "fp32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [TINY, TINY_MIXTURE], ids=["dense", "mixture"])
def test_options_in_pairs(plan: Any, model: str, config: dict[str, Any], words: tuple[str, ...]) -> None:
    Path(model).write_text(json.dumps(config))
    code, out, err = plan(model, *CARD, *words)
    assert (code, err) == (0, "")
    assert out
    if "--json" not in words:
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "a100"), "a100-sxm-80gb"),
        (("--device", "h100-smx"), "nearest are h100-sxm"),
        (("--device", "none.json"), "none.json"),
        ((*CARD, "--batch", "2000", "--input", "7900", "--memory-utilization", "0.1"), "GiB too much"),
        ((*CARD, "--batch", "-1"), "batch is -1"),
        ((*CARD, "--batch", "many"), "--batch"),
        ((*CARD, "--devices", "0"), "devices is 0"),
        ((*CARD, "--devices", "16"), "up to 8"),
        ((*CARD, "--input", "-5"), "--input is '-5'"),
        ((*CARD, "--output", "0"), "--output is '0'"),
        ((*CARD, "--input", "8k"), "the model's context is 8,192"),
        ((*CARD, "--ttft", "500"), "like 500ms"),
        ((*CARD, "--tpot", "-5ms"), "--tpot is"),
        ((*CARD, "--price", "-2"), "--price is"),
        ((*CARD, "--weights", "fp7"), "fp8, int8, w8a8, int4"),
        ((*CARD, "--kv", "int4"), "fp8, int8"),
        ((*CARD, "--kv", "fp32"), "--weights fp32"),
        ((*CARD, "--memory-utilization", "90"), "at most 1"),
        (("--device", "m4-max", "--devices", "2"), "knows no link of m4-max; give a card file with `link`"),
        ((), "--device is missing; ridgeline plan --list"),
        ((*CARD, "--devices", "3"), "give --devices 1, 2 or 4"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(plan: Any, model: str, words: tuple[str, ...], said: str) -> None:
    code, out, err = plan(model, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("ridgeline: ")
    assert said in err


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, (), "missing: multi-head latent attention"),
        ({"architectures": ["SphinxForCausalLM"]}, (), "SphinxForCausalLM is not supported; supported are Llama"),
        ({"hidden_size": None}, (), "hidden_size is missing"),
    ],
)
def test_a_refused_model_is_one_line_and_code_3(
    plan: Any, model: str, changes: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    Path(model).write_text(json.dumps(TINY | changes))
    code, out, err = plan(model, *CARD, *words)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("name", "said"),
    [("llama3-8b", "did you mean llama-3-8b"), ("deepseek-v3", "latent attention"), ("no/such", "plan --list")],
)
def test_a_name_that_is_not_there_offers_the_nearest(plan: Any, name: str, said: str) -> None:
    code, _, err = plan(name, *CARD)
    assert (code, err.count("\n")) == (3, 1)
    assert said in err


def test_a_model_that_does_not_fit_is_an_answer(plan: Any) -> None:
    code, out, err = plan("llama-3-70b", *CARD, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert not shown["answer"]["fits"]
    assert shown["answer"]["missing_bytes"] > 60e9
    assert shown["answer"]["users"] == 0
    assert shown["ways_to_fit"]
    assert "does not fit" in shown["words"]


def test_fewer_cards_with_a_narrower_format_are_a_way_to_fit(plan: Any) -> None:
    """Mixtral was said to fit on eight RTX 4090 alone: two hold it in int4."""
    shown = json.loads(plan("mixtral-8x7b", "--device", "rtx-4090", "--json")[1])
    assert shown["ways_to_fit"] == [{"devices": 2, "weights": "int4"}, {"devices": 8, "weights": None}]
    for way in shown["ways_to_fit"][:1]:
        words = ("--devices", str(way["devices"]), "--weights", way["weights"], "--json")
        assert json.loads(plan("mixtral-8x7b", "--device", "rtx-4090", *words)[1])["answer"]["fits"]


def test_what_does_not_fit_says_so_without_styles(plan: Any) -> None:
    """Rows of a sweep that memory does not hold were dim in a terminal, and like any other in a pipe."""
    out = plan("llama-3-70b", *CARD, "--devices", "2", "--input", "100", "--batch", "64")[1]
    head = next(line for line in out.splitlines() if line.split()[:2] == ["batch", "ITL"])
    assert head.split()[-1] == "fits"
    rows = re.findall(r"^ *([\d,]+) .* x .* (yes|no)$", out, re.M)
    assert rows[0] == ("1", "yes")
    out = plan("llama-3-70b", *CARD)[1]
    assert {fits for _, fits in re.findall(r"^ *([\d,]+) .* x .* (yes|no) *$", out, re.M)} == {"no"}


def test_a_target_that_nobody_meets_has_no_0_users(plan: Any) -> None:
    out = re.sub(r"\s+", " ", plan("llama-3-8b", *CARD, "--ttft", "1us")[1])
    assert "none within the targets: a single user gets a TTFT of" in out
    assert "0 users" not in out
    assert "no user within the targets either" in out
    assert "fits, but misses the targets" in out


def test_the_line_and_the_paragraph_agree_on_what_is_scarce(plan: Any) -> None:
    out = re.sub(r"\s+", " ", plan("llama-3-8b", *CARD)[1])
    said = re.search(r"users: twice the (\S+) helps most", out)
    assert said is not None
    assert f"more {said[1]} would help most" in out


def test_the_comparison_ranks_offers_and_says_so(plan: Any) -> None:
    """It looked like a ranking of hardware; and a card alone beside pairs looked like all that there is of it."""
    words = ("llama-3-8b", *CARD, "--devices", "2", "--compare")
    out = plan(*words)[1]
    assert "prices of different sellers of 2024" in out
    assert "not the hardware" in out
    assert re.search(r"^h100-sxm +2 .* 8\.58 +[\d.]+ *$", out, re.M)
    assert re.search(r"^m4-max +no link known: 1 ", out, re.M)
    (shown,) = [card for card in json.loads(plan(*words, "--json")[1])["cards"] if card["card"] == "h100-sxm"]
    assert shown["dollars_per_hour"] == pytest.approx(8.58)
    assert shown["price"]["date"] == "2026"
    assert "SkyPilot" in shown["price"]["source"]


def test_a_card_without_kernel_times_is_trusted_less(plan: Any, model: str) -> None:
    out = " ".join(plan(model, "--device", "mi300x")[1].split())
    assert "expected figures are what is usual for its kind" in out
    assert "aiconfigurator" not in plan(model, "--device", "h20")[1]


def test_users_without_targets_are_not_those_of_an_interactive_service(plan: Any) -> None:
    hint = "targets like --ttft 1s --tpot 50ms"
    assert hint in re.sub(r"\s+", " ", plan("llama-3-8b", *CARD)[1])
    assert hint not in re.sub(r"\s+", " ", plan("llama-3-8b", *CARD, "--tpot", "50ms")[1])


def test_the_readme_shows_what_the_command_says(plan: Any) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```\n(llama-3-8b on 1 x .*?)```", readme, re.S)
    said = [line.rstrip() for line in plan("llama-3-8b", "--device", "a100-sxm-80gb")[1].splitlines()]
    lines = [line for line in shown.splitlines() if line != "..."]
    assert len(lines) > 10
    assert [line for line in lines if line not in said] == []


def test_the_list_names_every_model_and_card(plan: Any) -> None:
    code, out, err = plan("--list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    sizes = {model["name"]: model["parameters"] for model in listed["models"]}
    assert sizes["llama-3-8b"] == 8_030_261_248
    assert len(sizes) >= 23
    assert {card["name"] for card in listed["cards"]} == set(names())
    code, out, err = plan("--list")
    assert (code, err) == (0, "")
    shown = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert {*sizes, *names()} <= set(shown)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    assert re.search(r"h100-sxm +NVIDIA H100 SXM 80GB +80 +3,350 +989 +4.29", out)


def test_help_teaches_the_terms(plan: Any) -> None:
    code, out, _ = plan("--help")
    assert code == 0
    for term in ("TTFT", "ITL", "TPOT", "floor, bound and expected", "running context"):
        assert term in re.sub(r"\s+", " ", out.replace("│", " "))
