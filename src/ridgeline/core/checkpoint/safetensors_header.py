"""Reading and validation of the header of a safetensors file before any tensor is mapped.

The format: 8 bytes little-endian length, a JSON header of that length, then the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors). The library maps the tensors but does not always name the faulty one, so this
module checks the entries.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.util.untrusted import refuse_pointer, unique_names

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the limit that the format's own library has
_MAX_DIMENSIONS, _MAX_BYTES = 64, 1 << 63
_WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


def entry_width(dtype: str) -> int:
    """Return the bytes per number of a dtype, given by its name in safetensors."""
    return _WIDTHS[dtype]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as described in the header of its file.

    `begin` and `end` are byte offsets from the start of the data, or in a GGUF file from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensor entries of a safetensors file by name.

    Raises:
        ModelRefused: If the file cannot be read or its header is invalid. The message names the file and the fault, and
            the tensor if one is at fault.
    """
    refuse_pointer(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            raw = _read_raw(path, file, size)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror}") from None
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_names)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ModelRefused(f"{path} has a broken safetensors header; fetch it again")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    _check_layout(path, list(entries.values()), size - _LENGTH_BYTES - len(raw))
    return entries


def data_offset(file: BinaryIO) -> int:
    """Return the byte offset of the data section in an open safetensors file that is positioned at its start."""
    (length,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
    return _LENGTH_BYTES + int(length)


def _read_raw(path: Path, file: BinaryIO, size: int) -> bytes:
    """Return the JSON header of a safetensors file as bytes; raise ModelRefused if it is truncated or too long."""
    start = file.read(_LENGTH_BYTES)
    if len(start) < _LENGTH_BYTES:
        raise ModelRefused(f"{path} is truncated: {size} bytes hold no safetensors header; fetch it again")
    (length,) = struct.unpack("<Q", start)
    if length > min(size - _LENGTH_BYTES, _MAX_HEADER):
        raise ModelRefused(
            f"{path} is truncated or not a safetensors file: its header claims {length} bytes of {size}; fetch it again"
        )
    return file.read(length)


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    """Return one entry of a safetensors header; raise ModelRefused if it is malformed."""
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if (
            name.isprintable()
            and len(shape) <= _MAX_DIMENSIONS
            and all(type(n) is int and 0 <= n < _MAX_BYTES for n in (*shape, begin, end))
        ):
            return TensorEntry(name, dtype, tuple(shape), begin, end)
    raise ModelRefused(f"{path}: tensor {name!r} lacks a valid dtype, shape or data_offsets; fetch it again")


def _check_layout(path: Path, entries: list[TensorEntry], data_bytes: int) -> None:
    """Raise ModelRefused if tensors have an unknown dtype or a wrong size, overlap, or do not fill the file."""
    previous, reached = "", 0
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.dtype not in _WIDTHS:
            raise ModelRefused(f"{path}: tensor {entry.name} has the unknown dtype {entry.dtype!r}; fetch it again")
        wanted = math.prod(entry.shape) * _WIDTHS[entry.dtype]
        if entry.end - entry.begin != wanted:
            held = entry.end - entry.begin
            raise ModelRefused(
                f"{path}: tensor {entry.name} {list(entry.shape)} needs {wanted} bytes, but its data_offsets "
                f"span {held}; fetch it again"
            )
        if entry.end > data_bytes:
            raise ModelRefused(
                f"{path} is truncated: tensor {entry.name} ends at byte {entry.end} of {data_bytes}; fetch it again"
            )
        if entry.begin < reached:
            raise ModelRefused(f"{path}: tensors {previous} and {entry.name} overlap; fetch it again")
        if entry.begin > reached:
            raise ModelRefused(
                f"{path}: bytes {reached} to {entry.begin}, before tensor {entry.name}, belong to no tensor; "
                "fetch it again"
            )
        previous, reached = entry.name, entry.end
    if reached < data_bytes:
        raise ModelRefused(
            f"{path}: bytes {reached} to {data_bytes}, after the last tensor, belong to no tensor; fetch it again"
        )
