"""The story grammar and the measures `tales` is trained and judged with; pairs, batches and export of `translate`."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM
from zoo.tales.cast import BOYS, GIRLS
from zoo.tales.grammar import slots, tell_many, tell_plot
from zoo.tales.plots import PLOTS, Plot
from zoo.tales.quality import Kept, distinct_ratio, kept
from zoo.tales.rename import rename
from zoo.tales.train import learning_rate
from zoo.training import Clock
from zoo.translate.batches import batched, pad
from zoo.translate.export import export
from zoo.translate.model import T5, Shape, state_of
from zoo.translate.pairs import HELD_OUT, Pair, divide, sentence_key, tidy
from zoo.translate.tokenizer import EOS, PAD, train_tokenizer
from zoo.translate.train import learning_rate as translate_rate


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.body[:40].strip())
def test_a_plot_keeps_its_hero_and_its_thing_to_the_end(plot: Plot) -> None:
    for seed in range(40):
        random = Random(seed)
        values = slots(random, plot)
        story = tell_plot(plot, values, random)
        hero, thing = values["h"][0], values["obj"][0]
        assert hero.lower() in story.split("\n")[-1].lower(), story
        assert thing in " ".join(story.split("\n")[-2:]), story


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.body[:40].strip())
def test_a_story_is_clean_english_on_its_face(plot: Plot) -> None:
    for seed in range(40):
        random = Random(seed)
        story = tell_plot(plot, slots(random, plot), random)
        assert not re.search(r"[\[\]{}|]|  | [.,!?]|\ba [aeiou]|[.?!]\"\.|\n\n", story), story
        assert story.count('"') % 2 == 0, story
        assert all(line[0].isupper() or line[0] in '"\u201c' for line in story.split("\n")), story


def test_stories_repeat_for_a_seed_and_differ_otherwise() -> None:
    first = tell_many(100, seed=1)
    assert first == tell_many(100, seed=1)
    both = first + tell_many(100, seed=2)
    assert len(set(both)) == 200
    assert distinct_ratio(both, 4) > 0.6


def test_renaming_changes_a_name_everywhere_and_nothing_else() -> None:
    story = "Lily met Tom. Lily's ball was red. Will Tom come? asked Lily."
    told = rename(story, Random(3), share=1.0)
    girl, boy = re.match(r"(\w+) met (\w+)\.", told).groups()  # type: ignore[union-attr]
    assert girl in set(GIRLS) - {"Lily"}
    assert boy in set(BOYS) - {"Tom"}
    assert told == story.replace("Lily", girl).replace("Tom", boy)
    assert rename(story, Random(3), share=0.0) == story


def test_what_a_story_keeps() -> None:
    whole = "She flew it. It got lost. Ben found the kite. Mia was glad. Mia took the kite home."
    assert kept(whole, "Mia", "kite", ended=True) == Kept(hero=True, thing=True, end=True)
    assert kept(whole, "Mia", "kite", ended=False) == Kept(hero=True, thing=True, end=False)
    swapped = "Tom saw a ball. He liked the ball. Mia and Tom played. The dog and Tom ran. He was happy with Tom."
    assert kept(swapped, "Mia", "kite", ended=True) == Kept(hero=False, thing=False, end=False)


def test_only_time_on_the_cpu_counts_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("zoo.training.time.process_time", lambda: now[0])
    clock = Clock(seconds=5.0, threads=2)
    now[0] += 2.0
    assert clock.tick() == 6.0
    assert clock.tick() == 6.0
    now[0] += 1.0
    assert clock.tick() == 6.5
    clock.end()
    assert clock.ending


def test_the_rate_rises_and_ends_at_zero() -> None:
    assert learning_rate(0.0) == 0.0
    assert learning_rate(0.02) == 1.0
    assert learning_rate(1.0) == 0.0


# -- translate --------------------------------------------------------------------------------------------------------


def test_no_english_sentence_is_in_two_parts() -> None:
    """However it is written; the sentence for people to try is held out."""
    pairs = [Pair(f"Sentence {n // 3}{'.' * (n % 2)}", f"Phrase {n}") for n in range(300)] + [Pair(HELD_OUT, "Oui.")]
    split = divide(pairs, test=50, validation=20)
    assert (len(split.test), len(split.validation)) == (50, 20)
    keys = [{sentence_key(pair.english) for pair in part} for part in (split.training, split.validation, split.test)]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]
    assert Pair(HELD_OUT, "Oui.") in split.test
    assert len(split.training) >= 300 - 50 - 20 - 6
    assert divide(pairs, test=50, validation=20) == split


def test_a_pair_loses_its_stop_on_both_sides_or_on_none() -> None:
    assert Pair("I see.", "Je vois.").without_stop() == Pair("I see", "Je vois")
    for pair in (Pair("I see!", "Je vois."), Pair("I see...", "Je vois."), Pair("Why?", "Pourquoi ?")):
        assert pair.without_stop() == pair
    assert tidy("l\u2019eau\u202f!\u00a0 ") == "l'eau !"


def test_batches_hold_every_row_once_and_no_more_than_they_may() -> None:
    random = Random(1)
    rows = sorted(([2] * random.randint(1, 9) + [EOS], [n + 5] * random.randint(1, 9) + [EOS]) for n in range(60))
    batches = list(batched(rows, 70))
    assert all(batch.source.numel() + batch.target.numel() <= 70 for batch in batches)
    both = [pair for batch in batches for pair in zip(batch.source, batch.target, strict=True)]
    told = [(source[source != PAD].tolist(), target[target != PAD].tolist()) for source, target in both]
    assert told == rows
    assert pad([[1], [2, 3]]).tolist() == [[1, PAD], [2, 3]]


def test_what_is_exported_is_what_was_trained(tmp_path: Path) -> None:
    """Transformers gives the same loss from the folder, the factor of the scores and padding included."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["the cat", "le chat"] * 3, 300)
    shape = Shape(vocab_size=300, d_model=24, d_kv=6, num_heads=4, d_ff=20)
    model = T5(shape).eval().requires_grad_(False)
    for weight in model.parameters():  # as bf16 has them, and biases that are not zero
        weight.data = (weight.data + 0.1 * torch.randn(weight.shape)).bfloat16().float()
    for name, weight in model.named_parameters():  # whose product with the factor bf16 has too
        if name.endswith("Attention.q.weight"):
            weight.data = (weight.data * shape.d_kv**-0.5).bfloat16().float() * shape.d_kv**0.5
    export(model.state_dict(), shape, tokenizer, tmp_path / "out")
    again = state_of(load_file(tmp_path / "out" / "model.safetensors"), shape)
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    source, target = pad([[5, 9, 7, EOS], [8, EOS]]), pad([[4, EOS], [6, 6, 2, EOS]])
    labels = target.masked_fill(target == PAD, -100)
    loss = theirs(input_ids=source, attention_mask=(source != PAD).long(), labels=labels).loss
    assert model(source, target).item() / int((target != PAD).sum()) == pytest.approx(float(loss), rel=1e-5)
    assert tokenizer.encode("the cat").ids[-1] == EOS


def test_the_rate_of_translate_rises_and_ends_low() -> None:
    assert translate_rate(0.0) == 0.0
    assert translate_rate(0.02) == 1.0
    assert translate_rate(1.0) == pytest.approx(0.01)
