"""The conversion of a document to one HTML file without scripts or external files, for light and dark backgrounds."""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from ridgeline.util.document.elements import (
    AnyCell,
    Bullets,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Heat,
    Paragraph,
    Strip,
    TableRow,
)
from ridgeline.util.document.printable import printable
from ridgeline.util.document.svg import svg
from ridgeline.util.document.svg_parts import DARK

_LIGHT = {"ground": "#ffffff", "ink": "#222222", "dim": "#666666", "rule": "#dddddd"}
_DARK = {"ground": "#16191d", "ink": "#e8e8e8", "dim": "#a8a8a8", "rule": "#33383e"}
_TONES = {
    "good": ("#2e7d32", "#81c784"), "warning": ("#9a5b00", "#ffb74d"), "error": ("#b00020", "#ff8a80"),
    "memory": ("#00718f", "#4dd0e1"), "compute": ("#a63d6f", "#e08ab4"), "communication": ("#9a5b00", "#ffb74d"),
}  # fmt: skip
_RULES = """
body { margin: 0 auto; max-width: 960px; padding: 24px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 Helvetica, Arial, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
.lead, .dim, figcaption, .note, th { color: var(--dim); } .strong { font-weight: bold; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule); }
th { font-weight: normal; } .words { text-align: left; } .group { text-align: center; }
.part { text-align: left; font-style: italic; color: var(--dim); padding-top: 10px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; } dt { font-weight: bold; } dd { margin: 0; }
figure { margin: 16px 0; } svg { max-width: 100%; height: auto; }
.note { font-size: 13px; margin: 6px 0; }
@media print { body { max-width: none; padding: 0; font-size: 11px; } table, .note { font-size: 10px; }
  .scroll { overflow: visible; } th, td { padding-right: 8px; } h2 { break-after: avoid; }
  tr, figure { break-inside: avoid; } }
"""
_CODE = re.compile("`([^`]+)`")


def html(document: Document) -> str:
    """Return a document as an HTML file, with all texts escaped and a policy that permits only its own style."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(document.title)}</title>\n<style>{style}</style>\n</head>\n<body>",
        f"<h1>{_text(document.title)}</h1>",
        f'<p class="lead">{_prose(document.lead)}</p>' if document.lead else "",
        *(part for block in document.blocks for part in _block(block)),
        "</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _style() -> str:
    """Return the style sheet: colours by name for the page, and replacements for figures on a dark background."""
    light = "".join(f"--{name}: {colour}; " for name, colour in _LIGHT.items())
    dark = "".join(f"--{name}: {colour}; " for name, colour in _DARK.items())
    tones = "".join(f".{tone} {{ color: {one}; }} " for tone, (one, _) in _TONES.items())
    dark_tones = "".join(f".{tone} {{ color: {other}; }} " for tone, (_, other) in _TONES.items())
    images = "".join(
        f'svg [fill="{one}"] {{ fill: {other}; }} svg [stroke="{one}"] {{ stroke: {other}; }} '
        for one, other in DARK.items()
    )
    return (
        f":root {{ {light}}} {tones}{_RULES}"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} {dark_tones}{images}}}\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _lines(text: str) -> str:
    """Return escaped text for a table, with its line breaks."""
    return _text(text).replace("\n", "<br/>")


def _prose(text: str) -> str:
    """Return escaped text with the parts between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", _text(text))


def _block(block: DocumentBlock) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f"<h2>{_text(block.text)}</h2>"
    elif isinstance(block, Paragraph):
        yield f"<p{_class(block.tone)}>{_prose(block.text)}</p>"
    elif isinstance(block, Bullets):
        yield f"<ul{_class(block.tone)}>{''.join(f'<li>{_prose(item)}</li>' for item in block.items)}</ul>"
    elif isinstance(block, Facts):
        rows = "".join(f"<dt>{_text(name)}</dt><dd>{_prose(text)}</dd>" for name, text in block.rows)
        yield f"<dl{_class(block.tone)}>{rows}</dl>"
    elif isinstance(block, DocumentTable):
        yield from _table(block)
    else:
        yield f"<figure>{svg(block)}</figure>"


def _class(*names: str) -> str:
    given = " ".join(name for name in names if name)
    return f' class="{given}"' if given else ""


# -- tables -----------------------------------------------------------------------------------------------------------


def _table(table: DocumentTable) -> Iterator[str]:
    yield '<div class="scroll"><table>'
    yield f"<thead>{''.join(_heads(table))}</thead>\n<tbody>"
    for row in table.rows:
        if isinstance(row, str):
            yield f'<tr><td class="part" colspan="{len(table.columns)}">{_text(row)}</td></tr>'
        else:
            yield _row(row, table)
    yield "</tbody></table></div>"
    yield from (f'<p class="note">{_prose(note)}</p>' for note in table.notes)


def _heads(table: DocumentTable) -> Iterator[str]:
    """Yield the heading rows of a table: the titles of groups, then those of columns, if there are any."""
    if any(column.group for column in table.columns):
        runs = [(group, len(list(run))) for group, run in groupby(table.columns, key=lambda column: column.group)]
        groups = (f'<th class="group" colspan="{wide}">{_text(group)}</th>' for group, wide in runs)
        yield f"<tr>{''.join(groups)}</tr>"
    if any(column.head for column in table.columns):
        heads = (f"<th{_class('words' if c.words else '')}>{_lines(c.head)}</th>" for c in table.columns)
        yield f"<tr>{''.join(heads)}</tr>"


def _row(row: TableRow, table: DocumentTable) -> str:
    cells: Sequence[AnyCell] = [*row.cells, *[""] * (len(table.columns) - len(row.cells))]
    written = (_cell(cell, column.words) for cell, column in zip(cells, table.columns, strict=True))
    return f"<tr{_class(row.tone)}>{''.join(written)}</tr>"


def _cell(cell: AnyCell, words: bool) -> str:
    if isinstance(cell, Strip):
        bars = [(cell.start, max(0.005, cell.end - cell.start), 1.0)]
    elif isinstance(cell, Heat):
        wide = 1 / max(1, len(cell.shares))
        bars = [(wide * index, wide, share) for index, share in enumerate(cell.shares)]
    else:
        text, tone = (cell, "") if isinstance(cell, str) else (cell.text, cell.tone)
        return f"<td{_class('words' if words else '', tone)}>{_lines(text)}</td>"
    return f'<td class="words">{_strips(bars)}</td>'


def _strips(bars: Sequence[tuple[float, float, float]]) -> str:
    """Return an SVG with bars of (start, width, opacity), as shares."""
    drawn = "".join(
        f'<rect x="{200 * start:.1f}" y="0" width="{200 * wide:.2f}" height="12" fill="#1f6fb4" '
        f'fill-opacity="{share:.2f}"/>'
        for start, wide, share in bars
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 12" width="200" height="12">{drawn}</svg>'
