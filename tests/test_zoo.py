"""The story grammar and the measures `tales` is trained and judged with."""

from __future__ import annotations

import re
from random import Random

import pytest
from zoo.tales.cast import BOYS, GIRLS
from zoo.tales.grammar import slots, tell_many, tell_plot
from zoo.tales.plots import PLOTS, Plot
from zoo.tales.quality import Kept, distinct_ratio, kept
from zoo.tales.rename import rename
from zoo.tales.train import Clock, learning_rate


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
    monkeypatch.setattr("zoo.tales.train.time.process_time", lambda: now[0])
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
