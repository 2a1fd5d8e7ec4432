"""An experiment: what it expects is said before it measures, and held against what came out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ridgeline.util.document.elements import Bullets, Document, DocumentBlock, Facts, Heading, Paragraph


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """What came out. held: of each expectation, whether it held and the figures that say so. blocks: tables and one
    figure. data: the figures as JSON.
    """

    held: tuple[tuple[bool, str], ...]
    blocks: tuple[DocumentBlock, ...]
    data: dict[str, Any]

    @property
    def as_expected(self) -> bool:
        """Whether everything held."""
        return all(holds for holds, _ in self.held)


@dataclass(frozen=True, slots=True)
class Experiment:
    """name: of its command. question: what it answers. expected: sentences, said beforehand. file: its code. timed:
    which of these, counted from 1, rest on a clock: a machine that does something else meanwhile may break them.
    """

    name: str
    question: str
    expected: tuple[str, ...]
    run: Callable[[], ExperimentOutcome]
    file: str
    timed: tuple[int, ...] = ()

    def announcement(self) -> Document:
        """What is expected."""
        return Document(self.question, (Heading("Expected"), Bullets(self.expected)))

    def report(self, outcome: ExperimentOutcome) -> Document:
        """What came out, expectation by expectation, and what it rests on."""
        assert len(outcome.held) == len(self.expected)
        rows = tuple(
            (f"{number}. {'held' if holds else 'did not hold'}", said)
            for number, (holds, said) in enumerate(outcome.held, 1)
        )
        code = Paragraph(f"the experiment in code: {self.file}", "dim")
        return Document("Measured", (Facts(rows), *outcome.blocks, code))

    def as_json(self, outcome: ExperimentOutcome) -> dict[str, Any]:
        """Expectations, whether they held, and the figures."""
        held = [
            {"expected": expected, "held": holds, "found": found}
            for expected, (holds, found) in zip(self.expected, outcome.held, strict=True)
        ]
        return {"experiment": self.name, "question": self.question, "expectations": held, **outcome.data}
