"""`show` and `plan` of models that embed: what they are, and what texts take, by hand."""

import json
from pathlib import Path

import pytest

from cli.running import OK, USAGE, Run, assert_one_line
from ridgeline.models import Fields, build
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.cards import load_card
from ridgeline.roofline.price import Price
from support.checkpoints import edit_config
from support.embedders import write_bert


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
    assert "no head: a text's states are pooled" in " ".join(ended.out.split())
    assert "nothing is kept of a text" in ended.out
    assert "query heads share" not in ended.out
    write_bert(tmp_path, labels=3)
    told = json.loads(ridgeline("show", tmp_path, "--json").out)
    assert (told["architecture"], told["layers"]) == ("BertForSequenceClassification", 2)
    assert told["parameters"]["head"] == 36 * 36 + 36 + 36 * 3 + 3
    assert told["kv_bytes_per_token"] == 0
    assert "scores of 3 labels for the cls of a text's states" in " ".join(ridgeline("show", tmp_path).out.split())


def test_plan(ridgeline: Run, folder: Path) -> None:
    """Texts a second are those of full steps, and every figure is the price's."""
    asked = ("plan", folder, "--device", "h100-sxm", "--input", 32, "--max-batch-tokens", 256)
    told = json.loads(ridgeline(*asked, "--json").out)
    model = build(Fields.read(folder / "config.json"))
    assert told["workload"] == {"input": 32, "texts": 8}
    price, device = Price(model), load_card("h100-sxm")
    assert told["memory"]["weights"] == sum(p.nbytes for p in model.parameters())
    for name, texts in (("one", 1), ("full", 8)):
        step = price.on(device, Work.of([Segment(32, 32)] * texts, model.reaches, texts))
        assert told[name]["floor"] == pytest.approx(step.floor)
        assert told[name]["floor"] <= told[name]["bound"] <= told[name]["expected"]
    assert told["texts_per_second"]["expected"] == pytest.approx(8 / told["full"]["expected"])
    assert told["memory"]["fits"]
    ended = ridgeline(*asked)
    assert ended.out.splitlines()[0].endswith("vectors of texts of 32 tokens")
    assert "no KV: a text runs in one step" in " ".join(ended.out.split())


def test_a_text_longer_than_a_step_runs_alone(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """And one longer than the model takes is refused."""
    asked = ("plan", folder, "--device", "h100-sxm")
    assert (
        json.loads(ridgeline(*asked, "--input", 60, "--max-batch-tokens", 16, "--json").out)["workload"]["texts"] == 1
    )
    refused = "texts of 61 tokens are longer than the 60 that the model takes"
    assert_one_line(ridgeline(*asked, "--input", 61), USAGE, refused)
    assert_one_line(
        ridgeline(*asked, "--input", 9, "--full"), USAGE, "writes no text: a plan of it is for one --device"
    )
    write_bert(tmp_path)
    edit_config(tmp_path, hidden_size=81_920, num_attention_heads=640, intermediate_size=327_680)
    told = json.loads(ridgeline("plan", tmp_path, "--device", "h100-sxm", "--input", 60, "--json").out)
    assert not told["memory"]["fits"]
    assert told["dollars_per_million_tokens"] is None
