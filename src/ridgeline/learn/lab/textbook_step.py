"""A decode step of one user as texts teach it: all weights read once, two FLOPs for each, round numbers."""

import math
from dataclasses import dataclass

from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import percent, say, say_seconds


@dataclass(frozen=True, slots=True)
class TextbookStep:
    """A decode step as texts teach it. nbytes: of all weights, two a parameter, from the number on the box; bandwidth:
    an even one; peak: FLOP/s in bf16.
    """

    nbytes: float
    bandwidth: float
    peak: float

    @property
    def step(self) -> float:
        """Seconds: all weights once."""
        return self.nbytes / self.bandwidth

    @property
    def arithmetic(self) -> float:
        """Seconds of 2 FLOPs a parameter, in one figure, as texts go on with."""
        return float(f"{self.nbytes / self.peak:.0e}")

    @property
    def ridge(self) -> float:
        """FLOPs a byte, which texts take for a batch, since each user has one FLOP for each of its bytes."""
        return self.peak / self.bandwidth

    def beside(self, step: float, busy: float, nbytes: float, ridge: float, batch: float | None) -> DocumentTable:
        """The text's column beside the ledger's. step: seconds at best of the ledger's, which reads `nbytes`; busy: the
        share of them in which there is arithmetic; batch: from which it is compute-bound, None where none is.
        """
        rows = (
            ("read for a token", say(self.nbytes, "B"), say(nbytes, "B")),
            ("a step, at least", say_seconds(self.step), say_seconds(step)),
            ("tokens a second, at most", f"{1 / self.step:,.0f}", f"{1 / step:,.0f}"),
            ("arithmetic of it", say_seconds(self.arithmetic), say_seconds(busy * step)),
            ("units busy", percent(self.arithmetic / self.step), percent(busy)),
            ("memory over arithmetic", f"{self.step / self.arithmetic:,.0f} x", f"{1 / busy:,.0f} x"),
            ("the ridge, FLOP a byte", f"{self.ridge:,.0f}", f"{ridge:,.1f}"),
            (
                "batch that reaches it",
                f"about {10 * math.floor(self.ridge / 10):,}",
                "none" if batch is None else f"{math.ceil(batch):,}",
            ),
        )
        return DocumentTable(columns("decode, one user", "texts", "ledger"), tuple(map(TableRow, rows)))


def round_figure(value: float) -> float:
    """As texts have it: an even one where that is within a fiftieth (2.039 TB/s are 2), else as it is."""
    unit = 10.0 ** math.floor(math.log10(value))
    even = unit * round(value / unit)
    return even if abs(value / even - 1) < 0.02 else value
