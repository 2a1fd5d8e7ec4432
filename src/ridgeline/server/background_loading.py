"""Loading of models in a thread of the server's process, which stops when the waiting coroutine is cancelled."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Progress = Callable[[int, int], None]

_Loaded = TypeVar("_Loaded")


class LoadAbandoned(Exception):
    """The exception that stops the loading of a model because its caller was cancelled."""


class LoadCancellation:
    """A cancellation flag for the loading of a model; `over` is set once the caller no longer waits."""

    def __init__(self) -> None:
        self.over = False

    def progress(self, shown: Progress | None) -> Progress:
        """Return a progress callback that calls `shown`, and raises `LoadAbandoned` once the load is cancelled."""

        def on_progress(done: int, total: int) -> None:
            if self.over:
                raise LoadAbandoned
            if shown is not None:
                shown(done, total)

        return on_progress


async def load_in_thread(load: Callable[[LoadCancellation], _Loaded]) -> _Loaded:
    """Run `load` in a thread and return its result; a cancelled `load` stops at its next progress report."""
    waiting = LoadCancellation()
    try:
        return await asyncio.to_thread(load, waiting)
    finally:
        waiting.over = True
