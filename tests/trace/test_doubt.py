"""What else happened while something was measured, and what is said of it."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from ridgeline.insight.trace import interference
from ridgeline.insight.trace.interference import Interference, calibration, describe_interference, explain_difference
from ridgeline.price.devices import load_device
from ridgeline.util.host import interruptions

CARD = load_device("h100-sxm")
CALIBRATED, PROBED = replace(CARD, calibrated=True), replace(CARD, basis="probe", calibrated=False)


def patched(monkeypatch: pytest.MonkeyPatch, **readings: list[float | None]) -> None:
    """Clocks and counters that give these readings, one after the other."""
    for name, values in readings.items():
        monkeypatch.setattr(interference, name, partial(next, iter(values)))


@pytest.mark.parametrize(
    ("times", "disk", "held", "read"),
    [
        ([3, 4], [10, 10], 1.5, 0),
        ([3, 3], [10, 10], 0.0, 0),  # it waited, and nobody took the processor: for a child, or asleep
        ([3, 4], [10, 5010], 0.0, 5000),  # it may have waited for the disk
        ([3, 4], [None, None], 1.5, 0),  # a system that does not tell
    ],
)
def test_what_others_had(
    monkeypatch: pytest.MonkeyPatch, times: list[float], disk: list[float], held: float, read: int
) -> None:
    """What the wall's clock has beyond the thread's own, where the kernel counted an interruption."""
    patched(monkeypatch, interruptions=[*times], disk_bytes=[*disk], perf_counter=[5.0, 7.0], thread_time=[1.0, 1.5])
    meanwhile = Interference(disk=1)
    with meanwhile.recording():
        pass
    assert (meanwhile.seconds_lost, meanwhile.disk) == (held, read + 1)


def _spin() -> None:
    while True:
        pass


@pytest.fixture
def neighbour() -> Iterator[None]:
    """A process that never rests, on the one processor that this thread may use too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    process = multiprocessing.get_context("fork").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor can be shared on purpose here")
@pytest.mark.usefixtures("neighbour")
def test_a_neighbour_is_noticed() -> None:
    meanwhile, count, begin = Interference(), interruptions(), time.perf_counter()
    with meanwhile.recording():
        while time.perf_counter() - begin < 0.3:
            pass
    assert interruptions() > count
    assert 0.1 < meanwhile.seconds_lost / (time.perf_counter() - begin) < 0.99


def test_the_reasons() -> None:
    """Nothing where nothing is far; each by itself else. Whether a card could be calibrated is not this machine's."""
    assert not list(explain_difference(CALIBRATED, 1.0, 9.0, Interference(seconds_lost=0.8)))
    assert not list(explain_difference(PROBED, 1.0, 1.2, Interference(disk=1000)))
    told = list(explain_difference(PROBED, 1.0, 2.0, Interference(seconds_lost=0.5, disk=3_000_000)))
    assert told == [
        "the machine is busy: other processes delayed this run by 500 ms of 2.00 s",
        "3.00 MB were read from the disk during the run, and the measured time includes that",
        "not calibrated, so expected times are rough; run `ridgeline calibrate` to measure this machine",
    ]
    assert list(explain_difference(CARD, 2.0, 1.0, Interference())) == ["not calibrated, so expected times are rough"]
    assert calibration(CALIBRATED) == "calibrated"
    assert describe_interference("it", 1.0).endswith("other processes delayed it by 1.00 s")
