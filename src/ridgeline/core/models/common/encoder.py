"""Encoders: models that read a text in one step, keep nothing of it, and give its hidden states."""

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.pooling import PoolingMode
from ridgeline.core.ops.work import FULL, AttentionPattern


class Encoder(Model):
    """A trunk that gives hidden states, and no head."""

    has_head = False
    whole = True

    def __init__(
        self, d: Dimensions, trunk: nn.Module, name: str, *, segments: int = 1, mode: PoolingMode | None = None
    ) -> None:
        """trunk: called with ids, positions, a KV context and the rows that are wanted, gives these, normed. name: what
        checkpoints call it. segments: as Model.segments. mode: how states are pooled, where the architecture says
        it.
        """
        super().__init__()
        self.context, self.vocabulary, self.storage, self.segments = d.context, d.vocabulary, d.storage, segments
        self.mode = mode
        self.trunk_name, self.kv_specs = name, ()
        self.add_module(name, trunk)

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        out_RD: Tensor = self.get_submodule(self.trunk_name)(ids_T, positions_T, kv, rows_R)
        return out_RD


def looks_at(d: Dimensions, reach: AttentionPattern = FULL) -> KVSpec:
    """What a layer's attention of such a reach looks at: one key and value a query head."""
    return KVSpec(d.own_heads, d.head_dim, d.head_dim, reach, d.dtype, at_once=True)
