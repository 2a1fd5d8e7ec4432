"""The calibration file, a JSON file per device in the cache folder, valid for the machine and code that made it."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import torch

from ridgeline import backends, price
from ridgeline.backends import backend_of
from ridgeline.core import ops
from ridgeline.insight import calibrate
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.util.files import write_whole
from ridgeline.util.host import processor
from ridgeline.util.untrusted import read_object
from ridgeline.util.version import __version__

_PRICING = (
    "op_time.py",
    "price.py",
    "priced_op.py",
    "cached_ops.py",
    "device.py",
    "host_parts.py",
    "slowdown.py",
)  # the code that gives the constants their meaning


_LABELS = {
    "processor": "the processor",
    "torch": "torch",
    "ridgeline": "Ridgeline",
    "kernels": "the kernels for",
    "ops": "the code of ops and kernels",
    "pricing": "the code of prices and calibration",
}
"""The names of the entries of a key, for messages."""


class Uncalibrated(ValueError):
    """An error that there is no usable calibration; its one-line message says why and how to get one."""


class StaleCalibration(Uncalibrated):
    """An error that a calibration was made on another machine, or with other versions or code."""


def cache_folder() -> Path:
    """Return $RIDGELINE_CACHE, or `ridgeline` in the user's cache folder."""
    own = os.environ.get("RIDGELINE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"


def gpu_kind(index: int) -> str:
    """Return the short name of a GPU by its index, as in the calibration file's name: `gpu`, `gpu-1`."""
    return f"gpu-{index}" if index else "gpu"


def _index(kind: str) -> int:
    return int(kind.partition("-")[2] or 0)


def _how(kind: str) -> str:
    if kind == "cpu":
        return "run `ridgeline calibrate` (three minutes)"
    index = _index(kind)
    return f"run `ridgeline calibrate --device cuda{f':{index}' if index else ''}` (a minute)"


def file_path(kind: str = "cpu") -> Path:
    """Return the path of the calibration file of the CPU (`cpu`) or of a GPU (as `gpu_kind` names it)."""
    return cache_folder() / ("calibration.json" if kind == "cpu" else f"calibration-{kind}.json")


def device_name(kind: str = "cpu") -> str:
    """Return the CPU's name with the number of cores that this process may use, or the GPU's name.

    Without CUDA, the GPU's name is "none".
    """
    if kind != "cpu":
        return str(torch.cuda.get_device_name(_index(kind))) if torch.cuda.is_available() else "none"
    return processor()


def current_key(kind: str = "cpu") -> dict[str, str]:
    """Return the hardware, versions and code digests that a calibration depends on besides the thread count.

    That includes code: a changed kernel has other constants, and constants that are fitted or used differently have
    another meaning.
    """
    pricing, own = Path(price.__path__[0]), Path(calibrate.__path__[0])
    return {
        "processor": device_name(kind),
        "torch": str(torch.__version__),
        "ridgeline": __version__,
        "kernels": backend_of(torch.device("cpu" if kind == "cpu" else "cuda")).kernel_set,
        "ops": _digest(sorted(path for room in (ops, backends) for path in Path(room.__path__[0]).rglob("*"))),
        "pricing": _digest([*(pricing / name for name in _PRICING), *sorted(own.glob("*.py"))]),
    }


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=4)
    for path in paths:
        if path.suffix in (".py", ".so"):  # the library stands for the C++ sources
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def save(calibrations: Sequence[Calibration], kind: str = "cpu") -> Path:
    """Write calibrations of a device, and return the file's path.

    Valid calibrations for other numbers of threads stay in the file.
    """
    path = file_path(kind)
    try:
        kept = {c.threads: c for c in load_all(kind)}
    except Uncalibrated:
        kept = {}
    kept |= {c.threads: c for c in calibrations}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"key": current_key(kind), "calibrations": [kept[threads].as_json() for threads in sorted(kept)]})
    write_whole(path, text)
    return path


def load(threads: int) -> Calibration:
    """Return the calibration of the CPU for a number of threads.

    Raises:
        Uncalibrated: If there is none. `StaleCalibration` if there is one of another machine or of other code; the
            message says what changed.
    """
    found = {c.threads: c for c in load_all()}
    if threads not in found:
        known = " and ".join(str(n) for n in sorted(found))
        raise Uncalibrated(
            f"this machine is calibrated for {known} thread{'' if known == '1' else 's'}, not for {threads}; "
            f"run `ridgeline calibrate --threads {threads}`"
        )
    return found[threads]


def load_all(kind: str = "cpu") -> list[Calibration]:
    """Return the calibrations of the CPU or a GPU, one per number of threads.

    Raises:
        Uncalibrated: If there is none. `StaleCalibration` if there is one of another machine or of other code.
    """
    path, key, run = file_path(kind), current_key(kind), _how(kind)
    if not path.exists():
        raise Uncalibrated(f"this machine is not calibrated; {run}")
    try:
        values = read_object(path)
        stored = dict(values["key"])
    except (ValueError, KeyError, TypeError):
        raise Uncalibrated(f"the calibration file {path} cannot be read; {run}") from None
    changed = [
        f"{_LABELS[name]} {stored.get(name, 'unknown')} (now {value})"
        for name, value in key.items()
        if stored.get(name) != value
    ]
    if changed:
        raise StaleCalibration(
            f"the calibration file {path} is out of date: it was measured with {'; with '.join(changed)}; {run}"
        )
    try:
        return msgspec.convert(values["calibrations"], list[Calibration])
    except (KeyError, msgspec.ValidationError):
        raise Uncalibrated(f"the calibration file {path} cannot be read; {run}") from None
