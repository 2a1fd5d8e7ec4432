"""Functions of rooms above the engine, by their names: its process is told one, and imports it when it is wanted."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def function_named(name: str) -> Callable[..., Any]:
    """The function called `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
