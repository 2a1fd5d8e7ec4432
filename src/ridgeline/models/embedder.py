"""Embedder: a model whose answer to a text is one vector, or the scores of labels: a trunk, pooling, and what follows.

Shapes: T rows of a step, R sequences, D hidden, W width of the answer.
"""

from collections.abc import Mapping

from torch import Tensor, arange, nn

from ridgeline.models.decoder import Decoder
from ridgeline.models.fields import Fields
from ridgeline.models.model import Model
from ridgeline.ops.attention import KVContext
from ridgeline.ops.pooling import Pooling, PoolingMode

_MOST_LABELS = 1_000_000


class Embedder(Model):
    """A trunk whose states of a text are pooled into one, which then passes the stages.

    The rows that are wanted of it are the last ones of texts, as a decoder's are; the whole text is in the step, unless
    it is pooled by its last position, of a trunk that keeps the others.
    """

    has_head = False
    pooled = True
    part = "head"  # of what follows the pooling

    def __init__(
        self,
        trunk: Model,
        mode: PoolingMode,
        hidden: int,
        stages: Mapping[str, nn.Module],
        *,
        width: int | None = None,
        labels: int = 0,
    ) -> None:
        """stages: by the names that checkpoints have for them. width: of the answer, by default `hidden`. labels: how
        many labels' scores it is; 0 for a vector."""
        super().__init__()
        trunk.unnamed = True  # a checkpoint's names begin within it
        if isinstance(trunk, Decoder):
            trunk.drop_head()
        self.trunk, self.stage_names = trunk, tuple(stages)
        self.context, self.vocabulary, self.storage = trunk.context, trunk.vocabulary, trunk.storage
        self.kv_specs, self.segments = trunk.kv_specs, trunk.segments
        self.mode, self.labels, self.width = mode, labels, labels or width or hidden
        self.pooling = Pooling(mode, hidden, trunk.storage.dtype)
        for name, stage in stages.items():
            self.add_module(name, stage)

    @property
    def whole(self) -> bool:
        """As Model.whole."""
        return self.mode != "last" or super().whole

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden, of texts: rows_R are their last rows -> [R, width]."""
        if self.mode == "last":
            x_RD = self.trunk.hidden(ids_T, positions_T, kv, rows_R)
        else:
            x_TD = self.trunk.hidden(ids_T, positions_T, kv, arange(len(ids_T), device=ids_T.device))
            x_RD = self.pooling(x_TD, rows_R)
        for name in self.stage_names:
            x_RD = self.get_submodule(name)(x_RD)
        return x_RD


def labels_of(fields: Fields) -> int:
    """How many labels a classifier tells apart: as many as it has names for, else `num_labels`, else 2."""
    names = fields.value("id2label")
    if isinstance(names, dict) and names:
        return len(names)
    return fields.count("num_labels", 2, most=_MOST_LABELS)
