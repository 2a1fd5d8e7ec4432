"""The reasons why measured times differ from predictions: no calibration, other processes, or disk reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, thread_time

from ridgeline.price.device import Device
from ridgeline.util.document.humanize import say, say_seconds
from ridgeline.util.host import disk_bytes, interruptions

BUSY = 0.1
"""The share of the measured time from which time lost to other processes is reported."""
FAR = 0.25
"""The relative difference from which a reason is reported: of a measured time from the expected one or a second one."""
_READ = 1 << 20  # bytes read from disks from which they are reported


@dataclass(slots=True)
class Interference:
    """The disturbances during a measurement: time lost to other processes, and disk reads."""

    seconds_lost: float = 0.0
    """The seconds in which other processes ran on this thread's processor."""
    disk: int = 0
    """The bytes that this process read from disks during the measurement."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the disturbances that occur within this context.

        Waiting for a disk cannot be distinguished from waiting for other processes, so if a disk was read, no waiting
        time is counted.
        """
        times, read, wall, own = interruptions(), disk_bytes() or 0, perf_counter(), thread_time()
        try:
            yield
        finally:
            away = perf_counter() - wall - (thread_time() - own)
            read = (disk_bytes() or 0) - read
            self.disk += read
            if interruptions() > times and not read:
                self.seconds_lost += max(0.0, away)


def calibration(device: Device) -> str:
    """Return whether the predictions for a device are calibrated, and for this machine how to calibrate them."""
    if device.calibrated:
        return "calibrated"
    if device.stale_calibration:
        return f"not calibrated, so expected times are rough: {device.stale_calibration}"
    here = "; run `ridgeline calibrate` to measure this machine" if device.basis == "probe" else ""
    return f"not calibrated, so expected times are rough{here}"


def describe_interference(what: str, seconds: float) -> str:
    """Return a sentence that other processes delayed something by a number of seconds."""
    return f"the machine is busy: other processes delayed {what} by {say_seconds(seconds)}"


def explain_difference(device: Device, expected: float, measured: float, meanwhile: Interference) -> Iterator[str]:
    """Yield the known reasons why a run's measured time may differ from the expected one, if they are large enough."""
    if meanwhile.seconds_lost > BUSY * measured:
        yield f"{describe_interference('this run', meanwhile.seconds_lost)} of {say_seconds(measured)}"
    if meanwhile.disk >= _READ:
        yield f"{say(meanwhile.disk, 'B')} were read from the disk during the run, and the measured time includes that"
    if not device.calibrated and abs(measured / expected - 1) > FAR:
        yield calibration(device)
