"""Files that strangers wrote, read within bounds: size, nesting, and one line when something is wrong.

Whoever reads a JSON or TOML file that came with a model or from a user reads it here, so that no caller meets a
RecursionError or a file that fills the memory.
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
"""Largest JSON file; the largest tokenizer.json in use has 35 MB."""
MAX_TOML_BYTES = 1 << 20
"""Largest TOML file: its reader takes about a second for it."""
MAX_DEPTH = 64
"""Deepest nesting of lists and objects."""
MAX_VALUES = 200_000
"""The most values that a request may have: objects, lists, and entries of either."""

_Value = TypeVar("_Value")


class ModelRefused(ValueError):
    """A folder or config that cannot become a model. The message names the thing and the fix."""


class PointerFile(ModelRefused):
    """A file that holds a Git LFS pointer instead of its content, because Git LFS did not fetch it."""


_MAX_POINTER = 1024  # bytes, by the specification
_POINTERS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")


def refuse_pointer(path: Path) -> None:
    """Refuse a file that is a Git LFS pointer (git-lfs/docs/spec.md). Raises PointerFile; a file that cannot be read
    is left to its reader.
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
    """The value in a JSON file of at most `most` bytes. `unique`: refuse an object that has a name twice.

    Raises ValueError in one line that names the file and what is wrong; the fix is the caller's to name.
    """
    text = _read(path, most, "JSON")
    try:
        with without_collecting():
            value = json.loads(text, object_pairs_hook=unique_names if unique else None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {_reason(error)}") from None
    return _shallow(path, value)


def read_object(path: Path, most: int = MAX_BYTES, *, unique: bool = False) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError as `read_json`, and for any other value."""
    value = read_json(path, most, unique=unique)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises ValueError as `read_json`."""
    text = _read(path, MAX_TOML_BYTES, "TOML")
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {_reason(error)}") from None
    return _shallow(path, value)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, for `json.loads(..., object_pairs_hook=...)`. Raises ValueError where it has a name twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name is there twice")
    return values


def first_line(error: BaseException, most: int = 200) -> str:
    """What an error says, in one line."""
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
        raise ValueError(f"{path} has more than {most >> 20} MiB, more than a file of its kind")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not valid {kind}: it is not text in UTF-8") from None


def _shallow(path: Path, value: _Value) -> _Value:
    """The value itself, if it is not nested too deep for what walks through it later."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH + 1):
        # The readers make exact dicts and lists; comparing classes is three times as fast for 150,000 merges.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ is dict or inner.__class__ is list
        ]
        if not level:
            return value
    raise ValueError(f"{path} is nested deeper than {MAX_DEPTH}")


def outside_strings(data: bytes) -> NDArray[np.uint8]:
    """Return the bytes of a JSON text that are in none of its strings.

    The text may be no JSON at all. One pass without recursion; it holds Python's lock for a fraction of its time.
    """
    plain, inside = _strings(data)
    return plain[~inside]


def _strings(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the bytes of a JSON text, with escaped quotes blanked out, and which of them are in a string."""
    # An escaped quote does not end a string; once those are gone, every second stretch between quotes is a string.
    plain = np.frombuffer(data.replace(b"\\\\", b"__").replace(b'\\"', b"__"), dtype=np.uint8)
    return plain, np.logical_xor.accumulate(plain == ord('"'))


def crowded(data: bytes, most: int = MAX_VALUES, most_items: int = 0) -> bool:
    """Return whether a JSON text has more than `most` values, without decoding it.

    Counts in the raw bytes first, which is exact enough for almost every text. Only a text that has too many by that
    count is looked at again without its strings, which may be full of commas.

    Args:
        data: the text, which may be no JSON at all.
        most: the limit of lists, objects and names together, and of lists, objects and commas together.
        most_items: a higher limit of lists, objects and commas together, for lists of many numbers.
    """
    most_items = max(most, most_items)
    return _crowded(np.frombuffer(data, np.uint8), most, most_items) and _crowded(
        outside_strings(data), most, most_items
    )


def _crowded(plain: NDArray[np.uint8], most: int, most_items: int) -> bool:
    lists, objects, names, commas = (int(np.count_nonzero(plain == mark)) for mark in b"[{:,")
    return lists + objects + names > most or lists + objects + commas > most_items


def crowded_field(data: bytes) -> str | None:
    """Return the name of the field that holds most values of a JSON object; None if none has more than half."""
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
    """Keep Python's garbage collector off while many objects are made that are all in use.

    It would go through all of them again and again: half of the time of a large file, and seconds of a request that
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
    return f"nested deeper than {MAX_DEPTH}" if isinstance(error, RecursionError) else first_line(error)
