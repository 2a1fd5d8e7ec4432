"""Reading and validation of a GGUF file header before any of it is used.

The format (ggml/docs/gguf.md): magic, version, number of tensors and number of metadata pairs; the pairs, each a key, a
type and a value; for each tensor a name, its dimensions (the innermost first), its type and the offset of its data
after the header. The `gguf` package defines the types and their block sizes. This module does not use its reader, which
trusts every count, and takes 20 s and 500 MiB for a vocabulary of 150,000 tokens.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ridgeline.core.checkpoint.safetensors_header import TensorEntry
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.util.untrusted import refuse_pointer

SUFFIX = ".gguf"
MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER = 100_000_000  # bytes, as in safetensors; 256,000 tokens with scores and types take 8 MB
_MAX_NAME, _MAX_DIMENSIONS = 64, 4  # ggml's limits for a tensor
_MAX_NUMBERS = 1 << 62
_LEAST_PAIR, _LEAST_TENSOR = 13, 24  # minimum bytes of a metadata pair and of a tensor description
_NUMBERS: Mapping[int, str] = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFHeader:
    """The metadata and the tensor entries of a GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """The metadata of a GGUF file by key: numbers, strings, and lists of them."""
    tensors: Mapping[str, TensorEntry]
    """The tensor entries of a GGUF file in file order.

    `dtype` is ggml's name of the type, `begin` and `end` are byte offsets from the start of the file, and a shape has
    its outermost dimension first.
    """


def is_gguf(path: Path) -> bool:
    """Return whether a file has the suffix or the magic bytes of GGUF.

    Raises:
        ModelRefused: If the file cannot be read.
    """
    if path.suffix.lower() == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror}") from None


