"""`show` and `plan` of models that embed: what they are, and what texts take, by hand."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from cli.running import OK, USAGE, Run, assert_one_line
from models.configs import CONFIGS
from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.checkpoint.embedding_config import model_of, read_embedding, with_pooling
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.models import Fields, build
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.error_interval import ErrorInterval, error_intervals
from ridgeline.price.interval_text import rate_interval, rates_between, time_interval
from ridgeline.price.price import Price
from ridgeline.util.document.humanize import three_digits
from support.checkpoints import edit_config, write_folder
from support.embedders import state_pooling, write_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    write_bert(folder)
    return folder


def test_show(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """Layers are counted, nothing is kept, and what comes of the states is said."""
    ended = ridgeline("show", folder)
    assert ended.code == OK
    assert "2 layers, context 60" in ended.out
    assert "no head: a text's hidden states are pooled" in " ".join(ended.out.split())
    assert "none, because a text runs in one step" in ended.out
    assert "query heads share" not in ended.out
    write_bert(tmp_path, labels=3)
    told = json.loads(ridgeline("show", tmp_path, "--json").out)
    assert (told["architecture"], told["layers"]) == ("BertForSequenceClassification", 2)
    assert told["parameters"]["head"] == 36 * 36 + 36 + 36 * 3 + 3
    assert told["kv_bytes_per_token"] == 0
    assert "scores of 3 labels from the cls of a text's hidden states" in " ".join(
        ridgeline("show", tmp_path).out.split()
    )


def test_plan(ridgeline: Run, folder: Path) -> None:
    """Texts a second are those of full steps, and every figure is the price's."""
    asked = ("plan", folder, "--device", "h100-sxm", "--input", 32, "--max-batch-tokens", 256)
    told = json.loads(ridgeline(*asked, "--json").out)
    model = build(Fields.read(folder / "config.json"))
    assert told["workload"] == {"input": 32, "texts": 8}
    price, device = Price(with_pooling(model, None)), load_device("h100-sxm")
    assert told["memory"]["weights"] == sum(p.nbytes for p in model.parameters())
    for name, texts in (("one", 1), ("full", 8)):
        step = price.price_step(device, Work.of([StepSegment(32, 32)] * texts, model.attention_patterns, texts))
        assert told[name]["floor"] == pytest.approx(step.floor)
        assert told[name]["floor"] <= told[name]["bound"] <= told[name]["expected"]
    assert told["texts_per_second"]["expected"] == pytest.approx(8 / told["full"]["expected"])
    assert told["memory"]["fits"]
    prefill, load = (error_intervals()[kind, "family"] for kind in ("prefill", "load"))  # no kernel times in fp32
    rate, one = told["texts_per_second"]["expected"], told["one"]["expected"]
    ceiling, floor = told["texts_per_second"]["floor"], told["one"]["floor"]
    assert told["intervals"]["one"] == list(prefill.around_time(one, floor))
    assert told["intervals"]["texts_per_second"] == list(load.around_rate(rate, ceiling))
    low, high = told["intervals"]["dollars_per_million_tokens"]
    assert low < told["dollars_per_million_tokens"] < high
    for name in ("kwh_per_million_tokens", "joules_per_token"):
        factor = told[name] / told["dollars_per_million_tokens"]
        assert told["intervals"][name] == pytest.approx([low * factor, high * factor])
    assert told["trust"]["intervals"]["load"]["rows"] == load.rows
    ended = ridgeline(*asked)
    said = " ".join(ended.out.split())
    assert f"{time_interval(prefill, one, floor)} alone" in said
    assert f"{rate_interval(load, rate, ceiling)} texts of 32 tokens per second" in said
    assert f"in 8 of 10 cases like this one ({prefill.measurements}); texts per second and their cost x " in said
    assert ended.out.splitlines()[0].endswith("vectors of texts of 32 tokens")
    assert "no KV: a text runs in one step" in " ".join(ended.out.split())
    joules = 700 / (told["texts_per_second"]["expected"] * 32)
    assert told["joules_per_token"] == pytest.approx(joules)
    assert told["kwh_per_million_tokens"] == pytest.approx(joules / 3.6)
    kwh = joules / 3.6
    around = rates_between(kwh * max(load.low, rate / ceiling), kwh * load.high)
    energy = f"at full board power {three_digits(kwh)} {around} kWh ({three_digits(joules)} J per token)"
    assert f"per million tokens, and {energy}" in " ".join(ended.out.split())


