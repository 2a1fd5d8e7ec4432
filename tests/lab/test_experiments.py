"""Experiments that say beforehand what they expect: all of it holds, on a model in fp32 and on counts, which no machine
changes, but for what rests on a clock; and a page, a picture and JSON of each."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tokenizers
import torch
from tokenizers import pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch.nn import functional
from typer.testing import CliRunner

from ridgeline.cli.main import build_app
from ridgeline.core.models.common.blocks import Block
from ridgeline.core.ops.rotary import Rope, RotaryTable, rotate
from ridgeline.learn.lab import distance as distance_lab
from ridgeline.learn.lab import experiments, flash, merges, queen
from ridgeline.learn.lab.directions import WordVectors
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.experiments import EXPERIMENTS
from ridgeline.learn.lab.instrumented_model import STORY, ExperimentContext, InstrumentedModel
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import plain
from support.code_lines import code_lines

LONG = ("goodput", "simulated")
"""They serve thousands of requests: make guide-check runs them, and make test holds some of these runs by the lock."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.guide if name in LONG else ()) for name in EXPERIMENTS]
)
def test_it_comes_out_as_expected(name: str) -> None:
    experiment = EXPERIMENTS[name]
    torch.set_num_threads(1)
    outcome = experiment.run()
    counted = [each for number, each in enumerate(outcome.held, 1) if number not in experiment.timed]
    assert all(holds for holds, _ in counted), [said for holds, said in counted if not holds]
    page = experiment.report(outcome)
    (figure,) = page.figures
    assert ElementTree.fromstring(svg(figure)).tag.endswith("svg")
    for width in (80, 120):
        assert max(map(len, plain(page, width).splitlines())) <= width or experiment.file in plain(page, width)
    data = json.loads(json.dumps(experiment.as_json(outcome)))
    assert [each["expected"] for each in data["expectations"]] == list(experiment.expected)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_short_enough_to_be_read(name: str) -> None:
    assert len(code_lines(Path(EXPERIMENTS[name].file))) <= 115


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("attention-by-hand", set(range(6))),
        ("change-a-word", set()),
        ("order", set()),
        ("two-places", set()),
        ("heads", {0, 2, 4}),
    ],
)
def test_layers_and_heads_are_numbered_from_0(name: str, heads: set[int]) -> None:
    """Check that the page and its image number them like the names of the model's tensors."""
    outcome = EXPERIMENTS[name].run()
    page = EXPERIMENTS[name].report(outcome)
    said = plain(page, 100) + svg(*page.figures)
    assert {int(number) for number in re.findall(r"layer (\d+)", said)} == set(range(5))
    assert {int(number) for number in re.findall(r"head (\d+)", said)} == heads


def test_the_named_head_attends_to_the_token_before(tales: InstrumentedModel) -> None:
    """Check that both experiments name the head with most weight below the diagonal."""
    weights_LHTT = torch.stack(tales.weights(tales.ids(STORY)))
    before_LH = weights_LHTT.diagonal(-1, 2, 3)[..., 1:].mean(-1)
    layer, head = divmod(int(before_LH.argmax()), before_LH.shape[1])
    assert EXPERIMENTS["heads"].run().data["holders"]["the token before"] == (layer, head)
    assert EXPERIMENTS["distance"].run().held[-1][1].startswith(f"layer {layer}, head {head} gives it ")