def package(path: Path) -> ModuleType:
    """Return the `gguf` Python package.

    Raises:
        ModelRefused: If it is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise ModelRefused(
            f"{path} is a GGUF file, which needs the package gguf: pip install 'ridgeline[gguf]'"
        ) from None
    module: ModuleType = gguf
    return module


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read and validate the header of a GGUF file.

    Raises:
        ModelRefused: If the `gguf` package is not installed, the file cannot be read, or its header is invalid. The
            message names the file and the fault, and the key or tensor if one is at fault.
    """
    refuse_pointer(path)
    types = package(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelRefused(f"{path} is truncated: {size} bytes hold no GGUF header; fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data, types).header()
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror}") from None


class _Reader:
    """A reader that parses a GGUF header once and never reads beyond the file."""

    def __init__(self, path: Path, data: mmap.mmap, types: ModuleType) -> None:
        self.path, self.data, self.types = path, data, types
        self.at, self.end = 0, min(len(data), _MAX_HEADER)

    def header(self) -> GGUFHeader:
        """Read the complete header of a GGUF file."""
        if self.bytes(4) != MAGIC:
            raise ModelRefused(f"{self.path} is not a GGUF file: it does not begin with GGUF; fetch it again")
        version = self.number("<I")
        if version not in _VERSIONS:
            raise ModelRefused(
                f"{self.path} has GGUF version {version}; only little-endian files of versions 2 and 3 are supported"
            )
        tensors, pairs = self.count("tensors", _LEAST_TENSOR), self.count("pairs of metadata", _LEAST_PAIR)
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self.text("a key")
            if key in metadata:
                raise ModelRefused(f"{self.path}: metadata {key!r} occurs twice; fetch it again")
            metadata[key] = self.value(key)
        described = [self.tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise ModelRefused(
                f"{self.path}: general.alignment is {alignment!r}; it must be a power of 2 and at least 8"
            )
        first = -(-self.at // alignment) * alignment
        entries: dict[str, TensorEntry] = {}
        for name, kind, shape, offset in described:
            if name in entries:
                raise ModelRefused(f"{self.path}: tensor {name} occurs twice; fetch it again")
            entries[name] = self.entry(name, kind, shape, offset, first, alignment)
        self.check_apart(list(entries.values()))
        return GGUFHeader(self.path, metadata, entries)

    def bytes(self, count: int) -> bytes:
        """Read the next `count` bytes of a GGUF header; raise ModelRefused if the header ends before."""
        if count > self.end - self.at:
            raise ModelRefused(
                f"{self.path} is truncated or broken: its header claims {count} bytes at byte {self.at} of {self.end}; "
                "fetch it again"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        """Read the next integer of a GGUF header."""
        (found,) = struct.unpack(form, self.bytes(struct.calcsize(form)))
        return int(found)

    def count(self, what: str, least: int) -> int:
        """Read the number of items that follow in a GGUF header; each occupies at least `least` bytes."""
        found = self.number("<Q")
        if found * least > self.end - self.at:
            raise ModelRefused(
                f"{self.path} is truncated or broken: its header claims {found} {what}, but only {self.end - self.at} "
                "bytes are left; fetch it again"
            )
        return found

    def text(self, what: str) -> str:
        """Read the next string of a GGUF header."""
        start = self.at
        raw = self.bytes(self.count("characters", 1))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ModelRefused(f"{self.path}: {what} at byte {start} is not UTF-8; fetch it again") from None

    def value(self, key: str) -> Any:
        """Read the value of a GGUF metadata key."""
        kind = self.number("<I")
        if kind == _STRING:
            return self.text(f"metadata {key!r}")
        if kind in _NUMBERS:
            return self.numbers(kind, 1)[0]
        if kind != _ARRAY:
            raise ModelRefused(f"{self.path}: metadata {key!r} has the unknown type {kind}; fetch it again")
        inner = self.number("<I")
        if inner == _STRING:
            return [self.text(f"metadata {key!r}") for _ in range(self.count("strings", 8))]
        if inner not in _NUMBERS:
            raise ModelRefused(f"{self.path}: metadata {key!r} is a list with the unknown type {inner}; fetch it again")
        return self.numbers(inner, self.count("numbers", np.dtype(_NUMBERS[inner]).itemsize))

    def numbers(self, kind: int, count: int) -> list[Any]:
        """Read several numbers of one type from a GGUF header as Python numbers."""
        form = np.dtype(_NUMBERS[kind])
        found: list[Any] = np.frombuffer(self.bytes(count * form.itemsize), form).tolist()
        return found

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Read the description of a GGUF tensor: name, type, shape, offset."""
        name, dimensions = self.text("a tensor's name"), self.number("<I")
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME or not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ModelRefused(
                f"{self.path}: tensor {name[:_MAX_NAME]!r} has {dimensions} dimensions, which is not valid; "
                "fetch it again"
            )
        sizes = struct.unpack(f"<{dimensions}Q", self.bytes(8 * dimensions))
        return name, self.number("<I"), tuple(reversed(sizes)), self.number("<Q")

    def entry(
        self, name: str, kind: int, shape: tuple[int, ...], offset: int, first: int, alignment: int
    ) -> TensorEntry:
        """Return the entry of a GGUF tensor; `first` is the byte offset of the data section."""
        try:
            known = self.types.GGMLQuantizationType(kind)
            numbers, nbytes = self.types.GGML_QUANT_SIZES[known]
        except (ValueError, KeyError):
            raise ModelRefused(f"{self.path}: tensor {name} has the unknown type {kind}") from None
        count = math.prod(shape)
        if not 0 < count < _MAX_NUMBERS or shape[-1] % numbers or offset % alignment:
            raise ModelRefused(
                f"{self.path}: tensor {name} {list(shape)} at offset {offset} cannot be stored in {known.name} "
                f"(blocks of {numbers}, alignment {alignment}); fetch it again"
            )
        begin = first + offset
        end = begin + count // numbers * nbytes
        if end > len(self.data):
            raise ModelRefused(
                f"{self.path} is truncated: tensor {name} ends at byte {end} of {len(self.data)}; fetch it again"
            )
        return TensorEntry(name, known.name, shape, begin, end)

    def check_apart(self, entries: list[TensorEntry]) -> None:
        """Raise ModelRefused if tensors of a GGUF file overlap."""
        ordered = sorted(entries, key=lambda entry: entry.begin)
        for before, after in pairwise(ordered):
            if after.begin < before.end:
                raise ModelRefused(f"{self.path}: tensors {before.name} and {after.name} overlap; fetch it again")
