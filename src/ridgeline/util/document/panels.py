"""The data of panels: small images side by side that consist of cells in lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Lines = tuple[tuple[float, ...], ...]
"""The cells of a panel line by line, each a number from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A small image with a caption; its cells are numbers from 0 to 1, drawn as shades."""

    caption: str
    """The text below the panel."""
    lines: Lines
    light: bool = False
    """Whether large numbers are light, as in a photograph; otherwise they are dark, as in a heat map."""


@dataclass(frozen=True, slots=True)
class Band:
    """A group of panels with a title, and a note on how to read them."""

    title: str
    panels: tuple[Panel, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Panels:
    """A figure of several bands, one below the other."""

    title: str
    bands: tuple[Band, ...]


def coarser(lines: Lines, most: int) -> Lines:
    """Return cells reduced to at most `most` lines and columns, each the mean of the cells that it replaces.

    The aspect ratio stays the same.
    """
    height, width = len(lines), len(lines[0])
    scale = min(1.0, most / max(height, width))
    columns = _means(tuple(zip(*lines, strict=True)), max(1, round(scale * width)))
    return _means(tuple(zip(*columns, strict=True)), max(1, round(scale * height)))


def _means(lines: Sequence[Sequence[float]], most: int) -> Lines:
    """Return at most `most` lines, each the mean of a run of the given ones."""
    count = min(most, len(lines))
    edges = [round(index * len(lines) / count) for index in range(count + 1)]
    return tuple(
        tuple(sum(column) / len(column) for column in zip(*lines[low:high], strict=True))
        for low, high in pairwise(edges)
    )
