"""A second process that tries settings for `simulate --advise`, so that two cores try twice as many."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import wait

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.adviser import TriedSetting

Trial = Callable[[Limits, float], TriedSetting | None]
"""A function that simulates a setting (limits and memory share), or returns None if the setting is impossible."""

_trials: list[Trial] = []  # in the worker process only


class AdviceWorker:
    """A spawned process that simulates settings. It is not forked, because torch's threads do not survive a fork."""

    def __init__(self, make: Callable[[], Trial]) -> None:
        """Start the worker process.

        Args:
            make: Returns the function that simulates settings. It is pickled, so it must hold plain values only.
        """
        before = multiprocessing.active_children()
        kept = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the worker: only this process handles Ctrl-C
        try:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_with_parent)
            self._made = self._pool.submit(_make, make)
        finally:
            signal.signal(signal.SIGINT, kept)
        self._children = [child for child in multiprocessing.active_children() if child not in before]

    @classmethod
    def start(cls, make: Callable[[], Trial]) -> "AdviceWorker | None":
        """Start a worker, or return None if the system cannot provide a second process or semaphores."""
        try:
            return cls(make)
        except (OSError, ImportError, NotImplementedError):
            return None

    @property
    def ready(self) -> bool:
        """Whether the process has finished its imports, which take seconds, and can simulate settings."""
        return self._made.done() and self._made.exception() is None

    def submit(self, limits: Limits, memory: float) -> "Future[TriedSetting | None]":
        """Simulate a setting after those that were submitted before. The future raises if the process is gone."""
        return self._pool.submit(_run, limits, memory)

    def close(self) -> None:
        """End the worker process, even in the middle of a simulation."""
        for child in self._children:
            child.kill()
        self._pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker process as soon as its parent process ends for any reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a second process"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _make(make: Callable[[], Trial]) -> None:
    _trials[:] = [make()]


def _run(limits: Limits, memory: float) -> TriedSetting | None:
    return _trials[0](limits, memory)
