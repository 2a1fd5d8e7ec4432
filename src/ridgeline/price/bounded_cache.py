"""A dictionary-based cache with a size limit."""

from typing import TypeVar

# The maximum number of cached results, such as costs by step shape, so that memory stays bounded in a long simulation.
_MAX_KEPT = 4096

K = TypeVar("K")
V = TypeVar("V")


def put(kept: dict[K, V], key: K, value: V) -> V:
    """Store a value under its key and return it. A full cache is cleared first."""
    if len(kept) >= _MAX_KEPT:
        kept.clear()
    kept[key] = value
    return value
