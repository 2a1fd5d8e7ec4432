"""Exercises: a function for the reader to write, and a check that compares it with the engine.

The reader receives a file of `exercises/` with the function body removed. The check compares the reader's function with
the engine itself and not with that file, so our solution is checked in the same way.
"""

import ast
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ridgeline.learn.lab import references

FOLDER = Path(__file__).with_name("exercises")
_WITHIN = 1e-5
_LONGEST = 400  # maximum characters of a value in a message
_ELEMENTS = 8  # maximum elements of a container in a message


@dataclass(frozen=True, slots=True)
class Exercise:
    """A programming exercise: a function for the reader to write, and the cases that check it."""

    name: str
    """The name of the function to write."""
    cases: tuple[tuple[Any, ...], ...]
    """The arguments with which the check calls the reader's function, one tuple per case."""
    engine: Callable[..., object]
    """The function that computes the expected result with the engine."""

    @property
    def file(self) -> str:
        """The name of the file that the reader edits."""
        return f"{self.name}.py"


_KEYS, _VALUES = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]]
_ROWS = [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [3.0, 3.0, 0.0], [-1.0, 0.0, 0.5]]
_LOGITS = [1.0, 3.0, -2.0, 3.0, 0.5]
_MERGES = [("l", "o"), ("e", "r"), ("lo", "w"), ("w", "er"), ("a", "a")]

_CASES: Mapping[Callable[..., object], tuple[tuple[Any, ...], ...]] = {
    # The computation for one token, and sampling.
    references.merged: (
        ("lower", _MERGES), ("slowly", _MERGES), ("aaaaa", _MERGES), ("cat", _MERGES),
        ("werer", [("w", "e"), ("e", "r"), ("we", "r")]),
    ),
    references.attention: (
        ([1.0, 0.0], _KEYS, _VALUES), ([0.0, 1.0], _KEYS, _VALUES), ([1.0], [[0.0]], [[7.0, 8.0]]),
        ([3.0, -1.0, 0.5, 2.0], [[0.1, 0.2, 0.3, 0.4], [1.0, -1.0, 2.0, 0.0]], [[1.0], [-2.0]]),
    ),
    references.gated: (([1.0, -1.0, 0.0, 4.0], [2.0, 2.0, 5.0, 0.5]), ([-3.5], [1.0]), ([0.1, 20.0], [-1.0, -1.0])),
    references.nearest: (
        (_ROWS, [1.0, 0.1, 0.0], []), (_ROWS, [1.0, 0.1, 0.0], [0]), (_ROWS, [0.0, 0.5, 0.1], []),
        (_ROWS, [-1.0, -1.0, 1.0], []),
    ),
    references.normalised: (
        ([3.0, 4.0], [1.0, 1.0], 0.0), ([3.0, -4.0, 0.0], [1.0, 0.5, 2.0], 1e-5), ([1e-3, 0.0], [1.0, 1.0], 1e-2),
    ),
    references.rotated: (
        ([1.0, 0.0], 0, 10000.0), ([1.0, 0.0], 1, 10000.0), ([1.0, 2.0, 3.0, 4.0], 7, 10000.0),
        ([0.5, -1.0, 2.0, 0.0, 1.0, 1.0], 3, 500000.0),
    ),
    references.drawn: (
        (_LOGITS, 0.0, 0.9), (_LOGITS, 1.0, 0.0), (_LOGITS, 1.0, 0.5), (_LOGITS, 5.0, 0.95), (_LOGITS, 0.5, 0.999),
    ),
    references.kept: (
        (references.stacks("flan-t5-small"), 10, 1), (references.stacks("flan-t5-xxl"), 1000, 100),
        (references.stacks("flan-t5-xl"), 1, 512),
    ),
    references.cached: (
        ([1.0, 0.0], [1.0, 0.0], [5.0, 5.0], [], []), ([1.0, 0.0], _KEYS[2], _VALUES[2], _KEYS[:2], _VALUES[:2]),
        ([0.5, -2.0], [1.0, 1.0], [1.0, 2.0], _KEYS, _VALUES),
    ),
    # The bytes that a step reads, users per GPU, parameters and storage, and image guidance.
    references.decode_bytes: (
        (references.sizes("llama-3-8b"), 1), (references.sizes("llama-3-8b"), 2000),
        (references.sizes("llama-3-70b"), 8192),
    ),
    references.users: (
        (5.76e9, "llama-3-8b", 2000, 16), (5.76e9, "llama-3-8b", 1, 16), (5.76e9, "llama-3-8b", 2001, 16),
        (40e9, "llama-3-70b", 8192, 64), (1e8, "llama-3-70b", 8192, 16),
    ),
    references.paged: ((1, 16), (16, 16), (17, 16), (2000, 1), (1366, 256)),
    references.chunks: ((100, 32, 4), (64, 16, 1), (10, 64, 3), (300, 128, 8)),
    references.touched: ((128, 8, 1), (128, 8, 32), (8, 2, 4), (64, 6, 0), (256, 8, 1000)),
    references.parameters: tuple(
        (references.sizes(name),) for name in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b")
    ),
    references.stored_bytes: (
        (4096, 4096, 8, 4096, 16), (4096, 14336, 4, 32, 16), (10, 100, 4, 32, 16), (1, 1, 3, 128, 32),
    ),
    references.read_tensor: (
        (references.file_of({"weight": [1.0, -2.5, 0.125]}), "weight"),
        (references.file_of({"first": [3.0], "second": [0.5, 7.0]}), "second"),
        (references.file_of({"b": [1.0, 2.0, 3.0, 4.0], "a": [9.0]}), "b"),
    ),
    references.velocity: (([1.0, 0.0], [0.0, 0.0], 1.0), ([1.0, 2.0], [0.5, 3.0], 4.0), ([-1.0], [1.0], 1.5)),
    references.users_at_the_ridge: (
        (15.01e9, 15.01e9, 0.0, 312e12, 2e12), (15.01e9, 15.28e9, 67.1e6, 312e12, 2e12),
        (15.01e9, 16.06e9, 262.1e6, 312e12, 2e12), (139e9, 141e9, 84e6, 989e12, 3.35e12),
        (1e6, 1e12, 0.0, 1e12, 1e12),
    ),
    # Many requests to one GPU.
    references.in_time: (
        ([(0.0, 0.5, 1.5, 21), (1.0, 2.5, 3.0, 11), (2.0, 2.2, 8.2, 101)], 1.0, 0.05),
        ([(0.0, 1.0, 1.0, 1), (0.0, 0.25, 0.5, 2)], 1.0, 0.2),
        ([(0.0, 0.5, 9.5, 2), (3.0, 3.1, 3.2, 3)], 0.25, 10.0),
    ),
    references.finished: (
        ([0], [3], 10, 1), ([0, 0, 0], [1, 2, 3], 10, 1), ([0, 5, 100], [4, 2, 1], 10, 2),
        ([0, 12, 12, 13], [2, 2, 1, 5], 8, 4), ([7, 7], [1, 1], 5, 0),
    ),
    references.best_guesses: (
        (0.6, [6.32, 6.60, 6.62, 6.63, 6.65]), (0.3, [12.6, 14.4, 16.6, 18.8, 21.1]),
        (0.9, [12.6, 14.4, 16.6, 18.8, 21.1]),
        (0.0, [1.0, 1.0, 1.0]), (1.0, [1.0, 2.0, 2.9]), (0.5, [1.0]),
    ),
}  # fmt: skip
"""The cases of each exercise, by the function that computes the expected result with the engine."""

