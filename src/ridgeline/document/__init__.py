"""Documents: what plan, trace, calibrate, show and the lab say, whoever is to show it.

`page.py` has a document's parts, `figures.py` and `charts.py` its drawings, all as data; `numbers.py` writes figures as
people read them. `terminal.py` prints a document, with the drawings of `characters.py`; `svg.py` makes a picture of a
figure, with `svg_charts.py` and `svg_parts.py`; `html.py` makes one file of a whole document.
This room imports no other, and every room may import it.
"""

from ridgeline.document.page import (
    Bullets,
    Cell,
    Column,
    Document,
    Facts,
    Heading,
    Heat,
    Paragraph,
    Row,
    Strip,
    Table,
    Tone,
)

__all__ = [
    "Bullets",
    "Cell",
    "Column",
    "Document",
    "Facts",
    "Heading",
    "Heat",
    "Paragraph",
    "Row",
    "Strip",
    "Table",
    "Tone",
]