def test_a_text_longer_than_a_step_runs_alone(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """And one longer than the model takes is refused."""
    asked = ("plan", folder, "--device", "h100-sxm")
    assert (
        json.loads(ridgeline(*asked, "--input", 60, "--max-batch-tokens", 16, "--json").out)["workload"]["texts"] == 1
    )
    refused = "texts of 61 tokens are longer than the model's context of 60"
    assert_one_line(ridgeline(*asked, "--input", 61), USAGE, refused)
    write_bert(tmp_path)
    edit_config(tmp_path, hidden_size=81_920, num_attention_heads=640, intermediate_size=327_680)
    told = json.loads(ridgeline("plan", tmp_path, "--device", "h100-sxm", "--input", 60, "--json").out)
    assert not told["memory"]["fits"]
    assert told["dollars_per_million_tokens"] is None


def test_sections(ridgeline: Run, folder: Path) -> None:
    """A text alone beside a full step, by op too; texts by their length, up to what the model takes."""
    asked = ("plan", folder, "--device", "h100-sxm", "--input", 16)
    ended = ridgeline(*asked, "--full")
    assert ended.code == OK, ended.err
    for words in ("fits", "one text, 1 x 16 tokens", "full step, 128 x 16 tokens", "usable", "attention"):
        assert words in " ".join(ended.out.split())
    by_length = ridgeline(*asked, "--section", "lengths").out
    assert [line.split()[:2] for line in by_length.splitlines() if line.split()[:1] in (["32"], ["60"])] == [
        ["32", "64"],
        ["60", "34"],
    ]
    names = "memory, steps, classes, lengths"
    assert_one_line(ridgeline(*asked, "--section", "users"), USAGE, f"it must be one or more of {names}")
    for flag in (("--batch", 8), ("--users", 3), ("--slo", "none"), ("--output", 64)):
        assert_one_line(ridgeline(*asked, *flag), USAGE, f"generates no text: {flag[0]} is for language models")
    assert_one_line(ridgeline(*asked, "--kv", "fp8"), USAGE, "has no KV cache", "leave out --kv")
    assert_one_line(ridgeline(*asked, "--lora", "a=b"), USAGE, "cannot use adapters; merge the adapter into it")


def test_cards(ridgeline: Run, folder: Path) -> None:
    """A ranking for each seller, by dollars a token, which are those of the plan of each card."""
    asked = ("plan", folder, "--input", 16, "--compare-devices", "h100-sxm,l4")
    told = json.loads(ridgeline(*asked, "--json").out)["cards"]
    assert {each["device"] for each in told} == {"h100-sxm", "l4"}
    for each in told:
        alone = json.loads(ridgeline("plan", folder, "--input", 16, "--device", each["device"], "--json").out)
        assert each["texts_per_second"] == alone["texts_per_second"]
    by_seller: dict[str, list[float]] = {}
    for each in told:
        by_seller.setdefault(each["seller"], []).append(each["dollars_per_million_tokens"])
    assert all(costs == sorted(costs) for costs in by_seller.values())
    assert max(map(len, by_seller.values())) == 2
    ended = ridgeline(*asked)
    assert ended.code == OK, ended.err
    assert "vectors of texts of 16 tokens" in ended.out.splitlines()[0]
    assert "cheapest tokens first" in ended.out
    tokens = told[0]["texts_per_second"]["expected"] * 16
    ceiling = told[0]["texts_per_second"]["floor"] * 16
    assert rate_interval(ErrorInterval(**told[0]["trust"]["intervals"]["load"]), tokens, ceiling) in ended.out
    assert "TTFT" not in ended.out


def test_a_decoder_whose_folder_says_how_it_embeds(ridgeline: Run, tmp_path: Path) -> None:
    """No head, no decoding; the texts of a step keep keys and values until the last of them has run."""
    layers, kv = 2, 2 * 2 * 12 * 4  # keys and values of two heads in fp32
    sizes = {"hidden_size": 36, "num_key_value_heads": 2, "head_dim": 12, "num_hidden_layers": layers}
    write_folder(tmp_path, CONFIGS["qwen3"] | sizes)
    state_pooling(tmp_path, "lasttoken", "Normalize")
    asked = ("plan", tmp_path, "--device", "h100-sxm", "--input", 40, "--max-batch-tokens", 16)
    told = json.loads(ridgeline(*asked, "--json").out)
    source = open_source(str(tmp_path))
    model = model_of(source, read_embedding(source))
    assert told["memory"]["weights"] == sum(parameter.nbytes for parameter in model.parameters())
    assert told["memory"]["kv"] == 48 * layers * kv
    price, device = Price(model), load_device("h100-sxm")
    steps = [
        Work.of([StepSegment(n, end)], model.attention_patterns, int(end == 40))
        for n, end in ((16, 16), (16, 32), (8, 40))
    ]
    assert told["one"]["floor"] == pytest.approx(sum(price.price_step(device, work).floor for work in steps))
    ended = ridgeline(*asked)
    assert "one text in 3 steps" in " ".join(ended.out.split())
    shown = " ".join(ridgeline("show", tmp_path).out.split())
    assert "no head: the last of a text's hidden states is its vector of 36" in shown


@pytest.mark.parametrize(("name", "tokens"), [("bert-base-uncased", 512), ("qwen3-embedding-0.6b", 100)])
def test_a_priced_trace_runs_the_text_and_no_more(ridgeline: Run, name: str, tokens: int) -> None:
    """No decode step and no head: what the plan has for one text alone."""
    asked = ("trace", name, "--priced", "h100-sxm", "--input", tokens)
    told = json.loads(ridgeline(*asked, "--json").out)
    (step,) = told["steps"].values()
    alone = json.loads(ridgeline("plan", name, "--device", "h100-sxm", "--input", tokens, "--json").out)["one"]
    assert step["floor_s"] == pytest.approx(alone["floor"])
    assert not any(op["path"] == "lm_head" for op in step["ops"])
    assert not re.search(r"^\W*decode", ridgeline(*asked).out, re.M)
    assert "decode step" not in ridgeline(*asked).out
    if name == "bert-base-uncased":
        long = ridgeline("trace", name, "--priced", "h100-sxm", "--input", 513)
        assert_one_line(long, USAGE, "the prompt has 513 tokens, but the model's context is 512")


def test_what_the_catalogue_says_of_pooling(ridgeline: Run) -> None:
    """Of models that it has; Qwen3-Embedding is planned as what it is."""
    entries = tomllib.loads((CATALOGUE / "embedding.toml").read_text(encoding="utf-8"))
    assert len(entries) >= 4
    for name, entry in entries.items():
        said = read_embedding(open_source(name))
        assert said is not None
        assert (said.mode, len(said.stages)) == (entry["pooling"], int(entry["normalise"]))
        assert not model_of(open_source(name), said).has_head
    ended = ridgeline("plan", "Qwen/Qwen3-Embedding-0.6B", "--device", "l4")
    assert ended.code == OK, ended.err
    assert "vectors of texts of 1,024 tokens" in ended.out.splitlines()[0]
    assert "KV of the texts" in " ".join(ended.out.split())
