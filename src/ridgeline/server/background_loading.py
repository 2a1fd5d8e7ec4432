"""Loading of models in a thread of the server's process, which ends when nobody waits for them any more."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Progress = Callable[[int, int], None]

_Loaded = TypeVar("_Loaded")


class LoadAbandoned(Exception):
    """Nobody waits for the model any more."""


class LoadCancellation:
    """Whether somebody still waits."""

    def __init__(self) -> None:
        self.over = False

    def progress(self, shown: Progress | None) -> Progress:
        """Tells `shown` how far weights are read. Raises Abandoned at the next tensor after nobody waits any more."""

        def told(done: int, total: int) -> None:
            if self.over:
                raise LoadAbandoned
            if shown is not None:
                shown(done, total)

        return told


async def load_in_thread(load: Callable[[LoadCancellation], _Loaded]) -> _Loaded:
    """What `load` gives, done in a thread; when this is cancelled it ends at the next tensor."""
    waiting = LoadCancellation()
    try:
        return await asyncio.to_thread(load, waiting)
    finally:
        waiting.over = True
