"""At what pace cores run while something is measured on them: a slice of Python now and then, at the lowest priority.

Others on a machine come and go within seconds; while they are there a program of Python takes up to twice as long. A
slice takes a twentieth of the time in which nothing else runs on the core, and none of any other's. What slices took
says how much longer a run took than it would have alone, and says so without a look at the run itself.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ridgeline.calibrate.probe import nothing_but_launches
from ridgeline.calibrate.timer import Timer
from ridgeline.roofline.pace import Pace

BIN = 0.2
"""Seconds that are one sample of the pace: where a core had more time for slices they do not count for more."""
_ANCHORED = 4.0  # seconds of slices and probes in turn
_TURNS, _PAUSE, _WRITTEN = 2000, 0.002, 50  # of a slice's loop; seconds between two; slices between two writes
_LOST = Pace(0.88, 0.39, 0.38)
"""What launches, arithmetic and memory lose of what a slice loses: 40 s of slices and probes in turn, of which a slice
lost 0.127, a step of the tiny model 0.111, a product 0.049, reading 0.048."""


class Cores:
    """What is known of the pace of some cores."""

    def __init__(self, files: Mapping[int, Path], undisturbed: float) -> None:
        """undisturbed: seconds of a slice that nothing is in the way of."""
        self._files, self._undisturbed = files, undisturbed

    def pace(self, core: int, since: float, until: float) -> float:
        """How many times as long as undisturbed a slice took between two moments of time.perf_counter, on average. A
        part in which the core had no time for one is as the part before."""
        bins = defaultdict[int, list[float]](list)
        for line in self._files[core].read_text().splitlines():
            for at, took in json.loads(line):
                bins[int(at / BIN)].append(took)
        paces, last = [], 1.0
        for number in range(min(bins), int(until / BIN) + 1):
            last = statistics.mean(bins[number]) / self._undisturbed if number in bins else last
            if number >= int(since / BIN):
                paces.append(last)
        return statistics.mean(paces)


def pace_of(slices: float) -> Pace:
    """What slices say of all else."""
    return Pace(*(1 + lost * (slices - 1) for lost in (_LOST.launch, _LOST.compute, _LOST.memory)))


def undisturbed_slice(launch: float) -> float:
    """Seconds of a slice while a launch of a probe takes so many, as in a calibration: of both in turn, now."""
    step, _ = nothing_but_launches(Timer(torch.device("cpu"), 1))
    until, found = time.perf_counter() + _ANCHORED, list[float]()
    with torch.inference_mode():
        while time.perf_counter() < until:
            before, started = one_slice(), time.thread_time()
            step()
            pace = 1 + ((time.thread_time() - started) / launch - 1) / _LOST.launch
            found.append((before + one_slice()) / 2 / pace)
    return statistics.median(found)


def one_slice() -> float:
    """Seconds of one."""
    started, total = time.thread_time(), 0
    for turn in range(_TURNS):
        total += turn * turn % 7
    return time.thread_time() - started


@contextmanager
def watched(cores: Sequence[int], folder: Path, launch: float) -> Iterator[Cores]:
    """While it lasts, the pace of these cores is written down. launch: as of undisturbed_slice."""
    undisturbed = undisturbed_slice(launch)
    files = {core: folder / f"pace-{core}" for core in cores}
    children = [subprocess.Popen([sys.executable, __file__, str(core), str(file)]) for core, file in files.items()]
    try:
        yield Cores(files, undisturbed)
    finally:
        for child in children:
            child.terminate()
            child.wait()


def _watch(core: int, file: Path) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with file.open("a", buffering=1) as to:
        while True:
            slices = []
            for _ in range(_WRITTEN):
                time.sleep(_PAUSE)
                slices.append((round(time.perf_counter(), 4), one_slice()))
            print(json.dumps(slices), file=to)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]))
