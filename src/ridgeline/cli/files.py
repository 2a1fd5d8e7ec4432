"""Files that a command is asked to write."""

import os
from pathlib import Path


def check_writable(path: Path) -> None:
    """Refuse, before work is done, a file that could not be written after it. Raises ValueError."""
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written; name a file in a folder that you may write to")
    if path.exists():
        return
    try:  # a folder like /proc says that it may be written to, and takes no files
        path.touch()
        path.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; name a file in another folder") from None
