"""The parts of every SVG figure: the page, lines, text, and colours for light and dark backgrounds."""

import re
from collections.abc import Iterable
from html import escape

WIDTH = 900
SERIES = ("#d1495b", "#1f6fb4", "#5b8c2a", "#7a4fb5")
DARK = {
    "#ffffff": "#16191d", "#222222": "#e8e8e8", "#333333": "#d8d8d8", "#444444": "#c8c8c8", "#666666": "#a8a8a8",
    "#999": "#777777", "#b8b8b8": "#5c5c5c", "#e0e0e0": "#33383e", "#e6e6e6": "#33383e", "#d1495b": "#f0808d",
    "#1f6fb4": "#6db3ee", "#5b8c2a": "#9ccc65", "#7a4fb5": "#b79be6", "#2b5f80": "#8fc1e0", "#a63d6f": "#e08ab4",
}  # fmt: skip
"""The replacement of each colour on a dark background; an SVG file on its own is always white."""

_FONT = "Helvetica, Arial, sans-serif"


def document(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return a complete SVG document on a white background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def on_dark(svg: str) -> str:
    """Return an SVG figure recoloured for a dark background."""
    return re.sub(r'(fill|stroke)="(#\w+)"', lambda found: f'{found[1]}="{DARK.get(found[2], found[2])}"', svg)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0, dash: str = "") -> str:
    """Return an SVG line between two points; `dash` gives the lengths of strokes and gaps, "" means solid."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashes}/>'


def words(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "normal",
    colour: str = "#222222",
) -> str:
    """Return an SVG text whose baseline is at y, and whose start, middle or end (`anchor`) is at x."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{_FONT}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
    )
