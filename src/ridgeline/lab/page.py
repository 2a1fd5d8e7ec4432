"""Page: what an experiment gives back. Words, a table, a picture, and the same as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.trace.picture import Picture as Roofline


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown. words: the columns that hold words, the others being numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Bar:
    """A length beside a label; note: what to say of it. dim: whether it is one that does not count."""

    label: str
    value: float
    note: str = ""
    dim: bool = False

    @property
    def text(self) -> str:
        """What stands behind it: `5.18, 21 users`."""
        return f"{self.value:.3g}" + (f", {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars to compare; unit: what their values are."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves through points (x, y), by name, on logarithmic axes; all values above 0."""

    title: str
    x: str
    y: str
    curves: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Page:
    """One experiment. asks: the question. finds: what came out, sentence by sentence. code: the file to read."""

    title: str
    asks: str
    tables: tuple[Table, ...]
    picture: Bars | Lines | Roofline
    finds: tuple[str, ...]
    code: str
    data: Mapping[str, Any] = field(default_factory=dict)
