"""An inspector: what answers questions about a model that is served, in the engine's process, between two steps.

The engine knows none: who starts it names one, a function of rooms above it. Requests under way wait for its answer.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import Any

from ridgeline.engine.setup import LoadedEngine
from ridgeline.price.device import Device

Inspector = Callable[[LoadedEngine, Device | None, bytes], bytes]
"""Answers a question about a model on a device, None where nothing is known of that. Raises ValueError for a question
that has no answer; requests of the engine that it was given are not its own to touch."""


def function_named(name: str) -> Callable[..., Any]:
    """The function called `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def inspection(name: str, loaded: LoadedEngine, device: Device | None) -> Callable[[bytes], bytes] | None:
    """What answers questions about this model: the inspector called `module:function`, imported when it is first
    asked; None where there is no name.
    """
    return partial(_inspect, name, loaded, device) if name else None


def _inspect(name: str, loaded: LoadedEngine, device: Device | None, question: bytes) -> bytes:
    inspector: Inspector = function_named(name)
    return inspector(loaded, device, question)


class PendingInspections:
    """Those that an inspector was asked and has not answered, by the asker's tickets."""

    def __init__(self) -> None:
        self._asked: dict[int, Future[bytes]] = {}

    def ask(self, ticket: int) -> Future[bytes]:
        """Where the answer will be."""
        self._asked[ticket] = Future()
        return self._asked[ticket]

    def resolve(self, ticket: int, found: bytes | Exception) -> None:
        """An answer, or why there is none; nothing where nobody waits for it."""
        answer = self._asked.pop(ticket, None)
        if answer is None or not answer.set_running_or_notify_cancel():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def end(self, error: Exception) -> None:
        """None of them will be answered."""
        for ticket in list(self._asked):
            self.resolve(ticket, error)
