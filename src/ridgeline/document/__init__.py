"""Documents: what plan, trace, calibrate, show and the lab say, whoever is to show it.

`page.py` has a document's parts and `figures.py` its drawings, both as data; `numbers.py` writes figures as people read
them. `terminal.py` prints a document, with the drawings of `characters.py`; `svg.py` makes a picture file of a figure.
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
