"""Encoders: models that read a text in one step without a KV cache, and return its hidden states."""

from torch import nn

from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.pooling import PoolingMode
from ridgeline.core.ops.work import FULL, AttentionPattern


class Encoder(Model):
    """An encoder model: a backbone that returns hidden states, without a head."""

    has_head = False
    needs_whole_prompt = True

    def __init__(
        self, d: Dimensions, trunk: nn.Module, name: str, *, segments: int = 1, mode: PoolingMode | None = None
    ) -> None:
        """Build an encoder model around a backbone.

        Args:
            d: The sizes.
            trunk: The backbone: it maps ids, positions, a KV context and the requested rows to the normed states of
                these rows.
            name: The checkpoint's name of the backbone.
            segments: Number of texts that the model distinguishes in one prompt.
            mode: The pooling of states that the architecture prescribes; None if it prescribes none.
        """
        super().__init__()
        self.context, self.vocabulary, self.storage, self.token_types = d.context, d.vocabulary, d.storage, segments
        self.mode = mode
        self.trunk_name, self.kv_specs = name, ()
        self.add_module(name, trunk)


def uncached_kv_spec(d: Dimensions, reach: AttentionPattern = FULL) -> KVSpec:
    """Return the cache format of attention whose keys and values are all in the step, one KV head per query head."""
    return KVSpec(d.own_heads, d.head_dim, d.head_dim, reach, d.dtype, whole_sequences=True)