EXERCISES = {each.__name__: Exercise(each.__name__, cases, each) for each, cases in _CASES.items()}


def solution_of(exercise: Exercise) -> str:
    """Return the source text of our solution of an exercise."""
    return (FOLDER / exercise.file).read_text(encoding="utf-8")


def stub_of(exercise: Exercise) -> str:
    """Return the source text that the reader starts with: our solution without its function bodies."""
    text = solution_of(exercise)
    lines = text.splitlines()
    for node in reversed([node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]):
        first = node.body[1].lineno if ast.get_docstring(node) else node.body[0].lineno
        assert node.end_lineno is not None
        lines[first - 1 : node.end_lineno] = ['    raise NotImplementedError("write this function")']
    return "\n".join(lines) + "\n"


def read_function(exercise: Exercise, path: Path) -> Callable[..., object]:
    """Return the reader's function from a file.

    Raises:
        ValueError: If the file does not run or does not define the function. The message is one line.
    """
    again = f"`ridgeline lab exercise {exercise.name}`"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{path} is not a readable text file; {again} writes the file to start from") from None
    try:
        code = compile(text, str(path), "exec")
        namespace: dict[str, Any] = {"__name__": exercise.name}
        exec(code, namespace)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}{_line(error, path)}: {_error_text(error)}") from None
    if not callable(namespace.get(exercise.name)):
        raise ValueError(f"{path} has no function {exercise.name}; {again} writes a file that has it")
    return namespace[exercise.name]  # type: ignore[no-any-return]


