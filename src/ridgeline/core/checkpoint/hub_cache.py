"""Access to the cache of huggingface_hub: finds models there that another tool has downloaded, and downloads nothing.

Its layout (huggingface_hub's guide "Understand caching"): models--ORG--NAME/refs/main contains a commit, and
models--ORG--NAME/snapshots/COMMIT the files.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ridgeline.core.models.common.fields import ModelRefused

_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PREFIX, _BETWEEN = "models--", "--"
_COMMIT = re.compile(r"[\w-]+", re.ASCII)  # no separators or dots, so that no path leaves the folder
_LONGEST_REF = 100


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which huggingface_hub stores models, from its environment variables."""
    if stated := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(stated).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{caches}/huggingface"
    return Path(home).expanduser() / "hub"


def is_id(name: str) -> bool:
    """Return whether a name has the form of a Hugging Face model id, ORG/NAME."""
    return _ID.fullmatch(name) is not None and not name.startswith(".")


def cached_ids(cache: Path) -> list[str]:
    """Return the ids of the models in a Hugging Face cache, sorted."""
    folders = cache.glob(f"{_PREFIX}*") if cache.is_dir() else ()
    return sorted(folder.name.removeprefix(_PREFIX).replace(_BETWEEN, "/", 1) for folder in folders)


def cached_folder(name: str, cache: Path) -> Path | None:
    """Return the snapshot of a cached model, by its id or its folder name in the cache; None if it is not cached.

    Raises:
        ModelRefused: If the snapshot is ambiguous or missing.
    """
    if not name.startswith(_PREFIX) and not is_id(name):
        return None
    folder = cache / (name if name.startswith(_PREFIX) else _PREFIX + name.replace("/", _BETWEEN))
    return snapshot_of(folder) if is_repository(folder) else None


def is_repository(folder: Path) -> bool:
    """Return whether a folder is a model's folder in a Hugging Face cache, with snapshots."""
    return folder.name.startswith(_PREFIX) and (folder / "snapshots").is_dir()


def snapshot_of(repository: Path) -> Path:
    """Return the snapshot of a cached model that refs/main names, or the only snapshot.

    Raises:
        ModelRefused: If the snapshot is ambiguous or missing.
    """
    snapshots = repository / "snapshots"
    main = repository / "refs" / "main"
    if main.is_file():
        commit = main.read_bytes()[:_LONGEST_REF].decode("ascii", "replace").strip()
        if _COMMIT.fullmatch(commit) and (snapshots / commit).is_dir():
            return snapshots / commit
        raise ModelRefused(
            f"{main} names a snapshot that does not exist; fetch the model again, or give the folder of a snapshot"
        )
    found = sorted(path for path in snapshots.iterdir() if path.is_dir())
    if len(found) != 1:
        raise ModelRefused(f"{repository} has {len(found)} snapshots and no refs/main; give the folder of one of them")
    return found[0]
