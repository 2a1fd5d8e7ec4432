"""A statement of textbooks on inference, with the cost model's result for the same case and an explanation."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of textbooks on inference, compared with the cost model's result."""

    id: str
    """The short name of the statement."""
    row: int | None
    """The statement's number in the project's list of textbook statements; None for folklore without a number."""
    text: str
    """The statement as textbooks make it."""
    ledger: str
    """The cost model's result for the statement's case, as text."""
    why: str
    """The reason why textbook and cost model differ, or why they agree."""
    figures: Mapping[str, float]
    """The numbers in the cost model's result, by name."""
