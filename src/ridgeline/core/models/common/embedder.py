"""Embedder: a model whose answer to a text is one vector, or the scores of labels: a trunk, pooling, and what follows.

Shapes: T rows of a step, R sequences, D hidden, W width of the answer.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, arange, nn
from typing_extensions import override

from ridgeline.core.models.common.decoder import Decoder
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.pooling import Pooling, PoolingMode
from ridgeline.core.ops.stored_module import StoredModule

_MAX_LABELS = 1_000_000


class Dense(nn.Module):
    """act(x W + b), as sentence-transformers has it: a matrix called `linear`. activation: None for none."""

    part = "head"

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool, activation: str | None) -> None:
        super().__init__()
        spec = MatrixSpec(inputs, outputs, dtype, bias)
        self.activated = None if activation is None else ActivatedProjections({"linear": spec}, activation)
        self.linear = Linear(spec, exempt=True) if activation is None else None

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """x_RD [R, inputs] -> [R, outputs]."""
        op = self.linear if self.activated is None else self.activated
        assert op is not None
        out: Tensor = op(x_RD)
        return out


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
        squashed: bool = False,
        elsewhere: Mapping[str, Path] | None = None,
    ) -> None:
        """stages: by the names that checkpoints have for them. width: of the answer, by default `hidden`. labels: how
        many labels' scores it is; 0 for a vector. squashed: whether a score is read as sigmoid(score). elsewhere: of
        the stages that the checkpoint does not hold, the folders that do.
        """
        super().__init__()
        trunk.unnamed = True  # a checkpoint's names begin within it
        if isinstance(trunk, Decoder):
            trunk.drop_head()
        self.trunk, self.stage_names, self.elsewhere = trunk, tuple(stages), dict(elsewhere or {})
        self.context, self.vocabulary, self.storage = trunk.context, trunk.vocabulary, trunk.storage
        self.kv_specs, self.segments, self.passed_over = trunk.kv_specs, trunk.segments, trunk.passed_over
        self.mode, self.labels, self.width = mode, labels, labels or width or hidden
        self.squashed = squashed
        self.pooling = None if mode == "last" else Pooling(mode, hidden, trunk.storage.dtype)
        for name, stage in stages.items():
            self.add_module(name, stage)

    @property
    @override
    def tables(self) -> TokenTables | None:  # type: ignore[override]
        """The tables of the trunk, because the names of a checkpoint begin within it."""
        return self.trunk.tables

    @override
    def arrange_tables(self, held: Mapping[str, str], there: Iterable[str]) -> None:
        """Arrange the tables of the trunk, as `PricedModule.arrange_tables` does."""
        self.trunk.arrange_tables(held, there)

    @property
    @override
    def whole(self) -> bool:
        return self.mode != "last" or self.trunk.whole

    @override
    def tensors(self) -> dict[str, tuple[StoredModule, str]]:
        """As Model.tensors, without what the checkpoint does not hold."""
        return {name: place for name, place in super().tensors().items() if name.split(".")[0] not in self.elsewhere}

    def tensors_of(self, stage: str) -> dict[str, tuple[StoredModule, str]]:
        """As tensors, of a stage that the checkpoint does not hold, by their names in its own folder."""
        every = super().tensors().items()
        return {name.removeprefix(f"{stage}."): place for name, place in every if name.startswith(f"{stage}.")}

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden, of texts: rows_R are their last rows -> [R, width]."""
        if self.pooling is None:
            x_RD = self.trunk.hidden(ids_T, positions_T, kv, rows_R)
        else:
            x_TD = self.trunk.hidden(ids_T, positions_T, kv, arange(len(ids_T), device=ids_T.device))
            x_RD = self.pooling(x_TD, rows_R)
        for name in self.stage_names:
            x_RD = self.get_submodule(name)(x_RD)
        return x_RD


def read_labels(fields: Fields) -> dict[str, Any]:
    """What a classifier's config says of its scores, as arguments of an Embedder: how many labels it tells apart (as
    many as it has names for, else `num_labels`, else 2), and whether a single one's score is squashed, which
    sentence-transformers' CrossEncoder does unless the config names another activation.
    """
    names = fields.value("id2label")
    listed = isinstance(names, dict) and bool(names)
    labels = len(names) if listed else fields.count("num_labels", 2, most=_MAX_LABELS)
    said = fields.section("sentence_transformers").text("activation_fn", "Sigmoid")
    activation = fields.text("sbert_ce_default_activation_function", said).rpartition(".")[2]
    if labels == 1 and activation not in ("Sigmoid", "Identity"):
        raise fields.refuse(f"scores passed through {activation} are not supported; Sigmoid and Identity are")
    return {"labels": labels, "squashed": labels == 1 and activation == "Sigmoid"}
