"""An experiment: it states its expectations before it measures, and then compares them with the results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.util.document.elements import Bullets, Document, DocumentBlock, Facts, Heading, Paragraph


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """The results of an experiment."""

    held: tuple[tuple[bool, str], ...]
    """The verdict on each expectation: whether it held, and the figures that show it."""
    blocks: tuple[DocumentBlock, ...]
    """The tables and the figure of the report."""
    data: dict[str, Any]
    """The figures for JSON output."""

    @property
    def as_expected(self) -> bool:
        """Whether all expectations held."""
        return all(holds for holds, _ in self.held)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment of `ridgeline lab`."""

    name: str
    """The name of its command."""
    question: str
    """The question that it answers."""
    expected: tuple[str, ...]
    """The expectations, as sentences stated before the measurement."""
    run: Callable[[], ExperimentOutcome]
    """The function that runs it."""
    file: str
    """The path of its code."""
    timed: tuple[int, ...] = ()
    """The expectations, counted from 1, that depend on a clock: other load on the machine may break them."""

    def announcement(self) -> Document:
        """Return the document with the question and the expectations."""
        return Document(self.question, (Heading("Expected"), Bullets(self.expected)))

    def report(self, outcome: ExperimentOutcome) -> Document:
        """Return the document with the results: each expectation with its figures, then tables and figure."""
        assert len(outcome.held) == len(self.expected)
        rows = tuple(
            (f"{number}. {'held' if holds else 'did not hold'}", said)
            for number, (holds, said) in enumerate(outcome.held, 1)
        )
        code = Paragraph(f"the experiment in code: {self.file}", "dim")
        return Document("Measured", (Facts(rows), *outcome.blocks, code))

    def as_json(self, outcome: ExperimentOutcome) -> dict[str, Any]:
        """Return the expectations, whether they held, and the figures."""
        held = [
            {"expected": expected, "held": holds, "found": found}
            for expected, (holds, found) in zip(self.expected, outcome.held, strict=True)
        ]
        return {"experiment": self.name, "question": self.question, "expectations": held, **outcome.data}
