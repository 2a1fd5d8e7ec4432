"""A rough estimate of an uncalibrated CPU, from a probe of two seconds that is cached in the cache folder."""

import datetime
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from ridgeline.backends import backend_of
from ridgeline.insight.calibrate.calibration_file import cache_folder, current_key, device_name
from ridgeline.insight.calibrate.calibration_run import memory_bytes
from ridgeline.insight.calibrate.probe import nothing_but_launches
from ridgeline.insight.calibrate.roofs import (
    beyond_caches,
    caches,
    memory_bandwidth,
    peaks,
    products,
    stated_caches,
    streams,
)
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device, Efficiency
from ridgeline.util.files import write_whole

PROBE_SECONDS = 2.0


class _CachedProbe(msgspec.Struct):
    """The contents of the cache file: a probed device, and everything that the probe depends on."""

    key: dict[str, str]
    device: Device


def estimate_device(threads: int) -> Device:
    """Return the CPU with a number of threads as probed now or earlier; it is not calibrated."""
    path, key = cache_folder() / f"probe-{threads}.json", current_key()
    device = _kept(path, key)
    if device is None:
        device = probed(Timer(torch.device("cpu"), threads), PROBE_SECONDS)
        _keep(path, _CachedProbe(key, device))
    return device


def probed(timer: Timer, seconds: float) -> Device:
    """Return the CPU as a Device with measured roofs and launch time, and common constants for the rest.

    It takes about `seconds` seconds.
    """
    stated = stated_caches(timer.threads)
    inside = [size // 2 for _, size in stated]  # other processes may use the other half
    launch, recorded = (_launch_seconds(timer, seconds / 20, recorded=recorded) for recorded in (False, True))
    measured = streams(timer, seconds / 2, sets=(*inside, beyond_caches(stated)))
    guess = Efficiency(launch, compute=0.7, memory=0.7, recorded=recorded)
    return Device(
        "this",
        device_name(),
        "cpu",
        peaks(products(timer, 0.4 * seconds)),
        memory_bandwidth(measured, stated),
        memory_bytes(timer),
        caches(measured, stated),
        efficiency={"default": guess},
        basis="probe",
        native=backend_of(timer.device).kind == "cpu",
        sources={"all": f"a probe of this machine, {datetime.date.today()}"},
    )


def _launch_seconds(timer: Timer, budget: float, *, recorded: bool) -> float:
    """Return the seconds of a nearly empty op, in a step that is replayed (`recorded`) or run op by op."""
    step, ops = nothing_but_launches(timer, recorded=recorded)
    return timer.seconds(step, budget) / ops


def _kept(path: Path, key: dict[str, str]) -> Device | None:
    """Return the cached probe if it is valid for this machine and this code, else None."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_CachedProbe)
    except (OSError, msgspec.DecodeError):
        return None
    return kept.device if kept.key == key else None


def _keep(path: Path, kept: _CachedProbe) -> None:
    """Cache a probe's result in a file; if the folder is not writable, the next command probes again."""
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(kept).decode())
