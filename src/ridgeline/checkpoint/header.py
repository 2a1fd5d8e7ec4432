"""The header of a safetensors file, checked before anything is mapped.

The format: 8 bytes little-endian length, a JSON header of that length, then the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors). The library maps the tensors; it does not always name the one that is wrong,
so names are checked here.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.models.fields import ModelRefused

_LENGTH_BYTES = 8
_MOST_HEADER = 100_000_000  # the limit that the format's own library has
_WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as its file's header describes it; `begin` and `end` are bytes from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file. Raises ModelRefused naming the file, the tensor and what is wrong with it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        if len(start) < _LENGTH_BYTES:
            raise ModelRefused(f"{path} is truncated: {size} bytes hold no safetensors header; fetch it again")
        (length,) = struct.unpack("<Q", start)
        if length > min(size - _LENGTH_BYTES, _MOST_HEADER):
            raise ModelRefused(
                f"{path} is truncated or no safetensors file: its header claims {length} bytes of {size}"
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        entries = {name: _entry(name, value) for name, value in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelRefused(f"{path} has a broken safetensors header; fetch it again") from None
    _check_layout(path, list(entries.values()), size - _LENGTH_BYTES - length)
    return entries


def _entry(name: str, value: dict[str, Any]) -> TensorEntry:
    begin, end = value["data_offsets"]
    shape = tuple(int(n) for n in value["shape"])
    return TensorEntry(name, str(value["dtype"]), shape, int(begin), int(end))


def _check_layout(path: Path, entries: list[TensorEntry], data_bytes: int) -> None:
    previous: TensorEntry | None = None
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.dtype not in _WIDTHS:
            raise ModelRefused(f"{path}: tensor {entry.name} has the unknown dtype {entry.dtype}")
        wanted = math.prod(entry.shape) * _WIDTHS[entry.dtype]
        if entry.begin < 0 or entry.end - entry.begin != wanted:
            held = entry.end - entry.begin
            raise ModelRefused(
                f"{path}: tensor {entry.name} {list(entry.shape)} needs {wanted} bytes, its place has {held}"
            )
        if entry.end > data_bytes:
            raise ModelRefused(
                f"{path} is truncated: tensor {entry.name} ends at byte {entry.end} of {data_bytes}; fetch it again"
            )
        if previous is not None and entry.begin < previous.end:
            raise ModelRefused(f"{path}: tensors {previous.name} and {entry.name} overlap; fetch it again")
        previous = entry
