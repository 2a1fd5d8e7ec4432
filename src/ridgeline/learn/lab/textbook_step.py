"""A decode step of one user as textbooks teach it: all weights read once, two FLOPs per weight, round numbers."""

import math
from dataclasses import dataclass

from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import percent, say, say_seconds


@dataclass(frozen=True, slots=True)
class TextbookStep:
    """A decode step of one user, computed with the simplifications of textbooks."""

    nbytes: float
    """The bytes of all weights, two per parameter, from the rounded parameter count in the model's name."""
    bandwidth: float
    """The device's bandwidth as a round number."""
    peak: float
    """The device's peak FLOP/s in bf16."""

    @property
    def step(self) -> float:
        """The seconds to read all weights once."""
        return self.nbytes / self.bandwidth

    @property
    def arithmetic(self) -> float:
        """The seconds of 2 FLOPs per parameter, rounded to one digit as textbooks do."""
        return float(f"{self.nbytes / self.peak:.0e}")

    @property
    def ridge(self) -> float:
        """The device's ridge in FLOPs per byte.

        Textbooks take it for a batch size, because each user does one FLOP per byte of weights.
        """
        return self.peak / self.bandwidth

    def beside(self, step: float, busy: float, nbytes: float, ridge: float, batch: float | None) -> DocumentTable:
        """Return a table that compares the textbook's decode step of one user with the same step in the cost model.

        Args:
            step: Minimum seconds of the step in the cost model.
            busy: Share of these seconds in which the arithmetic units work.
            nbytes: Bytes of weights and KV that the step reads and writes in the cost model.
            ridge: Ridge of the device in FLOPs per byte.
            batch: Number of users from which on decode is compute-bound; None if no number is enough.
        """
        rows = (
            ("bytes read per token", say(self.nbytes, "B"), say(nbytes, "B")),
            ("minimum time per step", say_seconds(self.step), say_seconds(step)),
            ("maximum tokens per second", f"{1 / self.step:,.0f}", f"{1 / step:,.0f}"),
            ("time of the arithmetic", say_seconds(self.arithmetic), say_seconds(busy * step)),
            ("arithmetic units busy", percent(self.arithmetic / self.step), percent(busy)),
            ("memory time / arithmetic time", f"{self.step / self.arithmetic:,.0f} x", f"{1 / busy:,.0f} x"),
            ("ridge, FLOP/byte", f"{self.ridge:,.0f}", f"{ridge:,.1f}"),
            (
                "batch that reaches the ridge",
                f"about {10 * math.floor(self.ridge / 10):,}",
                "none" if batch is None else f"{math.ceil(batch):,}",
            ),
        )
        return DocumentTable(columns("decode, one user", "textbook", "cost model"), tuple(map(TableRow, rows)))


def round_figure(value: float) -> float:
    """Return a value rounded to one digit if that is within 2 % (2.039 TB/s become 2), else unchanged."""
    unit = 10.0 ** math.floor(math.log10(value))
    even = unit * round(value / unit)
    return even if abs(value / even - 1) < 0.02 else value
