"""Why measured seconds are far from expected ones: nobody calibrated the machine, others had it, a disk was read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, thread_time

from ridgeline.price.device import Device
from ridgeline.util.document.humanize import say, say_seconds
from ridgeline.util.host import disk_bytes, interruptions

BUSY = 0.1
"""Of what was measured; if others had the processor for longer, that is worth a word."""
FAR = 0.25
"""Measured seconds farther than this from expected ones want a reason."""
_READ = 1 << 20  # bytes from disks that are worth a word


@dataclass(slots=True)
class Interference:
    """What else happened while something was measured. held: seconds that others had this thread's processor. disk:
    bytes that were read from disks.
    """

    held: float = 0.0
    disk: int = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """While inside. Waiting for a disk is not told from waiting for others: where one was read, none is counted."""
        times, read, wall, own = interruptions(), disk_bytes() or 0, perf_counter(), thread_time()
        try:
            yield
        finally:
            away = perf_counter() - wall - (thread_time() - own)
            read = (disk_bytes() or 0) - read
            self.disk += read
            if interruptions() > times and not read:
                self.held += max(0.0, away)


def calibration(device: Device) -> str:
    """Whether expected seconds on a device have constants of its own; of the machine at hand, how it comes by them."""
    if device.calibrated:
        return "calibrated"
    here = "; ridgeline calibrate measures this machine" if device.basis == "probe" else ""
    return f"not calibrated: expected times are rough{here}"


def describe_interference(what: str, seconds: float) -> str:
    """That others held it up."""
    return f"the machine is busy: other processes held up {what}, by {say_seconds(seconds)}"


def explain_difference(device: Device, expected: float, measured: float, meanwhile: Interference) -> Iterator[str]:
    """Why a run took as long as it did, where it was far from what was expected; nothing where nothing is known."""
    if meanwhile.held > BUSY * measured:
        yield f"{describe_interference('this run', meanwhile.held)} of {say_seconds(measured)}"
    if meanwhile.disk >= _READ:
        yield f"{say(meanwhile.disk, 'B')} were read from the disk meanwhile, which is in what was measured"
    if not device.calibrated and abs(measured / expected - 1) > FAR:
        yield calibration(device)
