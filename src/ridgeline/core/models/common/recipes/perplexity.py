"""The measured perplexity of a real model in each weight format, and the warning about a format that raises it.

The formats are those to which plain weights can be quantised. benchmarks/perplexity.py measures them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ridgeline.core.models.common.recipes.recipe import WITH_HEAD
from ridgeline.util.untrusted import read_toml

FILE = Path(__file__).with_name("perplexity.toml")
"""The path of the file of measured perplexities."""
MOST_RISE = 0.1
"""The largest rise without a warning, as a share of the plain model's perplexity."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The measured perplexity of one model in each weight format."""

    model: str
    """The name of the model whose perplexity was measured."""
    text: str
    """The name of the text whose tokens a model predicted to measure its perplexity."""
    date: str
    """The date of a perplexity measurement in ISO 8601."""
    plain: float
    """The perplexity of a model with unquantised weights."""
    formats: Mapping[str, float]
    """The perplexity of a model in each weight format, by name, including names with `+head`."""
    errors: Mapping[str, float]
    """The standard error of each format's rise in perplexity, as a share."""

    def rise(self, name: str) -> float:
        """Return the share by which a format raises the perplexity; negative if it lowers it."""
        return self.formats[name] / self.plain - 1


@cache
def measured_perplexity() -> Perplexity:
    """Return the measured perplexities that are shipped with the package."""
    return Perplexity(**read_toml(FILE))


def quality_warning(name: str) -> str | None:
    """Return a warning if a weight format raises perplexity by more than MOST_RISE, with numbers and alternatives.

    Return None for any other format, and for one that was not measured (an unquantised format).
    """
    figures = measured_perplexity()
    if name not in figures.formats or figures.rise(name) <= MOST_RISE:
        return None
    alike = [other for other in figures.formats if other.endswith(WITH_HEAD) == name.endswith(WITH_HEAD)]
    best = min(alike, key=figures.rise)
    finest = min((other for other in alike if other.startswith("int4")), key=figures.rise)
    milder = "" if finest == name else f" or {finest} ({figures.rise(finest):+.0%})"
    return (
        f"weights in {name} reduce quality: the perplexity of {figures.model} rose from {figures.plain:.1f} to "
        f"{figures.formats[name]:.1f} ({figures.rise(name):+.0%}, docs/formats.md); use {best} "
        f"({figures.rise(best):+.1%}){milder}"
    )
