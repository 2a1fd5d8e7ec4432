"""Files that a command is asked to write: each whole or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def check_writable(path: Path) -> None:
    """Refuse, before work is done, a file that could not be written after it. Raises ValueError."""
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written; name a file in a folder that you may write to")
    if _is_device(path):
        return
    try:  # a folder like /proc says that it may be written to, and takes no files
        temporary = _temporary(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; name a file in another folder") from None


def check_new(path: Path) -> None:
    """Refuse a file that is there already, or a link, wherever it leads. Raises ValueError."""
    if (path.exists() or path.is_symlink()) and not _is_device(path):
        raise ValueError(f"{path} exists already; name another file, or write over it with --force")


def check_apart(paths: Mapping[str, Path]) -> None:
    """Refuse two options that name one file, by whatever way. Raises ValueError. paths: by option."""
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if _is_device(path):
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise ValueError(f"{other} and {option} both name {path}; give each a file of its own")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, as `whole_file`."""
    with whole_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, beside and put in place when all of it is there: a reader never sees half of one, and a full
    disk leaves what was there. Raises ValueError where the disk refuses.
    """
    temporary = _temporary(path)
    try:
        if _is_device(path):
            with path.open("wb") as file:
                yield file
            return
        with temporary.open("wb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path.resolve())
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written: {error.strerror}; free some space or name a file on another disk"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """A terminal, a pipe, /dev/null: what is written to, and not replaced."""
    return path.exists() and not path.is_file()


def _temporary(path: Path) -> Path:
    """A name for what becomes `path`, in the folder that it is in, whatever links lead there."""
    target = path.resolve()
    return target.with_name(f".{target.name[:200]}.{os.getpid()}")
