"""The cache of huggingface_hub: models that another tool has fetched, found by their id. Nothing is downloaded here.

Its layout (huggingface_hub's guide "Understand caching"): models--ORG--NAME/refs/main holds a commit,
models--ORG--NAME/snapshots/COMMIT the files.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ridgeline.core.models.common.fields import ModelRefused

_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PREFIX, _BETWEEN = "models--", "--"
_COMMIT = re.compile(r"[\w-]+", re.ASCII)  # what is no name of a child folder leads nowhere else
_LONGEST_REF = 100


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps models, by its environment variables."""
    if stated := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(stated).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{caches}/huggingface"
    return Path(home).expanduser() / "hub"


def is_id(name: str) -> bool:
    """Whether it reads as a model's id at Hugging Face, ORG/NAME."""
    return _ID.fullmatch(name) is not None and not name.startswith(".")


def cached_ids(cache: Path) -> list[str]:
    """The ids of the models in a cache, sorted."""
    folders = cache.glob(f"{_PREFIX}*") if cache.is_dir() else ()
    return sorted(folder.name.removeprefix(_PREFIX).replace(_BETWEEN, "/", 1) for folder in folders)


def cached_folder(name: str, cache: Path) -> Path | None:
    """The snapshot of a model in a cache, by its id or by the name of its folder there; None if it is not there.
    Raises ModelRefused as `snapshot_of`.
    """
    if not name.startswith(_PREFIX) and not is_id(name):
        return None
    folder = cache / (name if name.startswith(_PREFIX) else _PREFIX + name.replace("/", _BETWEEN))
    return snapshot_of(folder) if is_repository(folder) else None


def is_repository(folder: Path) -> bool:
    """Whether a folder is a model's in such a cache, with snapshots in it."""
    return folder.name.startswith(_PREFIX) and (folder / "snapshots").is_dir()


def snapshot_of(repository: Path) -> Path:
    """The snapshot that refs/main names, or the only one. Raises ModelRefused where that does not say which."""
    snapshots = repository / "snapshots"
    main = repository / "refs" / "main"
    if main.is_file():
        commit = main.read_bytes()[:_LONGEST_REF].decode("ascii", "replace").strip()
        if _COMMIT.fullmatch(commit) and (snapshots / commit).is_dir():
            return snapshots / commit
        raise ModelRefused(
            f"{main} names a snapshot that is not there; fetch the model again, or give the folder of one"
        )
    found = sorted(path for path in snapshots.iterdir() if path.is_dir())
    if len(found) != 1:
        raise ModelRefused(f"{repository} has {len(found)} snapshots and no refs/main; give the folder of one of them")
    return found[0]
