"""An experiment: it states its expectations before it measures, and then compares them with the results."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getfile, unwrap
from typing import Any

from ridgeline.util.document.elements import Bullets, Document, DocumentBlock, Facts, Heading, Paragraph


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """The results of an experiment and their comparison with its expectations."""

    held: tuple[tuple[bool, str], ...]
    """The verdict on each expectation: whether it held, and the figures that show it."""
    blocks: tuple[DocumentBlock, ...]
    """The tables and the figure of an experiment's report."""
    data: dict[str, Any]
    """The figures of an experiment for JSON output."""

    @property
    def as_expected(self) -> bool:
        """Whether all expectations of an experiment held."""
        return all(holds for holds, _ in self.held)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment of `ridgeline lab`, with the expectations that it states before it measures."""

    name: str
    """The name of the experiment's command."""
    question: str
    """The question that the experiment answers."""
    expected: tuple[str, ...]
    """The expectations of the experiment, as sentences stated before the measurement."""
    run: Callable[[], ExperimentOutcome]
    """The function that runs the experiment."""
    timed: tuple[int, ...] = ()
    """The expectations, counted from 1, that depend on a clock: other load on the machine may break them."""

    @property
    def file(self) -> str:
        """The path of the experiment's source file."""
        return getfile(unwrap(self.run))

    def announcement(self) -> Document:
        """Return the document shown before an experiment runs: its question and the results that it expects."""
        return Document(self.question, (Heading("Expected"), Bullets(self.expected)))

    def report(self, outcome: ExperimentOutcome) -> Document:
        """Return the document shown after an experiment: whether each expectation held, tables and figure."""
        assert len(outcome.held) == len(self.expected)
        rows = tuple(
            (f"{number}. {'held' if holds else 'did not hold'}", statement)
            for number, (holds, statement) in enumerate(outcome.held, 1)
        )
        code = Paragraph(f"source code of the experiment: {self.file}", "dim")
        return Document("Measured", (Facts(rows), *outcome.blocks, code))

    def as_json(self, outcome: ExperimentOutcome) -> dict[str, Any]:
        """Return an experiment's expectations, whether they held, and its figures as JSON data."""
        held = [
            {"expected": expected, "held": holds, "found": found}
            for expected, (holds, found) in zip(self.expected, outcome.held, strict=True)
        ]
        return {"experiment": self.name, "question": self.question, "expectations": held, **outcome.data}
