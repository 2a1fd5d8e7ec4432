"""Published times of images and videos, and the prediction for each.

The column `what` says which part was timed. A `request` encodes its texts, runs all passes and decodes. `denoise and
decode` leaves out the texts, and `denoise` the decode too. A `step` has the passes of one step, two with guidance, and
a `pass` is one call of the denoiser. On several GPUs, rows are divided as they say (`sequence` is Ulysses). `eager`
rows fuse nothing, as diffusers' classes dispatch (media/diffusion/eager.toml). `compiled` rows fuse what our ops state.

`images.csv` has the development rows, which may be looked at one by one. `images_test.csv` has the test rows: they
are of sources of which no row was priced when they were committed, and they only enter totals.
"""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ridgeline.core.checkpoint import open_source
from ridgeline.media.diffusion.diffusion_parallel import ParallelDegrees
from ridgeline.media.diffusion.eager import unfused
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_price import PipelinePrice, PipelineWorkload
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import OWN_ENGINE, load_engine
from ridgeline.price.physics_guard import beats_floor
from ridgeline.price.plan.request_phases import Estimate
from ridgeline.util.document.humanize import say_seconds

MEASURED = Path(__file__).resolve().parent / "measured"
DEVELOPMENT, TEST = "images.csv", "images_test.csv"
UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class ImageRow:
    """A measurement with its conditions, as its file has it, and what was predicted for it."""

    id: str
    release: str
    card: str
    division: ParallelDegrees
    size: Size
    frames: int
    steps: int
    texts: int
    what: str
    measured: float
    fusion: str
    source: str
    """The publisher: a repository or a site."""
    predicted: Estimate

    @property
    def error(self) -> float:
        """Expected over measured, less one: above 0 is too slow."""
        return self.predicted.expected / self.measured - 1

    @property
    def guard(self) -> str | None:
        """The physics guard's objection to the measurement; None without one."""
        return beats_floor(self.measured, self.predicted.floor)

    def line(self) -> tuple[object, ...]:
        """Return the row's cells in the table of the page."""
        times = (say_seconds(seconds) for seconds in (self.measured, self.predicted.expected, self.predicted.floor))
        frames = f" x {self.frames}" if self.frames > 1 else ""
        steps = f"{self.steps} x {self.texts}"
        cards = f"{self.division.gpus} x {self.card}"
        what = (self.what, self.fusion)
        return (self.id, self.release, cards, f"{self.size}{frames}", steps, *what, *times, f"{self.error:+.1%}")


HEADS = (
    "id", "release", "cards", "size", "steps x passes", "what", "fusion", "measured", "expected", "floor", "error",
)  # fmt: skip


def facts(name: str = DEVELOPMENT) -> list[dict[str, str]]:
    """Return the rows of a file as published."""
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def rows(name: str = DEVELOPMENT) -> tuple[ImageRow, ...]:
    """Return the rows of a file, predicted."""
    return tuple(map(_predicted, facts(name)))


def groups(found: Sequence[ImageRow]) -> dict[str, list[ImageRow]]:
    """Return the rows by group, each of which is judged apart."""
    return {
        "eager": [row for row in found if row.fusion == "eager"],
        "compiled": [row for row in found if row.fusion == "compiled"],
        "one card": [row for row in found if row.division.gpus == 1],
        "several cards": [row for row in found if row.division.gpus > 1],
    }


def groups_for_totals(found: Sequence[ImageRow]) -> dict[str, list[ImageRow]]:
    """Return the groups of test rows of which the page has totals."""
    kinds = {
        "images": [row for row in found if row.frames == 1],
        "videos": [row for row in found if row.frames > 1],
    }
    return {"all": list(found), **kinds, **groups(found)}


def median_error(found: Sequence[ImageRow]) -> float:
    """Return the median of the absolute errors."""
    return statistics.median(abs(row.error) for row in found)


def median_of_sources(found: Sequence[ImageRow]) -> float:
    """Return the median over sources of each source's median absolute error, so that every source weighs the same."""
    names = dict.fromkeys(row.source for row in found)
    return statistics.median(median_error([row for row in found if row.source == name]) for name in names)


@cache
def _priced(release: str) -> tuple[PipelinePrice, PipelineDefaults]:
    source = open_source(release)
    return PipelinePrice(build_on_meta(source)), PipelineDefaults.of(source)


def _predicted(line: dict[str, str]) -> ImageRow:
    price, usual = _priced(line["release"])
    size, frames, cards = Size.parse(line["size"]), int(line["frames"]), int(line["devices"])
    steps, texts, division = int(line["steps"]), int(line["texts"]), ParallelDegrees(1, int(line["sequence"]))
    given = usual.texts(texts)
    job = PipelineWorkload(usual.layout.geometry(size, frames), steps, given, 1, usual.read(given))
    device = load_engine(OWN_ENGINE).on(load_device(line["card"]), cards)
    assert division.gpus == cards
    ops = unfused(line["release"])
    assert ops is not None, f"{line['release']}: its unfused ops were not recorded"
    found = price.on(device, job, None, division, ops if line["fusion"] == "eager" else None)
    stages = {"request": found.stages, "denoise and decode": (found.denoise, found.decode)}
    stages |= dict.fromkeys(("denoise", "step", "pass"), (found.denoise,))
    seconds = sum((stage.seconds for stage in stages[line["what"]]), Estimate(0.0, 0.0, 0.0))
    measured, source = float(line["value"]) * UNITS[line["unit"]], line["source"].removeprefix("github.com/").split()[0]
    return ImageRow(
        line["id"], line["release"], line["card"], division, size, frames, steps, texts, line["what"],
        measured, line["fusion"], source, seconds,
    )  # fmt: skip
