"""The search for what a class of transformers keeps of a sequence, by the layers of the cache made for it."""

from typing import Any

STATE = "it keeps a recurrent or convolution state of each sequence, which the engine does not know"
INDEX = "its attention chooses keys by an index, whose keys the engine does not keep"
BORROWED = "it reads the keys and values of another model"
OWN = "it keeps more of each sequence than keys and values"


def kept_besides_kv(cls: Any, config: Any) -> str:
    """Return what the engine does not keep of what a class keeps of a sequence, as a clause; "" if it keeps all.

    Args:
        cls: The class, a `PreTrainedModel`.
        config: Its config.
    """
    from transformers import cache_utils as known

    kinds = _layer_kinds(config)
    if any(issubclass(kind, known.LinearAttentionCacheLayerMixin) for kind in kinds):
        return STATE
    if known.DynamicIndexedLayer in kinds:
        return INDEX
    if kinds == {known.DummyLayer}:
        return BORROWED
    if kinds - {known.DynamicLayer, known.DynamicSlidingWindowLayer, known.DummyLayer}:
        return OWN
    return STATE if cls._is_stateful else ""


def _layer_kinds(config: Any) -> set[Any]:
    """Return the classes of the layers of the cache for a config; none if transformers makes no cache for it."""
    from transformers import DynamicCache

    try:
        return {type(layer) for layer in DynamicCache(config=config).layers}
    except (AttributeError, KeyError, TypeError, ValueError):  # a config without a number of layers
        return set()
