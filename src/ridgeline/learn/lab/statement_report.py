"""The report that compares statements of textbooks on inference with the cost model, and explains the differences.

Textbooks teach with round numbers. Here each number is computed from the model and the GPU that it is about.
"""

from collections.abc import Sequence
from typing import Any

from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement import Statement
from ridgeline.learn.lab.statements_models import models
from ridgeline.learn.lab.statements_steps import steps
from ridgeline.learn.lab.statements_words import words_and_images
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import Document, Facts, Heading, Paragraph


def statements(ledger: CostCalculator) -> list[Statement]:
    """Return all textbook statements on inference with the cost model's results: numbered ones, then folklore."""
    found = [*steps(ledger), *models(ledger), *words_and_images(ledger)]
    return sorted(found, key=lambda one: (one.row is None, one.row or 0))


# -- the report -------------------------------------------------------------------------------------------------------


def document(found: Sequence[Statement]) -> Document:
    """Return the document with each statement, the result of the cost model, and the reason for the difference."""
    blocks: list[Heading | Facts | Bars | Paragraph] = [_figure(found)]
    for one in found:
        number = "" if one.row is None else f"{one.row}. "
        blocks += [
            Heading(f"{number}{one.id}"),
            Facts((("textbook", one.text), ("cost model", one.ledger), ("why", one.why))),
        ]
    lead = f"{len(found)} statements of textbooks, each compared with what the cost model computes."
    code = Paragraph(f"source code of the experiment: {__file__}", "dim")
    return Document("Textbook statements and the cost model", (*blocks, code), lead)


def _figure(found: Sequence[Statement]) -> Bars:
    """Return the figure for the statement `batch-150`: the compute-bound batch on an A100, by context."""
    figures = next(one for one in found if one.id == "batch-150").figures
    batches = {int(name.removeprefix("at_")): batch for name, batch in figures.items() if name.startswith("at_")}
    shown = (
        Bar(f"at {context:,} tokens of context" if context > 1 else "no context, as in textbooks", batch)
        for context, batch in batches.items()
    )
    title = "Batch size that makes decode of an 8B compute-bound on an A100"
    return Bars(title, "users", tuple(shown))


def as_json(found: Sequence[Statement]) -> dict[str, Any]:
    """Return all textbook statements and the cost model's results as JSON data."""
    return {
        "statements": [
            {"id": o.id, "row": o.row, "text": o.text, "ledger": o.ledger, "why": o.why, "figures": dict(o.figures)}
            for o in found
        ]
    }
