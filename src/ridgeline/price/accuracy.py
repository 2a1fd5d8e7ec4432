"""How far predictions were from published measurements, by card, engine and sort of figure: accuracy.toml.

`benchmarks/accuracy.py` makes the file from the rows of `benchmarks/measured`; what plan says of its trust rests on it.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

METRICS: Mapping[str, str] = {
    "decode": "a decode step of a batch",
    "prefill": "the prefill of a batch",
    "static": "a batch from its first prompt token to its last",
    "serving": "first tokens, tokens and throughput under load",
    "tp8": "any of these over 8 cards",
    "memory": "weights and pages of keys and values",
    "kernel": "single operations",
    "picture": "a picture or a clip, a step or a pass of it",
}
"""Sorts of figures, and what they are; a row counts in one of them."""

NEAR = 0.2
"""The error up to which a prediction counts as near what was measured."""


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """Measurements of one metric on a card under an engine: how many, how many of them predicted within `NEAR`, their
    median absolute error, and the error of the worst, with its sign. Errors are expected over measured, less one.
    engine: a profile's name; empty of kernels.
    """

    card: str
    engine: str
    metric: str
    rows: int
    within: int
    median: float
    worst: float


@cache
def accuracy_rows() -> tuple[AccuracyRow, ...]:
    """All rows of accuracy.toml."""
    text = resources.files("ridgeline.price").joinpath("accuracy.toml").read_text(encoding="utf-8")
    return tuple(AccuracyRow(**row) for row in tomllib.loads(text)["row"])
