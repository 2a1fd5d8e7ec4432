"""Documents: what plan, trace, calibrate, show and the lab say, whoever is to show it.

`elements.py` has a document's parts, `charts.py` and `roofline_chart.py` its figures over `axes.py`, all as data;
`humanize.py` writes numbers as people read them. `terminal_renderer.py` prints a document, with the drawings of
`character_figures.py`; `svg.py` makes a picture of a figure (`svg_charts.py`, `svg_roofline.py`, of `svg_parts.py`);
`html.py` makes one file of a document. This room imports no other, and every room may import it.
"""
