"""The machine at hand as a Device: `--device this`, and `--device cuda` for its accelerator."""

from dataclasses import replace

import torch

from ridgeline.insight.calibrate.calibration_file import Uncalibrated, gpu_kind, load, load_all
from ridgeline.insight.calibrate.estimate import estimate_device
from ridgeline.insight.calibrate.gpu_calibration import probe_gpu
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device
from ridgeline.util.host import cores


def this_device(threads: int | None = None, *, estimate: bool = False) -> Device:
    """The processor at hand, which the engine runs on, as `ridgeline calibrate` measured it with so many threads (all
    cores by default).

    Where that was not done, or does not hold any more, raises Uncalibrated (a ValueError) in one line that says why;
    with `estimate` it gives what a probe of two seconds found, made now or by an earlier command (estimate.py), whose
    constants are common ones: `calibrated` is False and sources["efficiency"] says so, and why.
    """
    threads = threads or cores()
    try:
        return load(threads).device()
    except Uncalibrated as error:
        if not estimate:
            raise
        reason = str(error)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return estimate_device(threads, reason)
    finally:
        torch.set_num_threads(before)


def this_accelerator(index: int = 0, *, estimate: bool = False) -> Device:
    """A CUDA device at hand, by its number, as `ridgeline calibrate --device cuda` measured it.

    Raises ValueError where there is none, Uncalibrated where it is not calibrated; with `estimate` it then gives the
    roofs that a probe of a second finds, with common constants, `calibrated` False.
    """
    if not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device here; name a card of the catalogue, like h100-sxm, or `this`")
    if index >= (count := torch.cuda.device_count()):
        seen = f"{count} CUDA device{'s' if count > 1 else ''}, from cuda:0"
        raise ValueError(f"--device is cuda:{index}, but torch sees {seen}; give one of these")
    try:
        return load_all(gpu_kind(index))[0].device()
    except Uncalibrated as error:
        if not estimate:
            raise
        probed = probe_gpu(Timer(torch.device("cuda", index), 1), 1.0)
        return replace(probed, sources={**probed.sources, "efficiency": f"uncalibrated, rough: {error}"})
