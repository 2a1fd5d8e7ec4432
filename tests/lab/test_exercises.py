"""Exercises: solutions pass their own check, which is held against the engine; stubs do not, and say so."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ridgeline.cli.main import build_app
from ridgeline.learn.lab.exercise import EXERCISES, FOLDER, check, read_function, same, solution_of, stub_of

APP = build_app(("lab",))


def test_there_is_a_solution_of_each_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right_and_the_stub_is_not(name: str, tmp_path: Path) -> None:
    exercise = EXERCISES[name]
    path = tmp_path / exercise.file
    path.write_text(solution_of(exercise))
    assert check(exercise, read_function(exercise, path), path) == ""
    path.write_text(stub_of(exercise))
    assert "is not written yet" in check(exercise, read_function(exercise, path), path)
    assert stub_of(exercise).count("NotImplementedError") == 1
    assert len(exercise.cases) >= 3


def test_a_way_through_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written, checked, wrong, right; never written over."""
    monkeypatch.chdir(tmp_path)

    def lab(*arguments: str) -> tuple[int, str]:
        ended = CliRunner().invoke(APP, ["lab", "exercise", *arguments])
        return ended.exit_code, ended.stdout or str(ended.exception)

    assert all(name in lab()[1] for name in EXERCISES)
    assert lab("attention")[0] == 0
    assert "already exists" in lab("attention")[1]
    code, said = lab("attention", "--check")
    assert (code, "is not written yet" in said) == (1, True)
    right = solution_of(EXERCISES["attention"])
    Path("attention.py").write_text(right.replace("math.sqrt(len(query))", "1"))
    code, said = lab("attention", "--check")
    assert (code, "but the engine returns" in said) == (1, True)
    Path("attention.py").write_text(right)
    assert lab("attention", "--check") == (0, "correct: attention agrees with the engine in 4 cases\n")
    assert "unknown exercise 'flying'" in lab("flying")[1]
    assert "--check needs the name of an exercise" in lab("--check")[1]
    assert "--file needs the name of an exercise" in lab("--file", "mine.py")[1]
    assert "there is no folder nowhere; make it first" in lab("attention", "--file", "nowhere/mine.py")[1]
    assert "nowhere.py does not exist" in lab("attention", "--check", "--file", "nowhere.py")[1]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def attention(:", r"attention.py \(line 1\): SyntaxError: invalid syntax$"),
        ("raise SystemExit(0)", r"attention.py \(line 1\): SystemExit: 0$"),
        ("raise ValueError('two' + chr(10) + 'lines')", r"attention.py \(line 1\): ValueError: two lines$"),
        ("import nothing_of_the_sort", r"attention.py \(line 1\): ModuleNotFoundError"),
        ("attention = 3", "has no function attention"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(tmp_path: Path, code: str, says: str) -> None:
    path = tmp_path / "attention.py"
    path.write_text(code)
    with pytest.raises(ValueError, match=says):
        read_function(EXERCISES["attention"], path)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "attention.py"
    path.write_bytes(b"\xff\xfe")
    for each in (path, tmp_path):
        with pytest.raises(ValueError, match="is not a readable text file; `ridgeline lab exercise attention` writes"):
            read_function(EXERCISES["attention"], each)


def test_an_error_in_it_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "attention.py"
    path.write_text("def attention(query, keys, values):\n    return 1 / 0\n")
    said = check(EXERCISES["attention"], read_function(EXERCISES["attention"], path), path)
    assert said.endswith("raises ZeroDivisionError: division by zero (line 2)")
    path.write_text("import sys\n\ndef attention(query, keys, values):\n    sys.exit(0)\n")
    said = check(EXERCISES["attention"], read_function(EXERCISES["attention"], path), path)
    assert said.endswith("raises SystemExit: 0 (line 4)")


@pytest.mark.parametrize(
    ("given", "wanted", "equal"),
    [
        ([1.0, 2.0], [1.0, 2.000001], True), ([1.0], [1.0, 2.0], False), ((1, 2), [1, 2], True), ("a", "a", True),
        (1, 1.00001, True), (True, 1, False), (None, None, True), ([[1]], [[2]], False), (None, 0.0, False),
        (math.nan, math.nan, True), (1.0, math.nan, False), ("ab", ["a", "b"], False), (b"ab", [97, 98], False),
        ({"a": 1.0}, {"a": 1.000001}, True), ({"a": 1}, {"b": 1}, False), ({1, 2}, {2, 1}, True), ([1], {1}, False),
        (np.float32(2.0), 2.0, True), (np.array([1, 2]), (1, 2), True), (torch.tensor([1.0]), [1.0], True),
        (np.True_, True, True), (range(2), [0, 1], True), ({1: 1}, [1], False),
    ],
)  # fmt: skip
def test_what_is_the_same(given: object, wanted: object, equal: bool) -> None:
    assert same(given, wanted) is equal


class _Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class _Pair(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((3, 1), "(3, 1)"), ((3,), "(3,)"), ((), "()"), ([3, 1], "[3, 1]"), ([], "[]"), ([(1.5, "a")], "[(1.5, 'a')]"),
        ({"a": (1, 2.0)}, "{'a': (1, 2)}"), ({}, "{}"), ({2, 1}, "{1, 2}"), (set(), "set()"), (True, "True"),
        (frozenset({1}), "frozenset({1})"), (math.nan, "nan"), (-math.inf, "-inf"), (None, "None"), ("5", "'5'"),
        (np.float64(0.25), "0.25"), (np.int64(3), "3"), (np.bool_(True), "True"), (np.str_("é"), "'é'"),
        ([np.float32(1.0)], "[1]"), (np.array([1, 2]), "array([1, 2])"), (torch.tensor([1, 2]), "tensor([1, 2])"),
        (b"\x00", r"b'\x00'"), (_Pair(1, 2), "_Pair(x=1, y=2)"),
        (_Mute(), "an object of _Mute"), (tuple(range(9)), "(0, 1, 2, 3, 4, 5, 6, 7, ...)"),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_what_it_is(value: Any, shown: str, tmp_path: Path) -> None:
    """On both sides of the sentence, and in the call."""
    wanted = replace(EXERCISES["paged"], cases=((value,),), engine=lambda given: given)
    said = check(wanted, lambda given: 1j, tmp_path)
    assert said == f"paged({shown}) returns 1j, but the engine returns {shown}"


@pytest.mark.parametrize(
    ("given", "wanted", "says"),
    [
        ([0] * 9 + [2], [0] * 9 + [3], "; they differ at [9]: 2 instead of 3"),
        ([0] * 9, [0] * 10, "; they have 9 and 10 elements"),
        ([[0] * 9, 1], [[0] * 8 + [4], 1], "; they differ at [0]: [0, 0, 0, 0, 0, 0, 0, 0, ...] instead of "
         "[0, 0, 0, 0, 0, 0, 0, 0, ...]; they differ at [8]: 0 instead of 4"),
        (1.0, True, ""),
    ],
)  # fmt: skip
def test_a_difference_that_is_not_shown_is_named(given: object, wanted: object, says: str, tmp_path: Path) -> None:
    one = replace(EXERCISES["paged"], cases=((1,),), engine=lambda _: wanted)
    assert check(one, lambda _: given, tmp_path).endswith(f", but the engine returns {_said(wanted)}{says}")


def _said(value: object) -> str:
    """Return the last value of the sentence about a function that gives something else."""
    one = replace(EXERCISES["paged"], cases=((1,),), engine=lambda _: value)
    return check(one, lambda _: 1j, Path()).partition("the engine returns ")[2]


def test_an_exercise_that_expects_a_tuple_says_so(tmp_path: Path) -> None:
    said = check(EXERCISES["paged"], lambda length, page: [1, 2], tmp_path)
    assert said == "paged(1, 16) returns [1, 2], but the engine returns (1, 15)"
    assert "merged('lower', [('l', 'o')," in check(EXERCISES["merged"], lambda word, merges: None, tmp_path)
