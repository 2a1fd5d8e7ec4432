"""The rendering of a roofline chart as SVG."""

import math
from html import escape

from ridgeline.util.document import humanize
from ridgeline.util.document.axes import along, powers, tick
from ridgeline.util.document.roofline_chart import Point, RoofCurve, Roofline
from ridgeline.util.document.svg_parts import line, words

WIDTH, HEIGHT = 980, 620
LEFT, RIGHT, TOP, BOTTOM = 112, 236, 56, 64
_COLOURS = {
    "linear": "#1f6fb4", "head": "#0b9e8e", "attention": "#d1495b", "experts": "#7a4fb5", "norm": "#b8860b",
    "elementwise": "#5b8c2a", "embedding": "#707070", "communication": "#c4642d",
}  # fmt: skip
_CROWDED = 34.0  # vertical pixels between two slopes that leave no room for text
_LETTER = 6.6  # pixels per letter of a slope's name
_RADIUS = 7.0  # pixels, of a point without a share
Box = tuple[float, float, float, float]


def roofline(figure: Roofline) -> list[str]:
    """Return the SVG elements of a roofline chart: title, axes, roofs, points and legend."""
    plot = _Plot(figure)
    title = words(LEFT, 30, figure.title, size=16, weight="bold")
    return [title, *plot.axes(), *plot.roofs(), *plot.points(), *plot.legend()]


