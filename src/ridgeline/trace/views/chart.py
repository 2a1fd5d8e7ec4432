"""The roofline drawn in the terminal: letters under lines, both axes logarithmic."""

from rich.text import Text

from ridgeline import figures
from ridgeline.trace.decades import along, powers
from ridgeline.trace.picture import Picture

_LETTERS = {
    "linear": "L", "head": "H", "attention": "A", "experts": "X", "norm": "N", "elementwise": "E",
    "embedding": "B", "communication": "C",
}  # fmt: skip
_MARGIN = 11


def chart(picture: Picture, width: int = 100, height: int = 24) -> list[Text]:
    """The picture in `width` columns: capital letters are the first step's classes, small ones the second's."""
    canvas = _Canvas(picture, width - _MARGIN - 1, height)
    canvas.draw_roofs()
    letters = letters_of(picture)
    steps = list(dict.fromkeys(point.step for point in picture.points))
    for point in sorted(picture.points, key=lambda point: point.share or 0.0):  # the weightiest on top
        letter = letters[point.kind]
        canvas.put(point.intensity, point.flops_per_second, letter if point.step == steps[0] else letter.lower())
    return [Text(picture.title, style="bold"), *canvas.lines(), *_legend(picture, letters, steps)]


def letters_of(picture: Picture) -> dict[str, str]:
    """A letter for each class."""
    spare = iter("PQRSTUVWYZ")
    return {kind: _LETTERS.get(kind) or next(spare) for kind in dict.fromkeys(point.kind for point in picture.points)}


class _Canvas:
    """A grid of characters over a picture's axes."""

    def __init__(self, picture: Picture, width: int, height: int) -> None:
        self.picture, self.width, self.height = picture, width, height
        self.grid = [[" "] * width for _ in range(height)]

    def column(self, intensity: float) -> int:
        """Where an intensity lies."""
        return round(along(intensity, self.picture.x) * (self.width - 1))

    def row(self, rate: float) -> int:
        """Where a rate lies, the top row being 0."""
        return self.height - 1 - round(along(rate, self.picture.y) * (self.height - 1))

    def put(self, intensity: float, rate: float, letter: str) -> None:
        """Write a letter, beside what is there already if need be."""
        row, column = self.row(rate), self.column(intensity)
        for shift in (0, 1, -1, 2, -2):
            if 0 <= column + shift < self.width and not self.grid[row][column + shift].isalpha():
                self.grid[row][column + shift] = letter
                return

    def draw_roofs(self) -> None:
        """Slopes, drawn with their number, up to the highest ceiling; ceilings from where the fastest memory ends."""
        low, high = self.picture.x
        top = self.picture.ceilings[0].rate
        for column in range(self.width):
            intensity = low * (high / low) ** (column / (self.width - 1))
            for ceiling in self.picture.ceilings:
                if self.picture.slopes[0].rate * intensity >= ceiling.rate:
                    self.grid[self.row(ceiling.rate)][column] = "─"
            for number, slope in enumerate(self.picture.slopes, 1):
                if self.picture.y[0] <= slope.rate * intensity <= top:
                    self.grid[self.row(slope.rate * intensity)][column] = str(number)
        for ceiling in self.picture.ceilings:
            label = f" {ceiling.name} {figures.say(ceiling.rate, 'FLOP/s')} "
            self.grid[self.row(ceiling.rate)][self.width - len(label) :] = label

    def lines(self) -> list[Text]:
        """The grid with its axes."""
        labels = {self.row(power): _rate(power) for power in powers(self.picture.y)}
        texts = []
        for index, line in enumerate(self.grid):
            text = Text(f"{labels.get(index, ''):>{_MARGIN}}", style="dim")
            text.append("┤" if index in labels else "│", "dim")
            for letter in line:
                text.append(letter, "magenta" if letter == "─" else "cyan" if letter.isdigit() else "bold")
            text.rstrip()
            texts.append(text)
        ticks = [" "] * self.width
        for power in powers(self.picture.x):
            label = f"{power:g}"
            column = min(self.column(power), self.width - len(label))
            ticks[column : column + len(label)] = label
        axis = Text(" " * _MARGIN + "└" + "─" * self.width, style="dim")
        return [*texts, axis, Text(f"{'FLOP/byte':>{_MARGIN}} {''.join(ticks).rstrip()}", style="dim")]


def _rate(power: float) -> str:
    """A power of ten as a rate: `10GFLOP/s` cut to what fits beside the axis."""
    number = figures.scaled(power, 1)
    return f"{number}FLOP/s"[: _MARGIN + 1]


def _legend(picture: Picture, letters: dict[str, str], steps: list[str]) -> list[Text]:
    """What numbers and letters are; for each class and step the FLOP/s and the share of its own roof."""
    slopes = enumerate(picture.slopes, 1)
    memories = "   ".join(f"{number} {slope.name} {figures.say(slope.rate, 'B/s')}" for number, slope in slopes)
    found = [Text(memories, style="cyan")]
    heads = "".join(f"{_step_name(picture, step):>26}  of its roof" for step in steps)
    found.append(Text(f"{'':20}{heads}", style="dim"))
    places = {(point.kind, point.step): point for point in picture.points}
    for kind, letter in letters.items():
        marks = letter if len(steps) == 1 else f"{letter} {letter.lower()}"
        text = Text(f"{marks:3}  {kind:16}")
        for step in steps:
            point = places.get((kind, step))
            rate = figures.say(point.flops_per_second, "FLOP/s") if point else ""
            text.append(f"{rate:>25}  {figures.percent(point.of_roof) if point else '':>12}")
            if point and len(_how(picture, step)) > 1:
                text.append("  measured" if point.measured else "  expected")
        found.append(text)
    if picture.unplaced:
        found.append(Text(f"without FLOPs, not drawn: {', '.join(picture.unplaced)}", style="dim"))
    return found


def _step_name(picture: Picture, step: str) -> str:
    how = _how(picture, step)
    return f"{step}, {how.pop()}" if len(how) == 1 else step


def _how(picture: Picture, step: str) -> set[str]:
    """Whether a step's points are measured, expected, or some of them this and some that."""
    return {"measured" if point.measured else "expected" for point in picture.points if point.step == step}
