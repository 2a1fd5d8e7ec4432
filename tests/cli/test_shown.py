"""What the pages show of `ridgeline plan` is what it says: `python benchmarks/shown.py` makes them again."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.core.checkpoint.catalogue import model_names, pipeline_names
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement_report import statements
from ridgeline.price.devices import catalogue_devices

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shown() -> Iterator[Any]:
    """The program that makes the pages."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("shown")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("page", ["README.md", "docs/plan.md", "docs/choose.md"])
def test_a_page_shows_what_its_commands_say(page: str, shown: Any) -> None:
    path = ROOT / page
    assert path in shown.PAGES
    text = path.read_text(encoding="utf-8")
    assert shown.commands_in(text)
    assert shown.again(text) == text, "run python benchmarks/shown.py, and read what has changed"


def test_the_pages_count_what_there_is() -> None:
    """Models, pipelines and devices of `plan --list`, statements of `lab numbers`."""
    plan = " ".join((ROOT / "docs" / "plan.md").read_text(encoding="utf-8").split())
    models, pipelines, known = len(model_names()), len(pipeline_names()), len(catalogue_devices())
    assert f"({models} models and {pipelines} image and video pipelines)" in plan
    assert f"The device is one of {known} devices" in plan
    said = f"{len(statements(CostCalculator()))} statements of textbooks"
    assert said in (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")


def test_every_question_is_answered_with_its_trust(shown: Any) -> None:
    """Each under a heading of its own; the last one has a link to what a card of one's own takes."""
    questions = (ROOT / "docs/choose.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(questions) >= 10
    for question in questions[:-1]:
        assert shown.commands_in(question), question.splitlines()[0]
        assert "a fault of Ridgeline's own" not in question
        assert any(said in question for said in ("\ntrust  ", "8 of 10\n", "is not supported")), question
