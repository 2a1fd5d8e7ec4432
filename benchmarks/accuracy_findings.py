"""What was predicted for every published measurement of benchmarks/measured/, beside what was measured."""

from dataclasses import dataclass

import accuracy_images as images
import accuracy_kernels as kernels
import accuracy_memory as memory
from accuracy_replay import MEASURED, Published, Row, facts, predict, published_as, read
from ridgeline.price.devices import load_device
from ridgeline.price.physics_guard import beats_floor
from ridgeline.price.plan.request_phases import Estimate


@dataclass(frozen=True, slots=True)
class Result:
    """A row and what was predicted for it."""

    row: Row
    predicted: Estimate

    @property
    def error(self) -> float:
        """Expected over measured, less one: above 0 is too slow for a time and too fast for a rate."""
        return self.predicted.expected / self.row.measured - 1

    @property
    def guard(self) -> str | None:
        """What the physics guard says of the measurement."""
        if self.row.is_rate:
            return beats_floor(1 / self.row.measured, 1 / self.predicted.floor)
        return beats_floor(self.row.measured, self.predicted.floor)

    @property
    def engine(self) -> Published:
        """The engine's entry in measured/engines.toml."""
        return published_as(self.row.engine)

    @property
    def source(self) -> str:
        """The repository that published it."""
        return self.row.source.split()[0]

    @property
    def card_class(self) -> str:
        """The maker of the card, and for whom it is made."""
        title = load_device(self.row.card).title
        maker = title.split()[0]
        desktop = maker == "NVIDIA" and any(word in title for word in ("RTX", "GeForce"))
        return f"{maker}, desktop and workstation" if desktop else maker


def results(name: str) -> list[Result]:
    """Predictions of one file of facts."""
    return [Result(row, predict(row)) for row in read(name)]


def judged() -> list[str]:
    """The ids of the rows on which time is judged."""
    lines = (MEASURED / "judged.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the page is about. timed: rows of time; judged: the ids among them on which we are judged; most: tables
    of maximum throughput; test_images: images and videos of which only totals are shown; unpriced: ids by the
    reason."""

    timed: list[Result]
    judged: set[str]
    most: list[Result]
    kernels: list[kernels.KernelRow]
    memory: list[memory.MemoryRow]
    images: tuple[images.ImageRow, ...]
    test_images: tuple[images.ImageRow, ...]
    unpriced: dict[str, list[str]]

    @property
    def chosen(self) -> list[Result]:
        """The judged rows."""
        return [result for result in self.timed if result.row.id in self.judged]

    @property
    def others(self) -> list[Result]:
        """The other rows of time."""
        return [result for result in self.timed if result.row.id not in self.judged]


def find() -> Findings:
    """Predict everything."""
    unpriced: dict[str, list[str]] = {}
    for line in facts("unpriced.csv"):
        unpriced.setdefault(line["reason"], []).append(line["id"])
    timed, most = results("static.csv") + results("serving.csv"), results("envelope.csv")
    drawn, tests = images.rows(), images.rows(images.TEST)
    return Findings(timed, set(judged()), most, kernels.rows(), memory.rows(), drawn, tests, unpriced)
