"""A document: a title, and what stands under it, part by part. Nothing here knows how it will be shown."""

from dataclasses import dataclass
from typing import Literal

from ridgeline.util.document.charts import Bars, Chart, Spans, StackedBars
from ridgeline.util.document.heat_map import HeatMap
from ridgeline.util.document.panels import Panels
from ridgeline.util.document.roofline_chart import Roofline

Tone = Literal["", "strong", "dim", "good", "warning", "error", "memory", "compute", "communication"]
"""What a reader should take a text for; colours and weights are the renderer's."""

UNEVEN = (0.02, 0.05, 0.15, 0.4)
"""Steps of a heat map whose shares are mostly small, as attention's are."""

EVEN = (0.2, 0.4, 0.6, 0.8)
"""Steps of a heat map whose shares may be anything."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """Sentences or short paragraphs, each of which stands for itself."""

    items: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, and what is to be said of each."""

    rows: tuple[tuple[str, str], ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, whether it holds words (else numbers), and the group of columns it belongs to.

    Columns of no group name the rows, for all groups. whole: words that are never broken or cut, such as names that
    somebody is to type.
    """

    head: str
    words: bool = False
    group: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text in a tone of its own."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """A bar over the part of its column from one share (0 to 1) of the width to another."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Heat:
    """Shares between 0 and 1 side by side, as shades. steps: from which shares on a shade is darker."""

    shares: tuple[float, ...]
    steps: tuple[float, ...] = EVEN


AnyCell = str | Cell | Strip | Heat


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row; it may have fewer cells than there are columns."""

    cells: tuple[AnyCell, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """Rows under columns. A string among the rows is a heading for those after it, an empty one a gap.

    notes: what to know in order to read it. dense: many narrow columns, which may stand close together.
    """

    columns: tuple[Column, ...]
    rows: tuple[TableRow | str, ...]
    notes: tuple[str, ...] = ()
    dense: bool = False


Figure = Bars | StackedBars | Chart | Spans | Panels | HeatMap | Roofline
DocumentBlock = Heading | Paragraph | Bullets | Facts | DocumentTable | Figure


@dataclass(frozen=True, slots=True)
class Document:
    """A title, a line that leads in (a question, or how far to trust what follows), and the blocks.

    Answers come first, then what they rest on.
    """

    title: str
    blocks: tuple[DocumentBlock, ...]
    lead: str = ""

    @property
    def figures(self) -> list[Figure]:
        """The drawings in it."""
        return [block for block in self.blocks if isinstance(block, Figure)]


def columns(*heads: str, words: tuple[int, ...] = (0,)) -> tuple[Column, ...]:
    """Columns without groups; those at the places in `words` hold words, the others numbers."""
    return tuple(Column(head, index in words) for index, head in enumerate(heads))
