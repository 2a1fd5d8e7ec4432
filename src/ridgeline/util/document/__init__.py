"""Documents: the output of plan, trace, calibrate, show and other commands as data, independent of how it is shown.

`elements.py` defines the parts of a document. `charts.py`, `heat_map.py`, `panels.py` and `roofline_chart.py` define
its figures, with axes from `axes.py`. `humanize.py` formats numbers, and `printable.py` escapes untrusted text.
`terminal_renderer.py` prints a document, with figures drawn by `character_figures.py`. `svg.py` converts a figure to
SVG (`svg_charts.py`, `svg_panels.py`, `svg_roofline.py`, built on `svg_parts.py`). `html.py` converts a document to one
HTML file. This package imports no other package of Ridgeline, and every package may import it.
"""