class _Plot:
    """The scales of a roofline chart, and the layout of what is drawn.

    `taken` has the boxes with text or marks. `crossed` has the boxes that lines cross, where text is placed only for
    lack of a better place.
    """

    def __init__(self, figure: Roofline) -> None:
        self.figure = figure
        self.across, self.up = figure.x, figure.y
        self.taken: list[Box] = []
        self.crossed: list[Box] = []
        self.steps = figure.steps

    def x(self, intensity: float) -> float:
        """Return the horizontal position of an arithmetic intensity in pixels."""
        return LEFT + along(intensity, self.across) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        """Return the vertical position of a rate (FLOP/s) in pixels."""
        return HEIGHT - BOTTOM - along(rate, self.up) * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> list[str]:
        """Return the SVG elements of the frame, the grid lines of the decades with labels, and the axis titles."""
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = []
        for power in powers(self.across):
            x = self.x(power)
            parts.append(line(x, TOP, x, bottom, "#e6e6e6"))
            parts.append(words(x, bottom + 18, tick(power), anchor="middle"))
        for power in powers(self.up):
            y = self.y(power)
            parts.append(line(LEFT, y, right, y, "#e6e6e6"))
            parts.append(words(LEFT - 8, y + 4, _rate(power), anchor="end"))
        frame = f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="#999"/>'
        name = words((LEFT + right) / 2, HEIGHT - 22, "arithmetic intensity, FLOP per byte", anchor="middle", size=13)
        turned = f'<g transform="rotate(-90 22 {(TOP + bottom) / 2})">'
        side = words(22, (TOP + bottom) / 2, "FLOP per second", anchor="middle", size=13)
        return [*parts, frame, name, turned + side + "</g>"]

    def roofs(self) -> list[str]:
        """Return the SVG elements of the roofs: slopes and ceilings with their names."""
        low, high = self.across
        top, fastest = self.figure.ceilings[0].rate, self.figure.slopes[0].rate
        parts = []
        for index, slope in enumerate(self.figure.slopes):
            start, end = max(low, self.up[0] / slope.rate), top / slope.rate
            begin, stop = (self.x(start), self.y(slope.rate * start)), (self.x(end), self.y(top))
            parts.append(line(*begin, *stop, "#3d7ea6", 1.8))
            self.crossed += _boxes(begin, stop)
            above = self.figure.slopes[index - 1].rate if index else 0.0
            last = index == len(self.figure.slopes) - 1
            crowded = above > 0 and self.y(slope.rate) - self.y(above) < _CROWDED
            beyond = _LETTER * len(_roof_text(self.figure.slopes[index - 1])) + 12 if crowded and not last else 0.0
            parts.append(self._along(slope, begin, stop, beyond, under=crowded and last))
        for ceiling in self.figure.ceilings:
            y = self.y(ceiling.rate)
            parts.append(line(self.x(ceiling.rate / fastest), y, self.x(high), y, "#a63d6f", 1.8))
            label = f"{ceiling.name} {humanize.say(ceiling.rate, 'FLOP/s')}"
            parts.append(words(WIDTH - RIGHT - 6, y - 6, label, anchor="end", colour="#a63d6f"))
            self.taken.append((WIDTH - RIGHT - 6 - 7 * len(label), y - 18, WIDTH - RIGHT, y))
        return parts

    def _along(
        self, slope: RoofCurve, begin: tuple[float, float], stop: tuple[float, float], beyond: float, *, under: bool
    ) -> str:
        """Return the name of a memory along its slope near the slope's lower end.

        Args:
            slope: The memory.
            begin: The lower end of the slope.
            stop: The upper end of the slope.
            beyond: Pixels to move the name upwards, past the name of the neighbouring slope.
            under: Whether the name is below the slope, because another slope is above it.
        """
        label = _roof_text(slope)
        dx, dy = stop[0] - begin[0], begin[1] - stop[1]
        angle = math.degrees(math.atan2(dy, dx))
        foot = 0.06 * math.hypot(dx, dy) + beyond
        x = begin[0] + foot * math.cos(math.radians(angle))
        y = begin[1] - foot * math.sin(math.radians(angle))
        length = _LETTER * len(label)
        for step in range(0, int(length), 12):  # the area that the slanted text covers
            px = x + step * math.cos(math.radians(angle))
            py = y - step * math.sin(math.radians(angle))
            self.taken.append((px - 2, py + 2, px + 20, py + 22) if under else (px - 8, py - 18, px + 14, py + 2))
        written = words(x, y + 15 if under else y - 6, label, colour="#2b5f80")
        return f'<g transform="rotate({-angle:.1f} {x:.1f} {y:.1f})">{written}</g>'

    def points(self) -> list[str]:
        """Return the SVG elements of the points: circles, lines to their roofs, and names that fit.

        The circles of the first step are hollow, those of any other are filled.
        """
        marks, names = [], []
        for point in self.figure.points:
            x, y = self.x(point.intensity), self.y(point.flops_per_second)
            self.taken.append((x - 7, y - 7, x + 7, y + 7))
            roof = self.y(point.roof)
            self.crossed += [(x - 1, min(roof, y), x + 1, max(roof, y)), (x - 5, roof - 3, x + 5, roof + 3)]
        for point in sorted(self.figure.points, key=_weight):
            x, y, colour = self.x(point.intensity), self.y(point.flops_per_second), _colour(point)
            radius = _RADIUS if point.share is None else 5 + 6 * math.sqrt(min(1.0, point.share))
            roof = self.y(point.roof)
            marks.append(line(x, y - radius, x, roof, colour, 0.8, "2 3"))
            marks.append(line(x - 4, roof, x + 4, roof, colour, 1.6))
            fill = "#ffffff" if point.step == self.steps[0] else colour
            marks.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" fill-opacity="0.85" '
                f'stroke="{colour}" stroke-width="2"><title>{escape(_say(point))}</title></circle>'
            )
            names.append(self._name(point, x, y, radius, colour))
        return marks + names

    def _name(self, point: Point, x: float, y: float, radius: float, colour: str) -> str:
        """Return the name of a point where it covers no text, and no line if possible; "" if no place is free."""
        width, gap = 6.4 * len(point.kind), radius + 4
        places = [
            (x + gap, y + 4, "start"), (x - gap, y + 4, "end"), (x, y + gap + 10, "middle"), (x, y - gap, "middle"),
            (x + gap, y + 18, "start"), (x - gap, y + 18, "end"), (x + gap, y - 12, "start"), (x - gap, y - 12, "end"),
        ]  # fmt: skip
        if point.share is None:  # of few points, so a name further below is still clear
            places += [(x, y + gap + 25, "middle"), (x, y + gap + 40, "middle")]
        for avoided in ([*self.taken, *self.crossed], self.taken):
            for px, py, anchor in places:
                left = {"start": px, "end": px - width, "middle": px - width / 2}[anchor]
                box = (left, py - 11, left + width, py + 3)
                inside = box[0] > LEFT and box[2] < WIDTH - RIGHT and box[1] > TOP and box[3] < HEIGHT - BOTTOM
                if inside and not any(_overlap(box, other) for other in avoided):
                    self.taken.append(box)
                    return words(px, py, point.kind, anchor=anchor, colour=colour)
        return ""  # the legend names it

    def legend(self) -> list[str]:
        """Return the legend to the right of the plot, with the share of the roof of every class."""
        x, y = WIDTH - RIGHT + 16, TOP + 12
        parts = []
        for step in self.steps:
            fill = "#ffffff" if step == self.steps[0] else "#444444"
            parts.append(f'<circle cx="{x + 5}" cy="{y - 4}" r="5" fill="{fill}" stroke="#444444" stroke-width="2"/>')
            points = sorted((p for p in self.figure.points if p.step == step), key=_weight)
            mixed = len({point.measured for point in points}) > 1
            head = f"{step}, of their roofs" if mixed else f"{step} ({_how(points[0])})"
            parts.append(words(x + 16, y, head, weight="bold"))
            for point in points:
                y += 17
                kind = point.kind.removeprefix(f"{step}, ")
                text = f"{kind}: {humanize.percent(point.of_roof)} {_how(point) if mixed else 'of its roof'}"
                parts.append(words(x + 16, y, text, colour=_colour(point)))
            y += 30
        if any(point.share is not None for point in self.figure.points):
            parts.append(words(x, y, "size: share of the step's time", size=11, colour="#666666"))
        for unplaced in ["without FLOPs, not drawn:", *self.figure.unplaced] if self.figure.unplaced else []:
            y += 16
            parts.append(words(x, y, unplaced, size=10, colour="#666666"))
        return parts


def _roof_text(slope: RoofCurve) -> str:
    return f"{slope.name} {humanize.say(slope.rate, 'B/s')}"


def _say(point: Point) -> str:
    rate = humanize.say(point.flops_per_second, "FLOP/s")
    share = "" if point.share is None else f", {point.share:.0%} of the step"
    return f"{point.step} {point.kind}: {point.intensity:.3g} FLOP/B, {rate}{share}"


def _how(point: Point) -> str:
    return "measured" if point.measured else "expected"


def _boxes(begin: tuple[float, float], stop: tuple[float, float], count: int = 60) -> list[Box]:
    """Return small boxes along a line, which mark the area that the line crosses."""
    dx, dy = (stop[0] - begin[0]) / count, (stop[1] - begin[1]) / count
    centres = [(begin[0] + dx * step, begin[1] + dy * step) for step in range(count)]
    return [(x - 4, y - 4, x + 4, y + 4) for x, y in centres]


def _weight(point: Point) -> float:
    """Return the sort key of a point, so that those with the largest share come first."""
    return -(point.share or 0.0)


def _colour(point: Point) -> str:
    return _COLOURS.get(point.kind, "#333333")


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _rate(value: float) -> str:
    return humanize.say(value, "FLOP/s").replace(".00", "").replace(".0", "")
