"""An estimate of a processor that is not calibrated: a probe of two seconds, made once and kept in the cache folder."""

import datetime
from contextlib import suppress
from dataclasses import replace
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
    """What the file holds. key: what the probe depends on, as a calibration does."""

    key: dict[str, str]
    device: Device


def estimate_device(threads: int, reason: str) -> Device:
    """The processor with so many threads, as it was once probed, else probed now; not calibrated, for the `reason` that
    its sources give.
    """
    path, key = cache_folder() / f"probe-{threads}.json", current_key()
    device = _kept(path, key)
    if device is None:
        device = probed(Timer(torch.device("cpu"), threads), PROBE_SECONDS)
        _keep(path, _CachedProbe(key, device))
    return replace(device, sources={**device.sources, "efficiency": f"uncalibrated, rough: {reason}"})


def probed(timer: Timer, seconds: float) -> Device:
    """The processor as a Device from its roofs and what a launch takes, with common constants for the rest, in about so
    many seconds.
    """
    stated = stated_caches(timer.threads)
    inside = [size // 2 for _, size in stated]  # half: neighbours have the other
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
    """Seconds of an op that does next to nothing, in a step that is recorded where steps are, or asked for."""
    step, ops = nothing_but_launches(timer, recorded=recorded)
    return timer.seconds(step, budget) / ops


def _kept(path: Path, key: dict[str, str]) -> Device | None:
    """What an earlier probe found, if it holds for this machine and this code."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_CachedProbe)
    except (OSError, msgspec.DecodeError):
        return None
    return kept.device if kept.key == key else None


def _keep(path: Path, kept: _CachedProbe) -> None:
    """A folder that cannot be written to costs the next command its two seconds, and no more."""
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(kept).decode())
