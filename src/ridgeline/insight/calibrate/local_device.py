"""The machine at hand as a Device: `--device this` for its CPU, and `--device cuda` for its GPU."""

from dataclasses import replace

import torch

from ridgeline.insight.calibrate.calibration_file import StaleCalibration, Uncalibrated, gpu_kind, load, load_all
from ridgeline.insight.calibrate.estimate import estimate_device
from ridgeline.insight.calibrate.gpu_calibration import probe_gpu
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device
from ridgeline.util.host import cores


def this_device(threads: int | None = None, *, estimate: bool = False) -> Device:
    """Return the CPU at hand, as calibrated for a number of threads (all cores by default).

    Args:
        threads: The number of threads.
        estimate: Whether to fall back to a probe of two seconds, made now or earlier (estimate.py), with common
            constants. The device's `calibrated` is then False and sources["efficiency"] says why.

    Raises:
        Uncalibrated: If there is no valid calibration and `estimate` is False.
    """
    threads = threads or cores()
    try:
        return load(threads).device()
    except Uncalibrated as error:
        if not estimate:
            raise
        reason = error
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _estimated(estimate_device(threads), reason)
    finally:
        torch.set_num_threads(before)


def this_accelerator(index: int = 0, *, estimate: bool = False) -> Device:
    """Return a CUDA device at hand by its index, as calibrated.

    Args:
        index: The index of the device.
        estimate: Whether to fall back to a probe of a second, with common constants and `calibrated` False.

    Raises:
        ValueError: If there is no such device.
        Uncalibrated: If there is no valid calibration and `estimate` is False.
    """
    if not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device here; give a built-in device, like h100-sxm, or `this`")
    if index >= (count := torch.cuda.device_count()):
        seen = f"{count} CUDA device{'s' if count > 1 else ''}, from cuda:0"
        raise ValueError(f"--device is cuda:{index}, but torch sees {seen}; give one of these")
    try:
        return load_all(gpu_kind(index))[0].device()
    except Uncalibrated as error:
        if not estimate:
            raise
        probed = probe_gpu(Timer(torch.device("cuda", index), 1), 1.0)
        return _estimated(probed, error)


def _estimated(device: Device, reason: Uncalibrated) -> Device:
    """Return a probed device with the reason for its missing calibration."""
    sources = {**device.sources, "efficiency": f"not calibrated, only a rough estimate: {reason}"}
    stale = str(reason) if isinstance(reason, StaleCalibration) else ""
    return replace(device, sources=sources, stale_calibration=stale)
