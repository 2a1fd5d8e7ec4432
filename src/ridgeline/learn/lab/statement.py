"""A statement of textbooks on inference, with the cost model's result for the same case and an explanation."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of textbooks, compared with the cost model."""

    id: str
    """The short name."""
    row: int | None
    """The number in the project's list of such statements; None for folklore without a number."""
    text: str
    """The statement of the textbooks."""
    ledger: str
    """The result computed here, as text."""
    why: str
    """The reason why the two differ, or why they agree."""
    figures: Mapping[str, float]
    """The numbers in `ledger`, by name."""
