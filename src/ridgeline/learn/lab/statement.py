"""A statement of the texts on inference, what the ledger says of the same case, and why they differ."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """id; row: its number in the project's list of such statements, None for folklore that has no number. text: what
    the texts say. ledger: what is computed here, in words; figures: the numbers in it. why: they differ, or do not.
    """

    id: str
    row: int | None
    text: str
    ledger: str
    why: str
    figures: Mapping[str, float]
