"""A grid: shares of named rows by named columns, as data to be drawn."""

from dataclasses import dataclass

from ridgeline.util.document.panels import Lines


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A share from 0 to 1 for each row and column, as a darker cell the larger it is. rows, columns: their names. note:
    what to know in order to read it.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    lines: Lines
    note: str = ""

    def __post_init__(self) -> None:
        assert len(self.lines) == len(self.rows), "each row has a name"
        assert all(len(line) == len(self.columns) for line in self.lines), "each column has a name"
