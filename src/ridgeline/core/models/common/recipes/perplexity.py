"""The perplexity of a real model in each format that plain weights are quantised to, as it was measured
(benchmarks/perplexity.py), and the warning for a format that raises it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ridgeline.core.models.common.recipes.recipe import WITH_HEAD
from ridgeline.util.untrusted import read_toml

FILE = Path(__file__).with_name("perplexity.toml")
MOST_RISE = 0.1
"""The largest rise, as a share of the plain model's perplexity, for which there is no warning."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The measured perplexity of one model in each format.

    Attributes:
        model: the model's name.
        text: the tokens of which text.
        date: the day, as ISO 8601 has it.
        plain: the perplexity with weights as they are stored.
        formats: the perplexity by the name of the format, with `+head` too.
        errors: the standard error of each rise, as a share.
    """

    model: str
    text: str
    date: str
    plain: float
    formats: Mapping[str, float]
    errors: Mapping[str, float]

    def rise(self, name: str) -> float:
        """Return the share by which a format raises the perplexity; it is negative if the format lowers it."""
        return self.formats[name] / self.plain - 1


@cache
def measured_perplexity() -> Perplexity:
    """Return the figures that come with the package."""
    return Perplexity(**read_toml(FILE))


def costly_format(name: str) -> str | None:
    """Return a warning if a format raises perplexity by more than MOST_RISE, with the figures and what to use instead.

    None for any other format, and for one that was not measured (an unquantised format).
    """
    figures = measured_perplexity()
    if name not in figures.formats or figures.rise(name) <= MOST_RISE:
        return None
    alike = [other for other in figures.formats if other.endswith(WITH_HEAD) == name.endswith(WITH_HEAD)]
    best = min(alike, key=figures.rise)
    finest = min((other for other in alike if other.startswith("int4")), key=figures.rise)
    milder = "" if finest == name else f" or {finest} ({figures.rise(finest):+.0%})"
    return (
        f"weights in {name} cost quality: perplexity of {figures.model} rose from {figures.plain:.1f} to "
        f"{figures.formats[name]:.1f} ({figures.rise(name):+.0%}, docs/formats.md); use {best} "
        f"({figures.rise(best):+.1%}){milder}"
    )
