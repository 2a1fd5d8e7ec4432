"""Weight quantisation: the loss of the built-in model with its matrices rounded to fewer and fewer bits."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY, InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

BITS, GROUP = (8, 7, 6, 5, 4, 3, 2), 32


def rounded(weight_OI: Tensor, bits: int, group: int) -> Tensor:
    """Return a matrix rounded to whole multiples of a scale, which each group of a row's numbers shares.

    The largest number of a group becomes the largest code.
    """
    groups_NG = weight_OI.reshape(-1, group)
    largest = 2 ** (bits - 1) - 1
    scale_N1 = groups_NG.abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
    rounded_OI: Tensor = ((groups_NG / scale_N1).round() * scale_N1).view_as(weight_OI)
    return rounded_OI


@contextmanager
def narrowed(tales: InstrumentedModel, bits: int, group: int | None) -> Iterator[None]:
    """Round the matrices of all layers inside this context; the norms and the embedding table stay.

    Args:
        tales: Model.
        bits: Bits per number.
        group: Numbers of a row that share a scale; None for the whole row.
    """
    matrices = [p for name, p in tales.model.named_parameters() if ".layers." in name and p.dim() == 2]
    own = [p.data for p in matrices]
    for p in matrices:
        p.data = rounded(p.data, bits, group or p.shape[1])
    try:
        yield
    finally:
        for p, before in zip(matrices, own, strict=True):
            p.data = before


def losses(tales: InstrumentedModel, group: int | None) -> dict[int, float]:
    """Return the built-in model's loss (nats per token) on a story, keyed by the number of bits per weight."""
    ids, found = tales.ids(STORY), {}
    for bits in BITS:
        with narrowed(tales, bits, group):
            found[bits] = tales.loss(ids)
    return found


def run() -> ExperimentOutcome:
    """Run the experiment: the loss of the built-in model with its layers' matrices rounded to 8 down to 2 bits.

    It compares a scale for each row with a scale for every 32 numbers.
    """
    tales = InstrumentedModel()
    whole = tales.loss(tales.ids(STORY))
    by_row, by_group = losses(tales, None), losses(tales, GROUP)
    back = tales.loss(tales.ids(STORY))
    rows = [
        TableRow((f"{bits}", f"{by_row[bits]:.3f}", f"{by_group[bits]:.3f}", f"{bits + 16 / GROUP:g}")) for bits in BITS
    ]
    lines = (
        Series("a scale for each row", tuple(by_row.items())),
        Series(f"a scale for each {GROUP} numbers", tuple(by_group.items())),
        Series("not quantised", tuple((bits, whole) for bits in BITS), "dashed"),
    )
    return ExperimentOutcome(
        (
            (
                back == whole and abs(by_row[8] - whole) < 0.02 and abs(by_group[8] - whole) < 0.02,
                f"{by_row[8]:.3f} and {by_group[8]:.3f} nats per token, compared with {whole:.3f} without quantisation",
            ),
            (
                all(by_group[bits] < by_row[bits] for bits in (3, 2)),
                f"at three bits {by_row[3]:.2f} with a scale per row, {by_group[3]:.2f} with a scale per group; at "
                f"four {by_row[4]:.2f} and {by_group[4]:.2f}",
            ),
            (
                by_row[2] > 2 * whole and by_group[2] > by_group[4] + 0.2,
                f"{by_row[2]:.2f} and {by_group[2]:.2f} nats per token",
            ),
        ),
        (
            DocumentTable(
                columns("bits", "scale per row", f"scale per {GROUP}", "bits with scales", words=()), tuple(rows)
            ),
            Chart("Loss on a story with quantised matrices", "bits per weight", "nats per token", lines, log_y=True),
        ),
        {"whole": whole, "by_row": by_row, "by_group": by_group},
    )


EXPERIMENT = Experiment(
    "narrow",
    "How few bits can a weight have?",
    (
        "Eight bits change a story's loss by less than 0.02 nats per token.",
        "With three bits or fewer, a scale for each 32 numbers loses less than a scale for each row.",
        "Two bits are too few either way: with a scale for each row the loss more than doubles.",
    ),
    run,
)
