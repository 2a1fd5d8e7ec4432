"""The calibration file: one JSON in the cache folder, good for the machine and the code that it was made with."""

import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from ridgeline import __version__, ops
from ridgeline.roofline.calibrate.calibration import Calibration

_RUN = "run `ridgeline calibrate` (two minutes)"


class Uncalibrated(ValueError):
    """There is no calibration that can be used; the message says why in one line, and what to do."""


def cache_folder() -> Path:
    """$RIDGELINE_CACHE, else `ridgeline` in the user's cache folder."""
    own = os.environ.get("RIDGELINE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"


def file_path() -> Path:
    """Where the calibration is."""
    return cache_folder() / "calibration.json"


def processor() -> str:
    """The accelerator's name, or the processor's and how many cores of it this process may use."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    cores = len(os.sched_getaffinity(0))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {cores} core{'s' if cores > 1 else ''}"


def current_key() -> dict[str, str]:
    """What a calibration depends on, beside the threads. The ops are part of it by their code: a kernel that was
    changed has other constants."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(Path(ops.__path__[0]).rglob("*")):
        if path.suffix in (".py", ".so", ".c", ".cpp"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return {
        "processor": processor(),
        "torch": torch.__version__,
        "ridgeline": __version__,
        "ops": digest.hexdigest(),
    }


def save(calibrations: list[Calibration]) -> Path:
    """Write calibrations beside those of other numbers of threads that are still good; returns the file's path."""
    path, key = file_path(), current_key()
    try:
        kept = {c.threads: c for c in _read(path, key)}
    except Uncalibrated:
        kept = {}
    kept |= {c.threads: c for c in calibrations}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"key": key, "calibrations": [kept[threads].as_json() for threads in sorted(kept)]})
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)  # at once: a reader never sees half a file
    return path


def load(threads: int) -> Calibration:
    """The calibration for so many threads. Raises Uncalibrated where there is none, or it is stale: saying what
    changed."""
    found = {c.threads: c for c in _read(file_path(), current_key())}
    if threads not in found:
        known = " and ".join(str(n) for n in sorted(found))
        raise Uncalibrated(
            f"this machine is calibrated for {known} threads, not for {threads}; "
            f"run `ridgeline calibrate --threads {threads}`"
        )
    return found[threads]


def _read(path: Path, key: dict[str, str]) -> list[Calibration]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        stored = dict(values["key"])
    except FileNotFoundError:
        raise Uncalibrated(f"this machine is not calibrated; {_RUN}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise Uncalibrated(f"the calibration {path} cannot be read; {_RUN}") from None
    changed = [f"{name} was {stored.get(name)}, is {value}" for name, value in key.items() if stored.get(name) != value]
    if changed:
        raise Uncalibrated(f"the calibration of this machine is stale: {'; '.join(changed)}; {_RUN}")
    try:
        return [Calibration.from_json(entry) for entry in values["calibrations"]]
    except (KeyError, TypeError):
        raise Uncalibrated(f"the calibration {path} cannot be read; {_RUN}") from None
