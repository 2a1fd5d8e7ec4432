"""A checkpoint folder: one safetensors file, or shards under an index."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ridgeline.checkpoint.header import TensorEntry, read_header
from ridgeline.models.fields import ModelRefused

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a folder by name: their entries, and the file of each."""

    folder: Path
    entries: Mapping[str, TensorEntry]
    files: Mapping[str, Path]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.end - entry.begin for entry in self.entries.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor, memory-mapped, file by file."""
        for path in dict.fromkeys(self.files.values()):
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in file.keys():  # noqa: SIM118 - a safetensors handle, not a dict
                        yield name, file.get_tensor(name)
            except SafetensorError as error:
                raise ModelRefused(f"{path} is no safetensors file: {error}; fetch it again") from None


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find the tensors of a folder and check their files. Raises ModelRefused."""
    index = folder / "model.safetensors.index.json"
    paths = _indexed(index) if index.exists() else sorted(p for p in folder.glob("*.safetensors") if p.is_file())
    if not paths:
        if any(path for pattern in _PICKLES for path in folder.glob(pattern)):
            raise ModelRefused(
                f"{folder} holds its weights as pickle only, which can run code when opened; convert it to safetensors"
            )
        raise ModelRefused(f"{folder} holds no *.safetensors file; --dummy-weights runs a config without weights")
    entries: dict[str, TensorEntry] = {}
    files: dict[str, Path] = {}
    for path in paths:
        for name, entry in read_header(path).items():
            if name in entries:
                raise ModelRefused(f"{folder}: tensor {name} is in both {files[name].name} and {path.name}")
            entries[name], files[name] = entry, path
    return Checkpoint(folder, entries, files)


def _indexed(index: Path) -> list[Path]:
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        names: list[str] = sorted({name for name in files if isinstance(name, str)})
        if not names or len(names) != len(set(files)):
            raise ValueError("it maps no tensors to files")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelRefused(f"{index} is not a safetensors index; fetch it again") from None
    for name in names:
        if Path(name).name != name or not name.isprintable():
            raise ModelRefused(f"{index} points outside its folder: {name!r}")
        if not (index.parent / name).is_file():
            raise ModelRefused(f"{index.parent} lacks the shard {name}; fetch it again")
    return [index.parent / name for name in names]