def check(exercise: Exercise, function: Callable[..., object], path: Path) -> str:
    """Return a sentence about the first case in which a function and the engine differ; "" if they agree."""
    for case in exercise.cases:
        call = f"{exercise.name}({', '.join(map(_shown, case))})"
        wanted = exercise.engine(*deepcopy(case))
        try:
            given = function(*deepcopy(case))  # a copy, because the function may change its arguments
        except NotImplementedError:
            return f"{path} is not written yet; in the first call, {call}, the engine returns {_shown(wanted)}"
        except (Exception, SystemExit) as error:
            return f"{call} raises {_error_text(error)}{_line(error, path)}"
        if not same(given, wanted):
            return f"{call} returns {_shown(given)}, but the engine returns {_shown(wanted)}{_where(given, wanted)}"
    return ""


def same(given: object, wanted: object) -> bool:
    """Return whether two results are equal: numbers within fp32 rounding, containers element by element."""
    given, wanted = _plain(given), _plain(wanted)
    if isinstance(wanted, bool | str | bytes) or wanted is None:
        return type(given) is type(wanted) and given == wanted
    if isinstance(wanted, int | float):
        if not isinstance(given, int | float) or isinstance(given, bool):
            return False
        both_nan = math.isnan(given) and math.isnan(wanted)
        return both_nan or math.isclose(given, wanted, rel_tol=_WITHIN, abs_tol=_WITHIN)
    if isinstance(wanted, Set):
        return isinstance(given, Set) and given == wanted
    if isinstance(wanted, Mapping):
        return (
            isinstance(given, Mapping)
            and given.keys() == wanted.keys()
            and all(same(given[key], value) for key, value in wanted.items())
        )
    if not _is_sequence(given) or not _is_sequence(wanted) or len(given) != len(wanted):
        return False
    return all(same(one, other) for one, other in zip(given, wanted, strict=True))


def _plain(value: object) -> object:
    """Return an array, a tensor or a NumPy scalar as the corresponding Python value."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is compared element by element; text is not."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _shown(value: object) -> str:
    """Return a value as Python source, with six digits of a float and eight elements of a container."""
    if isinstance(value, np.generic):
        return _shown(value.item())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{_listed(map(_shown, value[:_ELEMENTS]), value)}]"
    if type(value) is tuple:
        comma = "," if len(value) == 1 else ""
        return f"({_listed(map(_shown, value[:_ELEMENTS]), value)}{comma})"
    if isinstance(value, set | frozenset) and value:
        shown = f"{{{_listed(sorted(map(_shown, islice(value, _ELEMENTS))), value)}}}"
        return shown if isinstance(value, set) else f"frozenset({shown})"
    if type(value) is dict:
        items = (f"{_shown(key)}: {_shown(item)}" for key, item in islice(value.items(), _ELEMENTS))
        return f"{{{_listed(items, value)}}}"
    return _represented(value)


def _listed(shown: Iterable[str], of: Sized) -> str:
    return ", ".join(shown) + (", ..." if len(of) > _ELEMENTS else "")


def _represented(value: object) -> str:
    """Return the `repr` of a value in one line of limited length; the `repr` of a reader's own class may fail."""
    try:
        shown = " ".join(repr(value).split())
    except Exception:
        return f"an object of {type(value).__name__}"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def _where(given: object, wanted: object) -> str:
    """Return the place where two results with equal text differ, like `; they differ at [9]: 2 instead of 3`.

    Return "" if their texts differ.
    """
    if _shown(given) != _shown(wanted):
        return ""
    given, wanted = _plain(given), _plain(wanted)
    if not _is_sequence(given) or not _is_sequence(wanted):
        return f"; their types are {type(given).__name__} and {type(wanted).__name__}"
    if len(given) != len(wanted):
        return f"; they have {len(given)} and {len(wanted)} elements"
    place = next(at for at, (one, other) in enumerate(zip(given, wanted, strict=True)) if not same(one, other))
    one, other = given[place], wanted[place]
    return f"; they differ at [{place}]: {_shown(one)} instead of {_shown(other)}{_where(one, other)}"


def _error_text(error: BaseException) -> str:
    """Return the type and the message of an error in one line."""
    says = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(says.split())}"


def _line(error: BaseException, path: Path) -> str:
    """Return the line of the reader's file in which an error occurred, like ` (line 12)`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    number = frames[-1].lineno if frames else getattr(error, "lineno", None)
    return f" (line {number})" if number else ""
