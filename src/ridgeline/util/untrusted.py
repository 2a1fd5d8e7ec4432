"""The reading of untrusted JSON and TOML, with bounds on size and nesting and one-line errors.

All code that reads such a file of a model or of a user uses this module, so that no caller gets a RecursionError or
runs out of memory.
"""

import gc
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 1 << 28
"""The most bytes of a JSON file; the largest tokenizer.json in use has 35 MB."""
MAX_TOML_BYTES = 1 << 20
"""The most bytes of a TOML file, which take about a second to parse."""
MAX_DEPTH = 64
"""The deepest nesting of lists and objects in a file."""
MAX_VALUES = 200_000
"""The default limit of `crowded` on the values of a JSON text: objects, lists, and their entries."""

_Value = TypeVar("_Value")


class ModelRefused(ValueError):
    """The error for a folder, config or chat template that is unusable, or for a use that a model does not support.

    The message names the problem, and usually the fix.
    """


class PointerFile(ModelRefused):
    """The error for a file that contains a Git LFS pointer, because Git LFS did not fetch its content."""


_MAX_POINTER = 1024  # bytes, according to the specification
_POINTERS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")


def refuse_pointer(path: Path) -> None:
    """Raise PointerFile if a file is a Git LFS pointer (git-lfs/docs/spec.md); ignore an unreadable file.

    The code that reads the file later reports that it is unreadable.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_MAX_POINTER + 1)
    except OSError:
        return
    _refuse_pointer(path, start)


def _refuse_pointer(path: Path, data: bytes) -> None:
    if len(data) <= _MAX_POINTER and data.startswith(_POINTERS):
        raise PointerFile(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in its repository")


def read_json(path: Path, most: int = MAX_BYTES, *, unique: bool = False) -> Any:
    """Return the value in a JSON file.

    Args:
        path: The file.
        most: The most bytes of the file.
        unique: Whether an object with a repeated name is an error.

    Raises:
        ValueError: If the file cannot be read or is invalid. The message is one line that names the file and the
            problem; the caller adds the fix.
    """
    text = _read(path, most, "JSON")
    try:
        with without_collecting():
            value = json.loads(text, object_pairs_hook=unique_names if unique else None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {_reason(error)}") from None
    return _shallow(path, value)


def read_object(path: Path, most: int = MAX_BYTES, *, unique: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file; it raises ValueError as `read_json` does, and for any other value."""
    value = read_json(path, most, unique=unique)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file; it raises ValueError as `read_json` does."""
    text = _read(path, MAX_TOML_BYTES, "TOML")
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {_reason(error)}") from None
    return _shallow(path, value)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object for `json.loads(..., object_pairs_hook=...)`; raise ValueError if a name is repeated."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name occurs twice")
    return values


def first_line(error: BaseException, most: int = 200) -> str:
    """Return the first non-empty line of an error's message, or else its class name, cut to `most` characters."""
    lines = str(error).split("\n")
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)[:most]


def _read(path: Path, most: int, kind: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    _refuse_pointer(path, data)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most >> 20} MiB, the limit for a file of its kind")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not valid {kind}: it is not UTF-8 text") from None


def _shallow(path: Path, value: _Value) -> _Value:
    """Return the value if its nesting is not too deep for later code that walks through it; else raise ValueError."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH + 1):
        # Parsers create exact dicts and lists; comparing classes is three times as fast for 150,000 merges.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ is dict or inner.__class__ is list
        ]
        if not level:
            return value
    raise ValueError(f"{path} is nested deeper than {MAX_DEPTH} levels")


def outside_strings(data: bytes) -> NDArray[np.uint8]:
    """Return the bytes of a JSON text that are outside of its strings, and the closing quote of each string.

    The text may be invalid JSON. The function takes linear time without recursion, and holds the GIL for a fraction of
    its time.
    """
    plain, inside = _strings(data)
    return plain[~inside]


def _strings(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the bytes of a JSON text with escaped quotes blanked out, and a mask of those inside strings.

    The opening quote of a string counts as inside, the closing one as outside.
    """
    # Escaped quotes do not end strings. Without them, every second interval between quotes is a string.
    plain = np.frombuffer(data.replace(b"\\\\", b"__").replace(b'\\"', b"__"), dtype=np.uint8)
    return plain, np.logical_xor.accumulate(plain == ord('"'))


def crowded(data: bytes, most: int = MAX_VALUES, most_items: int = 0) -> bool:
    """Return whether a JSON text has more than `most` values, by counting punctuation instead of decoding it.

    It first counts in the raw bytes, which is accurate enough for almost every text. Only a text with too many by that
    count is counted again without its strings, which may be full of commas.

    Args:
        data: The text, which may be invalid JSON.
        most: The most lists, objects and object keys in total, and the most lists, objects and commas in total.
        most_items: A higher limit for lists, objects and commas in total, for lists of many numbers.
    """
    most_items = max(most, most_items)
    return _crowded(np.frombuffer(data, np.uint8), most, most_items) and _crowded(
        outside_strings(data), most, most_items
    )


def _crowded(plain: NDArray[np.uint8], most: int, most_items: int) -> bool:
    lists, objects, names, commas = (int(np.count_nonzero(plain == mark)) for mark in b"[{:,")
    return lists + objects + names > most or lists + objects + commas > most_items


def crowded_field(data: bytes) -> str | None:
    """Return the name of the field with more than half of the values of a JSON object, or None if there is none.

    The result is also None if the name has more than 64 characters, or any but ASCII letters and underscores.
    """
    plain, inside = _strings(data)
    plain = np.where(inside, ord(" "), plain)
    depth = np.cumsum(np.isin(plain, list(b"[{")).astype(np.int8) - np.isin(plain, list(b"]}")), dtype=np.int32)
    starts = np.flatnonzero((depth == 1) & np.isin(plain, list(b"{,")))
    if not len(starts):
        return None
    values = np.add.reduceat(np.isin(plain, list(b"[{,")), starts, dtype=np.int64)
    largest = int(values.argmax())
    name = _NAME.match(data, int(starts[largest]))
    return name[1].decode() if name is not None and 2 * values[largest] > values.sum() else None


_NAME = re.compile(rb'[{,]\s*"([A-Za-z_]{1,64})"\s*:')


@contextmanager
def without_collecting() -> Iterator[None]:
    """Turn off Python's garbage collector inside the `with` block, in which many long-lived objects are created.

    The collector would scan all of them repeatedly: half of the time for a large file, and seconds for a request that
    holds a million lists.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _reason(error: ValueError | RecursionError) -> str:
    return f"nested deeper than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else first_line(error)
