"""A timer that measures calls on a device repeatedly."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Clock = Callable[[], float]

MIN_REPEATS = 3


def undisturbed(seconds: Sequence[float]) -> float:
    """Return the undisturbed time of a call: the lower quartile, or the minimum of fewer than four times.

    Other processes occupy the processor's cores for seconds at a time; a Python program may then take twice as long.
    """
    return sorted(seconds)[len(seconds) // 4]


class Timer:
    """A timer whose clock waits until the device has finished its queued work.

    One CPU thread is timed by its CPU time rather than wall time, so that other load on the machine matters little;
    without such load both agree. Several threads wait for each other, which only wall time shows.
    """

    def __init__(
        self, device: torch.device, threads: int, clock: Clock | None = None, wall: Clock = time.perf_counter
    ) -> None:
        """Create a timer; tests replace `clock` and `wall`."""
        self.device, self.threads, self.wall = device, threads, wall
        alone = threads == 1 and device.type == "cpu"
        self._clock = clock or (time.thread_time if alone else time.perf_counter)
        self._wait = torch.cuda.synchronize if device.type == "cuda" else None

    def now(self) -> float:
        """Return the time at which the device has finished all queued work."""
        if self._wait is not None:
            self._wait()
        return self._clock()

    def seconds(self, call: Callable[[], object], budget: float) -> float:
        """Return the median seconds of a call, over as many calls as `each` makes."""
        return statistics.median(self.each(call, budget))

    def each(self, call: Callable[[], object], budget: float) -> list[float]:
        """Return the seconds of each of several successive calls.

        Calls repeat for `budget` seconds of wall time, and at least four times unless that exceeds three times the
        budget. The first call is dropped if there are others.
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
