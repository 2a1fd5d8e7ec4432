"""Each command says that a class of transformers defines a model, and that a model is priced only."""

import csv
import json
import re
from contextlib import nullcontext
from html import unescape
from pathlib import Path

import pytest

from cli.running import FAULT, OK, REFUSED, Run, assert_one_line
from engine.folders import write_model
from engine.small_models import LLAMA
from models.test_class_family import NEOX
from ridgeline.cli import class_status
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine
from ridgeline.engine.worker.engine_process import EngineStart
from ridgeline.insight.simulate.priced_engine import priced_engine
from ridgeline.price.devices import load_device
from support.class_models import ARCHITECTURE, CLASS_LLAMA, FROM, register_class
from support.registered_classes import registered_config, registered_fields

WORKLOADS = Path(__file__).resolve().parents[2] / "benchmarks" / "workloads.json"
LENGTHS = ("--input", "64", "--output", "32")
REASON = "the probe's packed run differs by 0.2 from the class"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model that can be loaded, with the config of a class."""
    written = write_model(tmp_path / "model")
    config = json.loads((written / "config.json").read_text(encoding="utf-8"))
    (written / "config.json").write_text(json.dumps({**config, **CLASS_LLAMA, "vocab_size": config["vocab_size"]}))
    return written


def test_show_says_where_the_definition_is_from(ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_class(monkeypatch)
    shown = ridgeline("show", folder)
    assert shown.code == OK
    assert "definition  traced from its class in transformers 5.24, because no family here builds it" in shown.out
    assert "runs " not in shown.out
    told = ridgeline("show", folder, "--json").json
    assert (told["architecture"], told["traced_from"], told["priced_only"]) == (ARCHITECTURE, FROM, "")


def test_a_plan_says_where_the_definition_is_from(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_class(monkeypatch, priced_only=REASON)
    plan, report = ("plan", folder, "--device", "h100-sxm", *LENGTHS), tmp_path / "report.html"
    shown = ridgeline(*plan, "--report", report)
    assert shown.code == OK
    for text in (" ".join(shown.out.split()), unescape(report.read_text(encoding="utf-8"))):
        assert "note traced from its class in transformers 5.24" in text.replace("</dt><dd>", " ")
        assert f"priced only, because {REASON}" in text
        assert re.search(
            r"not modelled: elementwise [\d.]+% of a prompt's bytes \([\d,]+ tokens\); elementwise [\d.]+% of a dec",
            text,
        )
        assert "none of a model traced from transformers 5.24" in text
    assert "traced from transformers 5.24" in " ".join(ridgeline(*plan, "--short").out.split())
    told = ridgeline(*plan, "--json").json
    assert (told["model"]["traced_from"], told["model"]["priced_only"]) == (FROM, REASON)
    shares = told["model"]["unmodelled"]
    assert 0 < shares["decode"]["elementwise"] < shares["prefill"]["elementwise"] < 1
    assert told["trust"]["intervals"]["load"]["traced_from"] == FROM
    assert told["trust"]["known"] == "family"


def test_a_comparison_says_where_the_definition_is_from(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_class(monkeypatch)
    compare, path = ("plan", folder, "--compare-devices", "h100-sxm,l40s", *LENGTHS), tmp_path / "offers.csv"
    text = " ".join(ridgeline(*compare, "--csv", path).out.split())
    assert "the model is traced from its class in transformers 5.24" in text
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert {row["traced_from"] for row in rows} == {FROM}
    assert "traced from" not in ridgeline("plan", "llama-3-8b", *compare[2:]).out


def test_a_priced_trace_and_a_simulation_say_it(ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_class(monkeypatch, priced_only=REASON)
    trace = ("trace", folder, "--priced", "h100-sxm", "--input", 64)
    text = " ".join(ridgeline(*trace).out.split())
    assert "note traced from its class in transformers 5.24" in text
    assert f"note priced only, because {REASON}" in text
    told = ridgeline(*trace, "--json").json
    assert (told["traced_from"], told["priced_only"]) == (FROM, REASON)
    run = ridgeline("simulate", folder, "--device", "h100-sxm", "--rate", "1", "--requests", "4", *LENGTHS)
    assert "none of a model traced from transformers 5.24" in " ".join(run.out.split())


def test_a_class_of_transformers_is_planned_and_traced(ridgeline: Run, tmp_path: Path) -> None:
    """Compare formats, which build the class in other dtypes, whose own code moves other numbers of bytes."""
    (tmp_path / "config.json").write_text(json.dumps({**NEOX, "torch_dtype": "float32"}), encoding="utf-8")
    lengths = ("--input", "40", "--output", "20")
    whole, half = (
        ridgeline("plan", tmp_path, "--device", "h100-sxm", "--weights", weights, *lengths, "--json").json
        for weights in ("fp32", "bf16")
    )
    assert whole["model"]["traced_from"].startswith("transformers 5.")
    assert whole["model"]["weight_bytes"] == 2 * half["model"]["weight_bytes"]
    assert ridgeline("plan", tmp_path, "--compare-devices", "h100-sxm,l40s", *lengths).code == OK
    trace = ridgeline("trace", tmp_path, "--priced", "h100-sxm", "--input", 40)
    assert "not modelled: elementwise" in " ".join(trace.out.split())


def test_show_of_a_family_has_no_such_line(ridgeline: Run, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert "definition" not in ridgeline("show", folder).out
    told = ridgeline("show", folder, "--json").json
    assert (told["traced_from"], told["priced_only"]) == ("", "")


def test_show_says_that_a_model_does_not_run(ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_class(monkeypatch, priced_only=REASON)
    assert f"runs        no, it can only be priced: {REASON}" in " ".join(ridgeline("show", folder).out.splitlines())
    assert ridgeline("show", folder, "--json").json["priced_only"] == REASON


@pytest.mark.parametrize("words", ["run MODEL hi", "serve MODEL", "chat MODEL", "bench engine MODEL", "trace MODEL hi"])
def test_commands_that_run_refuse_a_model_that_is_priced_only(
    words: str, ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_class(monkeypatch, priced_only=REASON)
    command = [str(folder) if word == "MODEL" else word for word in words.split()]
    more = ["--workloads", WORKLOADS] if "bench" in command else []
    refusal = f"{ARCHITECTURE} can only be priced (ridgeline plan, show, trace --priced), because {REASON}"
    assert_one_line(ridgeline(*command, *more), REFUSED, refusal)


def test_check_reports_that_a_model_is_priced_only(
    ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_class(monkeypatch, priced_only=REASON)
    ended = ridgeline("check", folder)
    assert ended.code == FAULT
    assert f"{ARCHITECTURE} can only be priced" in ended.out


def test_a_class_runs_if_nothing_speaks_against_it(
    ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_class(monkeypatch, unmodelled=False)
    ended = ridgeline("run", folder, "hi", "--max-tokens", "2", "--temperature", "0")
    assert ended.code == OK
    assert f"built from {ARCHITECTURE} of {FROM}, because no family here builds it\n" in ended.err
    device = load_device("h100-sxm")
    ours, theirs = load_engine("tales").info(device), load_engine(str(folder)).info(device)
    assert (ours.definition, theirs.definition) == ("", f"{ARCHITECTURE} of {FROM}")
    assert (
        priced_engine(EngineStart(str(folder), EngineSettings(), device=device)).info().definition == theirs.definition
    )
    own, traced = ours.predicted_intervals, theirs.predicted_intervals
    assert traced.keys() == own.keys()
    (low, high), (wider_low, wider_high) = own["decode"], traced["decode"]
    assert wider_low < low < high < wider_high


def test_latents_are_named(ridgeline: Run, tmp_path: Path) -> None:
    """Find the latent of a class in the texts, and how many times more bytes keys and values would take."""
    fields, config = registered_fields("youtu"), registered_config("youtu")
    (tmp_path / "config.json").write_text(json.dumps(dict(fields.values)), encoding="utf-8")
    kept = config.kv_lora_rank + config.qk_rope_head_dim
    whole = config.num_attention_heads * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
    latent = f"the latent of {kept} numbers a token and layer, from which an engine computes keys and values"
    shown = ridgeline("show", tmp_path)
    assert f"bytes per token as MLA: {latent} of {config.num_attention_heads} heads" in " ".join(shown.out.split())
    told = ridgeline("show", tmp_path, "--json").json
    assert (told["sizes"]["form"], told["priced_only"]) == ("MLA", "")
    planned = ridgeline("plan", tmp_path, "--device", "h100-sxm", *LENGTHS, "--json").json
    assert (
        f"its KV cache keeps {latent}; these would take {whole / kept:.1f} times as many bytes"
        in (planned["model"]["notes"])
    )


@pytest.mark.parametrize(
    "words",
    [
        "show MODEL",
        "plan MODEL --device h100-sxm --short --input 40 --output 10",
        "trace MODEL --priced h100-sxm --input 40",
    ],
)
def test_a_terminal_shows_that_a_class_is_traced(
    words: str, ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that commands which trace a class say so while they work, and that nothing is said of a family."""
    said: list[str] = []
    monkeypatch.setattr(class_status, "status", lambda text: nullcontext(said.append(text)))
    command = [str(folder) if word == "MODEL" else word for word in words.split()]
    (folder / "config.json").write_text(json.dumps(NEOX), encoding="utf-8")
    assert ridgeline(*command).code == OK
    assert set(said) == {"tracing GPTNeoXForCausalLM from its class in transformers"}
    said.clear()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert ridgeline(*command).code == OK
    assert not said


def test_matrices_that_devices_do_not_divide_are_named(ridgeline: Run, tmp_path: Path) -> None:
    """Take a class that computes the size of a head from the number of heads."""
    (tmp_path / "config.json").write_text(json.dumps(NEOX), encoding="utf-8")
    plan = ("plan", tmp_path, "--device", "h100-sxm", "--input", "32", "--output", "16", "--json")
    model = ridgeline(*plan, "--devices", "2").json["model"]
    assert "GPTNeoXAttention (" in model["undivided"]
    note = f"each device holds the undivided matrices or tables of {model['undivided']}; percentages are of its weights"
    assert note in model["notes"]
    assert ridgeline(*plan).json["model"]["undivided"] == ""
