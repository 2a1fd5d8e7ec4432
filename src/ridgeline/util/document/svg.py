"""The conversion of figures to SVG, written by hand: it needs no library, and every browser opens the result."""

from ridgeline.util.document import svg_charts, svg_panels, svg_roofline
from ridgeline.util.document.charts import Bars, Chart, Spans, StackedBars
from ridgeline.util.document.elements import Figure
from ridgeline.util.document.heat_map import HeatMap
from ridgeline.util.document.panels import Panels
from ridgeline.util.document.svg_parts import WIDTH, document


def svg(figure: Figure) -> str:
    """Return a figure as an SVG document."""
    if isinstance(figure, Bars):
        return document(WIDTH, svg_charts.bars_height(figure), figure.title, svg_charts.bars(figure))
    if isinstance(figure, StackedBars):
        return document(WIDTH, svg_charts.stacks_height(figure), figure.title, svg_charts.stacks(figure))
    if isinstance(figure, Chart):
        return document(WIDTH, svg_charts.chart_height(figure), figure.title, svg_charts.chart(figure))
    if isinstance(figure, Spans):
        return document(WIDTH, svg_charts.spans_height(figure), figure.title, svg_charts.spans(figure))
    if isinstance(figure, Panels):
        return document(WIDTH, svg_panels.panels_height(figure), figure.title, svg_panels.panels(figure))
    if isinstance(figure, HeatMap):
        return document(WIDTH, svg_panels.grid_height(figure), figure.title, svg_panels.grid(figure))
    return document(svg_roofline.WIDTH, svg_roofline.HEIGHT, figure.title, svg_roofline.roofline(figure))
