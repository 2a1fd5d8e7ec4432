"""Figures: a rounded one is never shown with a digit too many, nor with a prefix too small."""

import pytest

from ridgeline.util.document.humanize import (
    GB,
    GiB,
    digits,
    gb_cell,
    gib_cell,
    say,
    say_gb,
    say_gib,
    say_seconds,
    three_digits,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (0.0063, "0.0063"), (0.0999, "0.10"), (0.5, "0.50"), (0.996, "1.0"), (0.9996, "1.00"), (7.5, "7.50"),
        (9.996, "10.0"), (48.14, "48.1"), (99.97, "100"), (133.4, "133"), (999.7, "1,000"), (3950.2, "3,950"),
    ],
)  # fmt: skip
def test_three_digits(value: float, shown: str) -> None:
    """9.996 was 10.00 and 99.97 was 100.0."""
    assert three_digits(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.99996, "1.00 s"), (0.0075, "7.50 ms"), (48.1e-6, "48.1 µs"), (5.2e-9, "5.20 ns"), (4321.0, "4,321 s")],
)
def test_seconds(value: float, shown: str) -> None:
    """0.99996 s were 1,000 ms, and a plan said us where a trace said µs."""
    assert say_seconds(value) == shown


def test_counts() -> None:
    assert [say(value, "B") for value in (0, 999.6e6, 15.01e9, 2e18)] == ["0 B", "1.00 GB", "15.0 GB", "2000 PB"]
    assert digits(1234.5, 2) == "1234"


def test_memory_of_a_small_model() -> None:
    """A plan of one said that its weights take 0.00 GiB and that a step moves 0.00 GB."""
    assert [say_gb(GB(value)) for value in (1234.5, 15.014, 1.0, 0.134, 0.00485)] == [
        "1,234.50 GB", "15.01 GB", "1.00 GB", "134 MB", "4.85 MB",
    ]  # fmt: skip
    assert [say_gib(GiB(value)) for value in (12.346, 1, 0.23, 0.0045, 48 / 2**20, 300 / 2**30, 0)] == [
        "12.35 GiB", "1.00 GiB", "236 MiB", "4.61 MiB", "48.0 KiB", "300 B", "0 B",
    ]  # fmt: skip
    assert [say_gib(GiB(value)) for value in (-2.5, -0.25)] == ["-2.50 GiB", "-256 MiB"]


def test_a_cell_of_a_small_size_has_its_unit() -> None:
    """Check that other cells leave the unit to the column's heading."""
    assert [gib_cell(GiB(value)) for value in (79.647, 0.49, 0.05, -1.5, 0)] == [
        "79.65", "0.49", "51.2 MiB", "-1.50", "0 B",
    ]  # fmt: skip
    assert [gb_cell(GB(value)) for value in (1085.5, 0.53, 0.05)] == ["1,085.50", "0.53", "50.0 MB"]
