"""At what pace cores run while something is measured on them: a calibration's probes before and after, and slices of
Python all the while, at the lowest priority.

Others on a machine come and go within seconds; while they are there a program of Python takes up to twice as long.
Probes say how much longer launches, arithmetic and memory take than the calibration found undisturbed, but only while
nothing else runs. A slice takes a twentieth of the time in which nothing else runs on the core, and none of any
other's: what slices took meanwhile, beside what they took around the probes, says how the pace changed in between. All
of it is known without a look at the run itself.
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
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from ridgeline.insight.calibrate.probe import PaceProbe, mean_pace
from ridgeline.insight.calibrate.roofs import beyond_caches, stated_caches
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.slowdown import Slowdown

_BIN = 0.2
"""Seconds that are one sample of the pace: where a core had more time for slices they do not count for more."""
_PROBED, _BETWEEN = 2.0, 0.05  # seconds of probes, and of nothing, when slices run, after each
_TURNS, _PAUSE, _WRITTEN = 2000, 0.002, 50  # of a slice's loop; seconds between two; slices between two writes
_SETTLED = 0.5  # seconds until the slices of a moment are written
_LOST = Slowdown(0.88, 0.39, 0.38)
"""What launches, arithmetic and memory lose of what a slice loses: 40 s of slices and probes in turn, of which a slice
lost 0.127, a step of the tiny model 0.111, a product 0.049, reading 0.048."""


@dataclass(frozen=True)
class Probed:
    """What probes on a core took, of what they take undisturbed, between two moments of time.perf_counter."""

    since: float
    until: float
    pace: Slowdown


class Cores:
    """What is known of the pace of some cores."""

    def __init__(self, files: Mapping[int, Path], undisturbed: Slowdown) -> None:
        """undisturbed: seconds of the probes, as a calibration has them."""
        self._files, self._undisturbed = files, undisturbed
        timer = Timer(torch.device("cpu"), 1)
        self._probe = PaceProbe(timer, beyond_caches(stated_caches(1)))

    def probed(self, core: int) -> Probed:
        """Probe a core on which nothing else of ours runs."""
        since, allowed, found = time.perf_counter(), os.sched_getaffinity(0), list[Slowdown]()
        os.sched_setaffinity(0, {core})
        while time.perf_counter() < since + _PROBED:
            found.append(self._probe().over(self._undisturbed))
            time.sleep(_BETWEEN)
        os.sched_setaffinity(0, allowed)
        return Probed(since, time.perf_counter(), mean_pace(found))

    def pace(self, core: int, before: Probed, after: Probed) -> Slowdown:
        """How many times as long as undisturbed things took between probes."""
        time.sleep(_SETTLED)  # until slices are written
        around = statistics.mean(self._slices(core, each.since, each.until) for each in (before, after))
        more = self._slices(core, before.until, after.since) / around - 1
        known = astuple(mean_pace([before.pace, after.pace]))
        return Slowdown(*(pace * (1 + share * more) for pace, share in zip(known, astuple(_LOST), strict=True)))

    def _slices(self, core: int, since: float, until: float) -> float:
        """Seconds of a slice between two moments, on average. A part in which the core had no time for one is as the
        part before."""
        bins = defaultdict[int, list[float]](list)
        for line in self._files[core].read_text().splitlines():
            for at, took in json.loads(line):
                bins[int(at / _BIN)].append(took)
        found, last = [], statistics.mean(bins[min(bins)])
        for number in range(min(bins), int(until / _BIN) + 1):
            last = statistics.mean(bins[number]) if number in bins else last
            if number >= int(since / _BIN):
                found.append(last)
        return statistics.mean(found)


def one_slice() -> float:
    """Seconds of one."""
    started, total = time.thread_time(), 0
    for turn in range(_TURNS):
        total += turn * turn % 7
    return time.thread_time() - started


@contextmanager
def watched(cores: Sequence[int], folder: Path, undisturbed: Slowdown) -> Iterator[Cores]:
    """While it lasts, the pace of these cores is written down. undisturbed: as of Cores."""
    files = {core: folder / f"pace-{core}" for core in cores}
    for file in files.values():
        file.write_text("")
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
