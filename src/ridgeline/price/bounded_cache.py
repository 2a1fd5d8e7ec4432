"""Results that are kept, so that they are computed once."""

from typing import TypeVar

# Results that a store holds, such as standing costs by the shape of a step; a simulation must not grow without end.
_MAX_KEPT = 4096

K = TypeVar("K")
V = TypeVar("V")


def put(kept: dict[K, V], key: K, value: V) -> V:
    """Keep a value under its key; a full store starts again."""
    if len(kept) >= _MAX_KEPT:
        kept.clear()
    kept[key] = value
    return value
