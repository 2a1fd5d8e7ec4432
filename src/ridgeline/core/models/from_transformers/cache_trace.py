"""The cache of a release while its forward pass is traced: an op of its own counts what it keeps."""

from copy import deepcopy
from dataclasses import dataclass
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
                setattr(layer, name, _WatchedUpdate(layer, name, trace))


@dataclass(frozen=True, slots=True)
class _WatchedUpdate:
    """A method of a cache's layer that keeps new tensors, watched by a trace."""

    layer: Any
    name: str
    trace: AtenTrace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.trace.mark_read((args, kwargs))
        if self.name == "update_recurrent_state":  # the new state goes to the cache and nowhere else
            self.trace.mark_cached(args[:1])
        with self.trace.paused():
            kept = getattr(type(self.layer), self.name)(self.layer, *args, **kwargs)
        if self.name == "update_conv_state":  # the rows before the new ones, and these
            self.trace.mark_joined(kept, args[:1])
        else:
            self.trace.mark_cached(kept)
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> "_WatchedUpdate":
        """Return the method of the layer's copy: some classes run a layer several times and copy its cache."""
        return _WatchedUpdate(deepcopy(self.layer, memo), self.name, self.trace)
