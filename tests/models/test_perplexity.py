"""What formats cost in quality: the figures of the documentation are those that the warning reads."""

import re
from pathlib import Path

import pytest

from ridgeline.core.models.common.recipes import WITH_HEAD, quality_warning, runnable_format_names
from ridgeline.core.models.common.recipes.perplexity import MOST_RISE, measured_perplexity
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
NAMES = [*runnable_format_names(), *(f"{name}{WITH_HEAD}" for name in runnable_format_names())]
_ROW = re.compile(
    r"\| `?(?P<name>[\w+-]+)`? \| (?P<value>[\d.]+) \| (?:(?P<rise>[+-][\d.]+)% \+- (?P<error>[\d.]+)%)? ?\|"
)


def test_the_page_has_the_figures_that_the_warning_reads() -> None:
    """Every format, its perplexity, its rise and the error of that; the model, the text and the day."""
    figures = measured_perplexity()
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- table: ")[2].partition("<!-- end of the table -->")[0]
    assert f"{figures.model}, {figures.text}, {figures.date}:" in shown
    rows = {match["name"]: match for match in _ROW.finditer(shown)}
    assert list(rows) == ["plain", *NAMES] == ["plain", *figures.formats]
    assert rows["plain"]["value"] == f"{figures.plain:.2f}"
    for name in NAMES:
        row = rows[name]
        assert row["value"] == f"{figures.formats[name]:.2f}"
        assert (row["rise"], row["error"]) == (f"{100 * figures.rise(name):+.1f}", f"{100 * figures.errors[name]:.1f}")


@pytest.mark.parametrize("name", NAMES)
def test_a_format_that_costs_more_than_a_tenth_is_named(name: str) -> None:
    """With both figures, and a format that costs less than a tenth."""
    figures, said = measured_perplexity(), quality_warning(name)
    assert (said is not None) == (figures.formats[name] > (1 + MOST_RISE) * figures.plain)
    if said is None:
        return
    assert f"weights in {name} reduce quality" in said
    assert f"{figures.plain:.1f} to {figures.formats[name]:.1f}" in said
    advised = re.findall(r"(?:use|or) ([\w+-]+) \(", said)
    assert quality_warning(advised[0]) is None
    assert all(figures.rise(other) < figures.rise(name) for other in advised)
    assert "\n" not in said


def test_full_formats_cost_nothing() -> None:
    assert quality_warning("bf16") is None


@pytest.mark.parametrize(("weights", "warned"), [("int4", True), ("int8", False), (None, False)])
def test_the_engine_says_it(weights: str | None, warned: bool) -> None:
    """To whoever loads a model, and to a server's parent process."""
    loaded = load_engine("tales", EngineSettings(weights=weights, kv_bytes=1e6))
    assert loaded.info().warnings == loaded.warnings
    assert (loaded.warnings == (quality_warning(weights or ""),)) == warned
    assert bool(loaded.warnings) == warned
