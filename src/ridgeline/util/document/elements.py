"""The elements of a document, as data that does not depend on how it is shown."""

from dataclasses import dataclass
from typing import Literal

from ridgeline.util.document.charts import Bars, Chart, Spans, StackedBars
from ridgeline.util.document.heat_map import HeatMap
from ridgeline.util.document.panels import Panels
from ridgeline.util.document.roofline_chart import Roofline

Tone = Literal["", "strong", "dim", "good", "warning", "error", "memory", "compute", "communication"]
"""The meaning of a text for its reader; a renderer chooses colours and weights for it."""

UNEVEN = (0.02, 0.05, 0.15, 0.4)
"""The shares at which a row of shade characters gets darker, for shares that are mostly small (attention weights)."""

EVEN = (0.2, 0.4, 0.6, 0.8)
"""The shares, evenly spaced, at which a row of shade characters gets darker; the default."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of independent sentences or short paragraphs."""

    items: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names, each with a text about it."""

    rows: tuple[tuple[str, str], ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, optionally in a titled group of neighbouring columns.

    The columns without a group name the rows; a table that shows its groups one below the other repeats them.
    """

    head: str
    """The title of the column."""
    words: bool = False
    """Whether the column holds words; otherwise it holds numbers."""
    group: str = ""
    """The title of the group of columns that it belongs to; "" for none."""
    whole: bool = False
    """Whether the words in the column are never broken or cut, for example names that readers will type."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a tone of its own."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """A table cell with a bar, from one share (0 to 1) of the column's width to another."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Heat:
    """A table cell with a row of shades that show shares from 0 to 1."""

    shares: tuple[float, ...]
    steps: tuple[float, ...] = EVEN
    """The shares at which the shade becomes darker."""


AnyCell = str | Cell | Strip | Heat


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table, which may have fewer cells than the table has columns."""

    cells: tuple[AnyCell, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """A table. A string among its rows is a heading for the rows below it; an empty string is a gap."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow | str, ...]
    notes: tuple[str, ...] = ()
    """Remarks on how to read the table."""
    dense: bool = False
    """Whether the table has many narrow columns, which may be close together."""


Figure = Bars | StackedBars | Chart | Spans | Panels | HeatMap | Roofline
DocumentBlock = Heading | Paragraph | Bullets | Facts | DocumentTable | Figure


@dataclass(frozen=True, slots=True)
class Document:
    """A document: a title, an introductory line, and a sequence of blocks.

    The introductory line (`lead`) is for example a question, an assumption, or how far to trust the document. Results
    come first, then the figures behind them.
    """

    title: str
    blocks: tuple[DocumentBlock, ...]
    lead: str = ""

    @property
    def figures(self) -> list[Figure]:
        """The figures among the document's blocks."""
        return [block for block in self.blocks if isinstance(block, Figure)]


def columns(*heads: str, words: tuple[int, ...] = (0,)) -> tuple[Column, ...]:
    """Return columns without groups; those at the positions in `words` hold words, the others numbers."""
    return tuple(Column(head, index in words) for index, head in enumerate(heads))
