"""Beside: a second process that runs settings for `simulate --advise`, so that two cores look at twice as many."""

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
"""A function that runs a setting (limits, and the share of memory), or returns None for one that cannot be."""

_trials: list[Trial] = []  # of a second process, once it has made its own


class AdviceWorker:
    """A process that is started anew, so that it needs nothing of what this one holds: no fork of torch's threads."""

    def __init__(self, make: Callable[[], Trial]) -> None:
        """make: gives what runs settings there, as here; it is sent there, so that it holds plain values alone."""
        before = multiprocessing.active_children()
        kept = signal.signal(signal.SIGINT, signal.SIG_IGN)  # there, for good: Ctrl-C is this process's to answer
        try:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_with_parent)
            self._made = self._pool.submit(_make, make)
        finally:
            signal.signal(signal.SIGINT, kept)
        self._children = [child for child in multiprocessing.active_children() if child not in before]

    @classmethod
    def start(cls, make: Callable[[], Trial]) -> "AdviceWorker | None":
        """None where the system has no second process, or no semaphores, to give."""
        try:
            return cls(make)
        except (OSError, ImportError, NotImplementedError):
            return None

    @property
    def ready(self) -> bool:
        """Whether it has begun, which takes seconds of imports, and can run settings."""
        return self._made.done() and self._made.exception() is None

    def submit(self, limits: Limits, memory: float) -> "Future[TriedSetting | None]":
        """Run a setting there, after those that were submitted before. Its result raises where the process is gone."""
        return self._pool.submit(_run, limits, memory)

    def close(self) -> None:
        """End it, whatever it is at."""
        for child in self._children:
            child.kill()
        self._pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Whatever ends the process that asked, no second one is left behind."""
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
