"""A check of checkpoint shards: each must exist, be complete and hold exactly the tensors that the index lists."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.core.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.core.checkpoint.safetensors_header import read_header
from ridgeline.core.models.common.fields import ModelRefused, read_object
from ridgeline.insight.check.check_report import few

_INDEX, _MAX_INDEX = "model.safetensors.index.json", 64 << 20  # bytes; the index of 10^12 parameters has 10 MB
_NAMES_SHOWN = 3


def check_files(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Open the checkpoint of a folder after a check of its files, and return it with the problems of the files.

    The checkpoint is None if there are problems.
    """
    problems = list(_against_index(folder))
    if problems:
        return None, problems
    try:
        return open_checkpoint(folder), []
    except ModelRefused as refused:
        return None, [str(refused)]


def _against_index(folder: Path) -> Iterator[str]:
    """Yield the problems of each shard that the index lists.

    If the index itself is invalid, the loader reports that.
    """
    index = folder / _INDEX
    if not index.is_file():
        return
    try:
        listed = read_object(index, _MAX_INDEX).get("weight_map")
    except ModelRefused:
        return
    if isinstance(listed, Mapping) and all(
        isinstance(file, str) and Path(file).name == file for file in listed.values()
    ):
        yield from few(
            (problem for file in sorted(set(listed.values())) for problem in _shard(folder, file, listed)), "files"
        )


def _shard(folder: Path, file: str, listed: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of one checkpoint shard: missing, unreadable, or not as the index lists it."""
    path = folder / file
    if not path.is_file():
        yield f"{file} is missing, and {_INDEX} lists it; fetch it again"
        return
    try:
        held = read_header(path).keys()
    except ModelRefused as refused:
        yield str(refused)
        return
    wanted = {name for name, place in listed.items() if place == file}
    if lacking := sorted(wanted - held):
        yield f"{file} lacks {_some(lacking)}, which {_INDEX} says it holds; fetch both again"
    if beyond := sorted(held - wanted):
        yield f"{file} holds {_some(beyond)}, which {_INDEX} does not list there; fetch both again"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{', '.join(names[:_NAMES_SHOWN])}{more}"
