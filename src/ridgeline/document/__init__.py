"""Documents: what plan, trace, calibrate, show and the lab say, whoever is to show it.

`page.py` has a document's parts, `charts.py` and `roofline.py` its figures over `axes.py`, all as data; `numbers.py`
writes numbers as people read them. `terminal.py` prints a document, with the drawings of `characters.py`; `svg.py`
makes a picture of a figure (`svg_charts.py`, `svg_roofline.py`, of `svg_parts.py`); `html.py` makes one file of a
document. This room imports no other, and every room may import it.
"""