def test_what_is_expected_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what does not hold ends with exit code 1, with its figure."""

    def run() -> ExperimentOutcome:
        print("RUNS")
        return ExperimentOutcome(((True, "two is two"), (False, "one is not two")), (), {"one": 1})

    made = Experiment("made", "Is it so?", ("Two is two.", "One is two."), run)
    monkeypatch.setitem(experiments.EXPERIMENTS, "made", made)
    from ridgeline.cli.lab import command_of

    app = build_app(("lab",))
    app.command("made")(command_of(made, lambda *_: None))
    ended = CliRunner().invoke(app, ["made"])
    assert ended.exit_code == 1
    assert ended.stdout.index("One is two.") < ended.stdout.index("RUNS") < ended.stdout.index("did not hold")
    assert "one is not two" in ended.stdout
    assert json.loads(CliRunner().invoke(app, ["made", "--json"]).stdout.replace("RUNS\n", ""))["one"] == 1


# -- what they are made of --------------------------------------------------------------------------------------------


def test_learned_rules_are_those_of_a_trainer_of_tokenizers() -> None:
    """Of the tokenizers library, over words whose pairs all have counts of their own: 9 `es`, then 8 of `est`, ..."""
    text = "x".join(["abab"] * 5 + ["bcd"] * 7 + ["cde"] * 4)
    pipeline = tokenizers.Tokenizer(BPE())
    pipeline.pre_tokenizer = pre_tokenizers.Split("x", "removed")
    pipeline.train_from_iterator([text], BpeTrainer(vocab_size=5 + 4, show_progress=False))
    theirs = [tuple(pair) for pair in json.loads(pipeline.to_str())["model"]["merges"]]
    ours = [pair for (pair, _, _), _ in zip(merges.learn(text.replace("x", " ")), range(99), strict=False)]
    assert theirs == [pair for pair in ours if " " not in "".join(pair)][:4]


@pytest.mark.parametrize("tile", [1, 5, 37, 64])
def test_attention_in_tiles_is_that_of_torch(tile: int) -> None:
    draw = torch.Generator().manual_seed(3)
    q_QD, k_LD, v_LD = 3 * torch.randn(3, 37, 8, generator=draw)
    theirs = functional.scaled_dot_product_attention(q_QD[None], k_LD[None], v_LD[None], is_causal=True)[0]
    ours, most = flash.in_tiles(q_QD, k_LD, v_LD, tile)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert most == 37 * min(tile, 37)


def test_a_score_by_distance_is_a_sum_of_cosines() -> None:
    """Of two vectors of ones each pair of entries has 2 cos(distance x frequency)."""
    table = RotaryTable(Rope(8, 10000.0))
    ones = torch.ones(8)
    for at, distance in ((9, 0), (9, 4), (50, 49)):
        wanted = sum(2 * math.cos(distance * 10000.0 ** (-2 * n / 8)) for n in range(4)) / math.sqrt(8)
        assert distance_lab.score(table, ones, ones, at, distance) == pytest.approx(wanted, abs=1e-4)


def test_queries_and_keys_are_those_that_the_layer_is_given(tales: InstrumentedModel) -> None:
    """Turned, they give the shares of attention."""
    ids = tales.ids("The dog saw a ball")
    q_THD, k_THD = tales.unrotated(ids)[0]
    angles = tales.model.get_submodule("model.rotary")(torch.arange(len(ids)))
    scores_HTT = torch.einsum("qhd,khd->hqk", rotate(q_THD, angles), rotate(k_THD, angles)) / math.sqrt(32)
    hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    assert torch.allclose(scores_HTT.masked_fill(hidden, float("-inf")).softmax(-1), tales.weights(ids)[0], atol=1e-5)


class Spelling:
    """A tokenizer that has a number for each of some words, two for any other, and a space of its own at the beginning
    of a text, as SentencePiece has."""

    def __init__(self, *words: str) -> None:
        self.words = ("a", *words)

    def encode(self, text: str, **_: bool) -> list[int]:
        ids = [[self.words.index(word)] if word in self.words else [90, 91] for word in text.split()]
        return [99] * text.startswith(" ") + [token for one in ids for token in one]

    def printable_token(self, token: int) -> str:
        return self.words[token]


ROYAL = [[0.0, 0, -2], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1.5, 1, 0], [-3, -3, 0]]
"""Rows of: a, king, man, woman, queen, prince, chair."""


def royal(*gendered: str) -> WordVectors:
    """A table in which king - man + woman is the queen, shifted, since what all rows share says nothing; the words of
    man and woman may be others."""
    spelling = Spelling("king", *gendered, "queen", "prince", "chair")
    return WordVectors(torch.tensor(ROYAL) + 10, spelling)  # type: ignore[arg-type]


def test_the_queen_is_found_where_she_was_put() -> None:
    """Alone, king is nearest to prince. A queen who is a prince is not found."""
    outcome = queen.run(royal("man", "woman"))
    assert outcome.as_expected
    assert outcome.data["sums"]["king - man + woman"][0] == ("queen", pytest.approx(1.0))
    assert outcome.data["lead"]["king"] < 0 < outcome.data["lead"]["sum"]
    words = royal("man", "woman")
    words.rows[4] = words.rows[5]
    assert not queen.run(words).as_expected


def test_another_pair_stands_in_for_man_and_woman() -> None:
    """Where one of them is several tokens; without any pair, a line says so."""
    outcome = queen.run(royal("he", "she"))
    assert outcome.as_expected
    assert outcome.data["pair"] == ("he", "she")
    with pytest.raises(ValueError, match=r"in each of the pairs man and woman, he and she, .* a larger vocabulary"):
        queen.run(royal("man", "she"))


def test_the_mixture_has_a_queen() -> None:
    """The built-in model that has read plays: king alone is nearest to prince there, the sum to queen."""
    outcome = queen.experiment("mixture").run()
    assert outcome.as_expected
    assert next(iter(outcome.data["sums"].values()))[0][0] == "queen"


def test_a_vocabulary_without_a_queen_says_so() -> None:
    ended = CliRunner().invoke(build_app(("lab",)), ["lab", "directions", "--model", "tales"])
    assert (
        str(ended.exception)
        == "'queen' is 2 tokens in this vocabulary, so it has no single embedding; use another word"
    )


# -- the model looked into --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tales() -> InstrumentedModel:
    return InstrumentedModel()


def test_states_are_those_that_the_head_reads(tales: InstrumentedModel) -> None:
    """The first is the table's rows; the last, normed, gives the logits."""
    ids = tales.ids(STORY)
    states = tales.states(ids)
    assert len(states) == 1 + len(tales.blocks)
    assert torch.equal(states[0], tales.table[ids])
    norm = tales.model.get_submodule("model.norm")
    normed = states[-1] * (states[-1].square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight
    assert torch.allclose(normed @ tales.table.T, tales.logits(ids), atol=1e-3)


def test_shares_of_attention_give_what_the_layer_gives(tales: InstrumentedModel) -> None:
    """By the values of the first layer, read from the call itself."""
    ids, taken = tales.ids("The dog saw a ball"), {}
    op = tales.model.get_submodule("model.layers.0.self_attn.attend")
    handle = op.register_forward_hook(lambda _, inputs, output: taken.update(v=inputs[2], out=output))
    weights_HTT = tales.weights(ids)[0]
    handle.remove()
    v_HTW = taken["v"].repeat_interleave(2, 1).transpose(0, 1)
    assert torch.allclose((weights_HTT @ v_HTW).transpose(0, 1).flatten(1), taken["out"], atol=1e-5)


def test_what_is_taken_out_comes_back(tales: InstrumentedModel) -> None:
    ids = tales.ids(STORY)
    before = tales.loss(ids)
    with tales.activated(torch.relu):
        assert tales.loss(ids) != before
    with tales.without_feed_forward():
        assert tales.loss(ids) > before + 1
    assert tales.loss(ids, ExperimentContext(len(ids), without=(1, 2, 3))) > before + 0.5
    assert tales.loss(ids) == before
    assert isinstance(tales.blocks[0], Block)
