"""Panels: small pictures side by side, each of cells in lines, as data to be drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Lines = tuple[tuple[float, ...], ...]
"""A number from 0 to 1 for each cell, line by line."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture. caption: what stands under it. light: whether large numbers are light, as in a photograph; else they
    are dark, as in a heat map.
    """

    caption: str
    lines: Lines
    light: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """Panels of one sort, what they are, and what to know in order to read them."""

    title: str
    panels: tuple[Panel, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Panels:
    """Bands below each other."""

    title: str
    bands: tuple[Band, ...]


def coarser(lines: Lines, most: int) -> Lines:
    """The same in at most so many lines and columns, as wide for its height, each cell the mean of those that it stands
    for.
    """
    height, width = len(lines), len(lines[0])
    scale = min(1.0, most / max(height, width))
    columns = _means(tuple(zip(*lines, strict=True)), max(1, round(scale * width)))
    return _means(tuple(zip(*columns, strict=True)), max(1, round(scale * height)))


def _means(lines: Sequence[Sequence[float]], most: int) -> Lines:
    """At most so many lines."""
    count = min(most, len(lines))
    edges = [round(index * len(lines) / count) for index in range(count + 1)]
    return tuple(
        tuple(sum(column) / len(column) for column in zip(*lines[low:high], strict=True))
        for low, high in pairwise(edges)
    )
