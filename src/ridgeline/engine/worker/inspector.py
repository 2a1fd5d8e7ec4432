"""The inspector, which answers questions about a served model in the engine's process, between two steps.

The engine knows no inspector: its starter names one, which is a function of a higher layer. Requests wait for its
answer.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import Any

from ridgeline.engine.setup import LoadedEngine
from ridgeline.price.device import Device

Inspector = Callable[[LoadedEngine, Device | None, bytes], bytes]
"""A function that answers a question about a model on a device (None if nothing is known of the device).

Raises ValueError for a question that has no answer. It must not touch the requests of the engine.
"""


def function_named(name: str) -> Callable[..., Any]:
    """Import and return the function with the name `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def inspection(name: str, loaded: LoadedEngine, device: Device | None) -> Callable[[bytes], bytes] | None:
    """Return a function that answers questions about this model; None if no inspector is named.

    Args:
        name: The name of an inspector, `module:function`, which is imported at the first question.
        loaded: The loaded engine.
        device: The device of the predictions, if any.
    """
    return partial(_inspect, name, loaded, device) if name else None


def _inspect(name: str, loaded: LoadedEngine, device: Device | None, question: bytes) -> bytes:
    inspector: Inspector = function_named(name)
    return inspector(loaded, device, question)


class PendingInspections:
    """The questions that an inspector has not answered yet, by the sender's tickets."""

    def __init__(self) -> None:
        self._pending: dict[int, Future[bytes]] = {}

    def ask(self, ticket: int) -> Future[bytes]:
        """Add a question to the inspector and return the future of its answer."""
        self._pending[ticket] = Future()
        return self._pending[ticket]

    def resolve(self, ticket: int, found: bytes | Exception) -> None:
        """Complete a question with its answer, or with the reason why there is none; ignore an unknown ticket."""
        answer = self._pending.pop(ticket, None)
        if answer is None or not answer.set_running_or_notify_cancel():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def end(self, error: Exception) -> None:
        """Fail all questions that the inspector has not answered."""
        for ticket in list(self._pending):
            self.resolve(ticket, error)
