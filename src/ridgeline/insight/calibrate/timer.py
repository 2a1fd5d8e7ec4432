"""Timer: seconds on a device, and how many calls a figure is taken from."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Clock = Callable[[], float]

MIN_REPEATS = 3


def undisturbed(seconds: Sequence[float]) -> float:
    """What a call takes while nothing is in its way: the lower quartile of what was seen, or the least of fewer than
    four. Others on a processor's cores come and go within seconds; a program of Python may take twice as long then.
    """
    return sorted(seconds)[len(seconds) // 4]


class Timer:
    """A clock that waits for the device.

    One thread on a processor is timed by what it ran, not by the wall: what else the machine does meanwhile then counts
    for little, and where it does nothing else the two agree. Several threads wait for each other, which only the wall
    shows.
    """

    def __init__(
        self, device: torch.device, threads: int, clock: Clock | None = None, wall: Clock = time.perf_counter
    ) -> None:
        """`clock` and `wall`: what tests replace."""
        self.device, self.threads, self.wall = device, threads, wall
        alone = threads == 1 and device.type == "cpu"
        self._clock = clock or (time.thread_time if alone else time.perf_counter)
        self._wait = torch.cuda.synchronize if device.type == "cuda" else None

    def now(self) -> float:
        """The moment at which all that was asked of the device is done."""
        if self._wait is not None:
            self._wait()
        return self._clock()

    def seconds(self, call: Callable[[], object], budget: float) -> float:
        """Median seconds of a call; as many calls as `each` makes."""
        return statistics.median(self.each(call, budget))

    def each(self, call: Callable[[], object], budget: float) -> list[float]:
        """Seconds of every call in turn: for `budget` seconds of the wall, and at least three if they take no longer
        than three times that. The first call does not count if there are others.
        """
        seconds: list[float] = []
        begin = self.wall()
        while True:
            start = self.now()
            call()
            seconds.append(self.now() - start)
            spent = self.wall() - begin
            if spent >= budget and (len(seconds) > MIN_REPEATS or spent >= 3 * budget):
                return seconds[1:] or seconds
