"""The cache of a release while its forward pass is traced: an op of its own counts what it keeps."""

from collections.abc import Callable
from typing import Any

from ridgeline.core.models.from_transformers.aten_costs import AtenTrace
from ridgeline.core.models.from_transformers.cache_reading import kept_tensors

_UPDATES = ("update", "update_conv_state", "update_recurrent_state", "update_indexer")


def watch_cache(cache: Any, trace: AtenTrace) -> None:
    """Mark the tensors that a cache of transformers holds and returns, and do not count the operations of the cache.

    Args:
        cache: A `Cache` of transformers whose layers exist, or the cache of a class that has one of its own.
        trace: The running trace.
    """
    for kept in kept_tensors(cache):
        trace.mark_cached(kept)
    for layer in getattr(cache, "layers", ()):
        for name in _UPDATES:
            if hasattr(layer, name):
                setattr(layer, name, _watched(getattr(layer, name), trace, is_state=name == "update_recurrent_state"))


def _watched(update: Callable[..., Any], trace: AtenTrace, *, is_state: bool) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        trace.mark_read((args, kwargs))
        if is_state:  # the new state goes to the cache and nowhere else
            trace.mark_cached(args[:1])
        with trace.paused():
            kept = update(*args, **kwargs)
        trace.mark_cached(kept)
        return kept

    return watched
