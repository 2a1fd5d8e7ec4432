"""The machine at hand as a Device: `--device this`, and `--device cuda` for its accelerator."""

import torch

from ridgeline.calibrate.estimate import estimated
from ridgeline.calibrate.file import Uncalibrated, load, load_all
from ridgeline.host import cores
from ridgeline.roofline.device import Device


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
        return estimated(threads, reason)
    finally:
        torch.set_num_threads(before)


def this_accelerator() -> Device:
    """The CUDA device at hand, as `ridgeline calibrate --device cuda` measured it. Raises ValueError where there
    is none, or it is not calibrated."""
    if not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device here; name a card of the catalogue, like h100-sxm, or `this`")
    return load_all("gpu")[0].device()
