"""This machine as a Device: `--device this`."""

import os

import torch

from ridgeline.roofline.calibrate.file import Uncalibrated, load
from ridgeline.roofline.calibrate.run import quick
from ridgeline.roofline.calibrate.timer import Timer
from ridgeline.roofline.device import Device

_PROBE_SECONDS = 2.0


def this_device(threads: int | None = None, *, estimate: bool = False) -> Device:
    """The machine at hand with so many threads (all cores by default), as `ridgeline calibrate` measured it.

    Where that was not done, or does not hold any more, raises Uncalibrated (a ValueError) in one line that says why;
    with `estimate` it takes a probe of two seconds instead, whose constants are common ones: `calibrated` is False and
    sources["efficiency"] says so.
    """
    threads = threads or len(os.sched_getaffinity(0))
    try:
        return load(threads).device()
    except Uncalibrated:
        if not estimate:
            raise
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return quick(Timer(device, threads), _PROBE_SECONDS)
    finally:
        torch.set_num_threads(before)
