"""The data of a heat map: shares of named rows by named columns."""

from dataclasses import dataclass

from ridgeline.util.document.panels import Lines


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A heat map with a share from 0 to 1 per row and column; larger shares are darker."""

    title: str
    rows: tuple[str, ...]
    """The names of the heat map's rows."""
    columns: tuple[str, ...]
    """The names of the heat map's columns."""
    lines: Lines
    note: str = ""
    """Remarks on how to read the heat map."""

    def __post_init__(self) -> None:
        assert len(self.lines) == len(self.rows), "each row has a name"
        assert all(len(line) == len(self.columns) for line in self.lines), "each column has a name"
