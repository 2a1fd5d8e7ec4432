"""The guide's numbers: the lock is what the ledger says today, and a name or a question that is wrong ends in a
line."""

from pathlib import Path

import pytest

from ridgeline.learn.guide.guide_numbers import (
    FORMATS,
    LOCK,
    GuideNumber,
    lock_text,
    read_lock,
    read_questions,
    resolve,
    write_lock,
)
from ridgeline.learn.lab.cost_calculator import CostCalculator


def test_the_lock_is_what_the_ledger_says() -> None:
    """A price that changes is a change of this file, which somebody reads: `make guide-update`. Numbers of simulated
    traffic take longer, and are compared by `make guide-check`, as all are."""
    asked = read_questions()
    assert list(read_lock()) == list(asked)
    quick = {name: question for name, question in asked.items() if "served(" not in question[0]}
    assert len(quick) > 150
    fresh, locked = (
        text.replace(",\n", "\n").splitlines()
        for text in (lock_text(resolve(quick, CostCalculator())), LOCK.read_text(encoding="utf-8"))
    )
    assert set(fresh) <= set(locked), sorted(set(fresh) - set(locked))


def test_a_locks_numbers_come_back(tmp_path: Path) -> None:
    written = {"one": GuideNumber("7.51 ms", 0.00750506), "two": GuideNumber("µ", 1e-6)}
    write_lock(written, tmp_path / "lock")
    assert read_lock(tmp_path / "lock") == written


def test_a_question_may_use_the_numbers_before_it() -> None:
    found = resolve({"a": ("2 + 2", "count"), "b": ("n['a'] * kv('llama-3-8b')", "bytes")}, CostCalculator())
    assert found["b"] == GuideNumber("524,288 bytes", 524_288.0)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"x": ("decode('llama-9')", "seconds")}, "x = decode"),
        ({"x": ("'seven'", "count")}, "'seven', which is not a number"),
        ({"x": ("n['y']", "count"), "y": ("1", "count")}, "KeyError"),
        ({"x": ("open('/etc/passwd')", "count")}, "NameError"),
    ],
)
def test_a_question_that_fails_is_named(asked: dict[str, tuple[str, str]], says: str) -> None:
    with pytest.raises(ValueError, match="x = ") as error:
        resolve(asked, CostCalculator())
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[a]\n"x" = ["1", "furlongs"]', "has the unknown format 'furlongs'"),
        ('[a]\nx = ["1", "count"]\n[b]\nx = ["2", "count"]', "twice"),
    ],
)
def test_a_file_of_questions_that_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "numbers.toml").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_questions(tmp_path / "numbers.toml")


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("seconds", 0.0075, "7.50 ms"), ("percent", 0.7019, "70.2 %"), ("kib", 131072, "128 KiB"),
        ("mib", 2**28, "256 MiB"),
        ("billions", 8.03e9, "8.03 billion"), ("dollars", 0.151, "$0.15"), ("gb", 15.01e9, "15.01 GB"),
        ("four", 0.4011, "0.4011"),
        ("flop/s", 989e12, "989 TFLOP/s"), ("times", 155.99, "156 times"),
    ],
)  # fmt: skip
def test_how_numbers_are_written(kind: str, value: float, shown: str) -> None:
    assert FORMATS[kind](value) == shown
