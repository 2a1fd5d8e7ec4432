"""The writing of output files, each completely or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def check_writable(path: Path) -> None:
    """Check before a computation that its output file can be written.

    Raises:
        ValueError: If the file cannot be written.
    """
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written; name a file in a folder that you may write to")
    if _is_device(path):
        return
    try:  # a folder such as /proc reports that it is writable, but accepts no files
        temporary = _temporary(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; name a file in another folder") from None


def check_new(path: Path) -> None:
    """Raise ValueError if a file or a link with this path exists already; a device or pipe may exist."""
    if (path.exists() or path.is_symlink()) and not _is_device(path):
        raise ValueError(f"{path} exists already; name another file, or write over it with --force")


def check_apart(paths: Mapping[str, Path]) -> None:
    """Raise ValueError if two options name the same file, directly or through links; a device or pipe may be shared.

    Args:
        paths: The files by option.
    """
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if _is_device(path):
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise ValueError(f"{other} and {option} both name {path}; give each its own file")


def check_outputs(paths: Mapping[str, Path | None], *, overwrite: bool) -> None:
    """Check before a computation that all its output files can be written.

    Args:
        paths: The files by option; None for an option that is not given.
        overwrite: Whether files may exist already.

    Raises:
        ValueError: If two options name the same file, or one cannot be written.
    """
    given = {option: path for option, path in paths.items() if path is not None}
    check_apart(given)
    for path in given.values():
        check_writable(path)
        if not overwrite:
            check_new(path)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, as `whole_file` does; text is encoded as UTF-8."""
    with whole_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file next to `path`, which replaces it at the end of the `with` block.

    If `path` is a link, the file that it leads to is replaced. A reader never sees an incomplete file, and a full disk
    leaves the old one unchanged. A device such as /dev/null is written directly.

    Raises:
        ValueError: If the file cannot be written.
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
    """Return whether a path exists but is no regular file, such as a terminal, a pipe or a device.

    Those are written to but never replaced. A folder counts too; callers refuse it.
    """
    return path.exists() and not path.is_file()


def _temporary(path: Path) -> Path:
    """Return the path of a temporary file in the folder of the file that a path leads to through links."""
    target = path.resolve()
    return target.with_name(f".{target.name[:200]}.{os.getpid()}")
