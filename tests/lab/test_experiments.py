"""Experiments that say beforehand what they expect: all of it holds, on a model in fp32 and on counts, which no machine
changes; and a page, a picture and JSON of each."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from ridgeline.cli.main import build_app
from ridgeline.document.svg import svg
from ridgeline.document.terminal import plain
from ridgeline.lab import experiments
from ridgeline.lab.experiment import Experiment, Outcome
from ridgeline.lab.experiments import EXPERIMENTS
from ridgeline.lab.inside import STORY, Context, Inside
from ridgeline.models.blocks import Block


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_comes_out_as_expected(name: str) -> None:
    experiment = EXPERIMENTS[name]
    torch.set_num_threads(1)
    outcome = experiment.run()
    assert outcome.as_expected, [said for holds, said in outcome.held if not holds]
    page = experiment.report(outcome)
    (figure,) = page.figures
    assert ElementTree.fromstring(svg(figure)).tag.endswith("svg")
    for width in (80, 120):
        assert max(map(len, plain(page, width).splitlines())) <= width or experiment.file in plain(page, width)
    data = json.loads(json.dumps(experiment.as_json(outcome)))
    assert [each["expected"] for each in data["expectations"]] == list(experiment.expected)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_short_enough_to_be_read(name: str) -> None:
    assert len(Path(EXPERIMENTS[name].file).read_text(encoding="utf-8").splitlines()) <= 120


def test_what_is_expected_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what does not hold ends with exit code 1, with its figure."""

    def run() -> Outcome:
        print("RUNS")
        return Outcome(((True, "two is two"), (False, "one is not two")), (), {"one": 1})

    made = Experiment("made", "Is it so?", ("Two is two.", "One is two."), run, __file__)
    monkeypatch.setitem(experiments.EXPERIMENTS, "made", made)
    from ridgeline.cli.lab_experiment import command_of

    app = build_app(("lab",))
    app.command("made")(command_of(made, lambda *_: None))
    ended = CliRunner().invoke(app, ["made"])
    assert ended.exit_code == 1
    assert ended.stdout.index("One is two.") < ended.stdout.index("RUNS") < ended.stdout.index("did not hold")
    assert "one is not two" in ended.stdout
    assert json.loads(CliRunner().invoke(app, ["made", "--json"]).stdout.replace("RUNS\n", ""))["one"] == 1


# -- the model looked into --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tales() -> Inside:
    return Inside()


def test_states_are_those_that_the_head_reads(tales: Inside) -> None:
    """The first is the table's rows; the last, normed, gives the logits."""
    ids = tales.ids(STORY)
    states = tales.states(ids)
    assert len(states) == 1 + len(tales.blocks)
    assert torch.equal(states[0], tales.table[ids])
    norm = tales.model.get_submodule("model.norm")
    normed = states[-1] * (states[-1].square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight
    assert torch.allclose(normed @ tales.table.T, tales.logits(ids), atol=1e-3)


def test_shares_of_attention_give_what_the_layer_gives(tales: Inside) -> None:
    """By the values of the first layer, read from the call itself."""
    ids, taken = tales.ids("The dog saw a ball"), {}
    op = tales.model.get_submodule("model.layers.0.self_attn.attend")
    handle = op.register_forward_hook(lambda _, inputs, output: taken.update(v=inputs[2], out=output))
    weights_HTT = tales.weights(ids)[0]
    handle.remove()
    v_HTW = taken["v"].repeat_interleave(2, 1).transpose(0, 1)
    assert torch.allclose((weights_HTT @ v_HTW).transpose(0, 1).flatten(1), taken["out"], atol=1e-5)


def test_what_is_taken_out_comes_back(tales: Inside) -> None:
    ids = tales.ids(STORY)
    before = tales.loss(ids)
    with tales.activated(torch.relu):
        assert tales.loss(ids) != before
    with tales.without_feed_forward():
        assert tales.loss(ids) > before + 1
    assert tales.loss(ids, Context(len(ids), without=(1, 2, 3))) > before + 0.5
    assert tales.loss(ids) == before
    assert isinstance(tales.blocks[0], Block)
