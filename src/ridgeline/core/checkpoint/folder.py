"""Checkpoint folders: one safetensors file, or several shards with or without an index."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ridgeline.core.checkpoint.safetensors_header import TensorEntry, data_offset, entry_width, read_header
from ridgeline.core.models.common.fields import ModelRefused, read_object
from ridgeline.util.host import out_of_memory, read_in_huge_pages
from ridgeline.util.untrusted import PointerFile, refuse_pointer

OWN_CONFIG = "use the checkpoint's own config.json, or fetch the checkpoint again"
"""The fix for tensors and a config that do not belong together, or an incomplete download."""

_WHOLE = ("model.safetensors", "diffusion_pytorch_model.safetensors")  # names in transformers and in diffusers
# The same weights in Mistral's and Meta's own layout, or in another number format (diffusers' variants).
_SECOND_COPY = re.compile(
    r"consolidated(\W.*)?\.safetensors|(diffusion_pytorch_)?model\.(fp16|bf16|fp32|non_ema)(-\d+-of-\d+)?\.safetensors"
)
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FLOATS = _DTYPES | {"F64": torch.float64}
_TORCH = _FLOATS | {
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_PIECE = 1 << 20
_PIECE_FLOATS = 1 << 17
_MAX_INDEX = 64 << 20  # bytes; the index of a model of 10^12 parameters has 10 MB
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,6})-of-(?P<total>\d{1,6})\.safetensors")
_MAX_SHARDS, _SHOWN = 10_000, 3
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a checkpoint (a folder, or a GGUF file in a subclass), with access to their bytes."""

    folder: Path
    entries: Mapping[str, TensorEntry]
    """The header entries (dtype, shape, offsets) of a checkpoint's tensors, by tensor name."""
    files: Mapping[str, Path]
    """The file that contains each tensor of a checkpoint, by tensor name."""

    def data_offset(self, file: BinaryIO) -> int:
        """Return the byte offset of the data section in an open checkpoint file that is positioned at its start.

        The entries count their bytes from this offset.
        """
        return data_offset(file)

    def same(self, first: str, second: str, dtype: torch.dtype) -> bool:
        """Return whether two tensors of a checkpoint have the same shape and the same bytes.

        Floats in different dtypes are cast to `dtype` first. Both tensors are read piece by piece and not mapped.
        """
        one, other = self.entries[first], self.entries[second]
        if one.shape != other.shape:
            return False
        if one.dtype == other.dtype:
            return all(a == b for a, b in zip(self.pieces(first), self.pieces(second), strict=True))
        if not {one.dtype, other.dtype} <= _FLOATS.keys():
            return False
        numbers = (self._cast_pieces(name, dtype) for name in (first, second))
        return all(torch.equal(a, b) for a, b in zip(*numbers, strict=True))

    def _cast_pieces(self, name: str, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the numbers of a tensor of plain floats in pieces, cast to a dtype."""
        kind = self.entries[name].dtype
        for piece in self.pieces(name, _PIECE_FLOATS * entry_width(kind)):
            yield torch.frombuffer(bytearray(piece), dtype=_FLOATS[kind]).to(dtype)

    def pieces(self, name: str, size: int = _PIECE) -> Iterator[bytes]:
        """Yield the bytes of a tensor in pieces of `size` bytes; the last piece can be shorter."""
        entry = self.entries[name]
        with self.files[name].open("rb") as file:
            file.seek(self.data_offset(file) + entry.begin)
            left = entry.end - entry.begin
            while left and (piece := file.read(min(left, size))):
                yield piece
                left -= len(piece)

    def read_raw(self, name: str) -> Tensor:
        """Read the bytes of a tensor into new memory, as uint8.

        Raises:
            ModelRefused: If the file is truncated.
        """
        entry = self.entries[name]
        held = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
        place, done = held.numpy(), 0
        for piece in self.pieces(name):
            place[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        if done < len(place):
            raise ModelRefused(f"{self.files[name]} is truncated in tensor {entry.name}; fetch it again")
        return held

    def from_bytes(self, name: str, raw: Tensor) -> Tensor:
        """Convert a tensor's bytes to the form that the model loads; bytes on meta give only shape and dtype."""
        entry = self.entries[name]
        return raw.view(_TORCH[entry.dtype]).view(entry.shape)

    def read(self, name: str) -> Tensor:
        """Read a tensor of a checkpoint into new memory.

        Raises:
            ModelRefused: If the file is truncated.
        """
        return self.from_bytes(name, self.read_raw(name))

    def on_meta(self, name: str) -> Tensor:
        """Return a tensor on meta, with its shape and dtype but without its numbers."""
        entry = self.entries[name]
        return self.from_bytes(name, torch.empty(entry.end - entry.begin, dtype=torch.uint8, device="meta"))

    @property
    def dtype(self) -> torch.dtype:
        """The plain float dtype that occupies the most bytes in a checkpoint, for models whose config states none.

        If that is fp64, the result is fp32.

        Raises:
            ModelRefused: If there are no plain floats.
        """
        held: dict[str, int] = {}
        for entry in self.entries.values():
            held[entry.dtype] = held.get(entry.dtype, 0) + entry.end - entry.begin
        floats = [name for name in held if name in _FLOATS]
        if not floats:
            raise ModelRefused(
                f"{self.folder} holds tensors in {', '.join(sorted(held)) or 'no format'}, but none in "
                f"{', '.join(_DTYPES)}; fetch weights that are not quantized"
            )
        return _DTYPES.get(max(floats, key=lambda name: held[name]), torch.float32)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors of a checkpoint."""
        return sum(entry.end - entry.begin for entry in self.entries.values())

    def tensors(self, *, mapped: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of a checkpoint with its name, file by file.

        Args:
            mapped: Whether to map the tensors. If not, each is read into new memory, for callers that store another
                form and want no page of the file to stay mapped.

        Raises:
            ModelRefused: If a file is not a valid safetensors file, or is truncated.
            MemoryError: If the system refuses the memory to map a file.
        """
        if not mapped:
            for name in self.entries:
                yield name, self.read(name)
            return
        for path in dict.fromkeys(self.files.values()):
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in file.keys():  # noqa: SIM118 - a safetensors handle, not a dict
                        if name not in self.entries:  # a source of a conversion
                            continue
                        tensor = file.get_tensor(name)
                        read_in_huge_pages(tensor.data_ptr(), tensor.nbytes)
                        yield name, tensor
            except (SafetensorError, OSError) as error:
                if (refused := out_of_memory(error)) is not None:
                    raise MemoryError(refused) from None
                raise ModelRefused(f"{path} is not a safetensors file: {error}; fetch it again") from None


class NoWeights(ModelRefused):
    """An error for a model folder without weights."""


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find the tensors of a checkpoint folder and validate its files.

    Raises:
        NoWeights: If the folder has no weights.
        ModelRefused: If a file is invalid or missing, or the weights are stored only as pickle.
    """
    paths = _files(folder)
    if not paths:
        if pickles := [path for pattern in _PICKLES for path in folder.glob(pattern)]:
            refuse_pointer(pickles[0])
            raise ModelRefused(
                f"{folder} holds its weights only as pickle, which can run code when opened; "
                "convert them to safetensors"
            )
        raise NoWeights(f"{folder} holds no *.safetensors file; fetch its weights")
    entries: dict[str, TensorEntry] = {}
    files: dict[str, Path] = {}
    for path in paths:
        for name, entry in read_header(path).items():
            if name in entries:
                raise ModelRefused(
                    f"{folder}: tensor {name} is in both {files[name].name} and {path.name}; "
                    "move away the file that does not belong to this checkpoint, or fetch both again"
                )
            entries[name], files[name] = entry, path
    return Checkpoint(folder, entries, files)


def refuse_names(checkpoint: Checkpoint, problem: str, names: list[str]) -> None:
    """Raise ModelRefused with the first few of these tensor names, if there are any."""
    if not names:
        return
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise ModelRefused(f"{checkpoint.folder} {problem}: {shown}{more}; {OWN_CONFIG}")


def leading_dtype(folder: Path) -> str | None:
    """Return the dtype of the first float tensor, by name, in the first file of a folder.

    transformers uses this dtype if a config states none. The result is None if there are no such weights or their files
    are broken.
    """
    try:
        paths = _files(folder)
        entries = read_header(paths[0]) if paths else {}
    except ModelRefused:  # the loader reports what is wrong with the weights
        return None
    kinds = (entries[name].dtype for name in sorted(entries))
    return next((str(_FLOATS[kind]).removeprefix("torch.") for kind in kinds if kind in _FLOATS), None)


def _files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: the shards of its index, or its single file, or otherwise all files.

    Raises:
        ModelRefused: If the index is invalid, a shard is missing, or there is another weight file, which would be
            ignored, and it is not a second copy as in known releases.
    """
    there = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    for whole in _WHOLE:
        index = folder / f"{whole}.index.json"
        if index.exists():
            wanted, reason = _indexed(index), f"{index.name} does not list it"
            break
        if folder / whole in there:
            wanted, reason = [folder / whole], f"the engine reads {whole}"
            break
    else:
        _refuse_missing(folder, _missing_by_number(there))
        return there
    beside = [path.name for path in there if path not in wanted and not _SECOND_COPY.fullmatch(path.name)]
    if beside:
        raise ModelRefused(f"{folder}: {beside[0]} holds weights that would be ignored ({reason}); move it away")
    return wanted


def _indexed(index: Path) -> list[Path]:
    """Return the weight files that an index lists; raise ModelRefused if the index is invalid or a file is missing."""
    try:
        files = read_object(index, _MAX_INDEX)["weight_map"].values()
        names: list[str] = sorted({name for name in files if isinstance(name, str)})
        if not names or len(names) != len(set(files)):
            raise ValueError("it maps no tensors to files")
    except PointerFile:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelRefused(f"{index} is not a safetensors index; fetch it again") from None
    for name in names:
        if Path(name).name != name or not name.isprintable():
            raise ModelRefused(
                f"{index} points outside its folder: {name!r}; put that shard next to the index and list it by its name"
            )
    _refuse_missing(index.parent, [name for name in names if not (index.parent / name).is_file()])
    return [index.parent / name for name in names]


def _missing_by_number(there: list[Path]) -> list[str]:
    """Return the names of missing weight files in a folder without an index, from the numbers in the other names."""
    numbered = [match for path in there if (match := _SHARD.fullmatch(path.name))]
    missing: list[str] = []
    for stem, total in dict.fromkeys((match["stem"], match["total"]) for match in numbered):
        held = {int(match["number"]) for match in numbered if (match["stem"], match["total"]) == (stem, total)}
        first, width = min(held | {1}), len(total)
        wanted = range(first, first + min(int(total), _MAX_SHARDS))
        missing += [f"{stem}-{n:0{width}}-of-{total}.safetensors" for n in wanted if n not in held]
    return missing


def _refuse_missing(folder: Path, shards: list[str]) -> None:
    """Raise ModelRefused that names the first missing weight files, if there are any."""
    if not shards:
        return
    more = f" and {len(shards) - _SHOWN} more" if len(shards) > _SHOWN else ""
    shard, them = ("shard", "it") if len(shards) == 1 else ("shards", "them")
    raise ModelRefused(f"{folder} lacks the {shard} {', '.join(shards[:_SHOWN])}{more}; fetch {them} again")
