"""Embedder: a model that returns one vector per text, or the scores of labels: a backbone, pooling, and further stages.

Shapes: T rows of a step, R sequences, D hidden, W width of the result.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, arange, nn
from typing_extensions import override

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import CallListener
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.pooling import Pooling, PoolingMode
from ridgeline.core.ops.stored_module import StoredModule

_MAX_LABELS = 1_000_000


class Dense(nn.Module):
    """A layer act(x W + b) as in sentence-transformers, whose matrix is called `linear`; the activation may be None."""

    part = "head"

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool, activation: str | None) -> None:
        super().__init__()
        spec = MatrixSpec(inputs, outputs, dtype, bias)
        self.activated = None if activation is None else ActivatedProjections({"linear": spec}, activation)
        self.linear = Linear(spec, exempt=True) if activation is None else None

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """Return the dense layer's output [R, outputs] for x_RD [R, inputs]."""
        op = self.linear if self.activated is None else self.activated
        assert op is not None
        return op(x_RD)


class Embedder(Model):
    """A model that pools a text's hidden states into one, and passes that through further stages.

    The requested rows are the last rows of texts, as in a decoder. The step must contain the whole text, unless the
    text is pooled by its last position and the backbone has a KV cache.
    """

    has_head = False
    pooled = True
    part = "head"  # the part of the stages after pooling

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
        """Add pooling and further stages to a model that returns hidden states.

        Args:
            trunk: The model that returns hidden states; the head of a decoder is dropped.
            mode: The pooling mode.
            hidden: Width of the hidden states.
            stages: The modules after pooling, by their names in checkpoints.
            width: Width of the result. Default: `hidden`.
            labels: Number of labels whose scores the result is; 0 for a vector.
            squashed: Whether a score is read as sigmoid(score).
            elsewhere: The folders of stages that the checkpoint does not contain, by stage.
        """
        super().__init__()
        trunk.unnamed = True  # a checkpoint's names begin inside it
        trunk.drop_head()
        self.trunk, self.stage_names, self.elsewhere = trunk, tuple(stages), dict(elsewhere or {})
        self.context, self.vocabulary, self.storage = trunk.context, trunk.vocabulary, trunk.storage
        self.kv_specs, self.token_types, self.ignored_tensors = trunk.kv_specs, trunk.token_types, trunk.ignored_tensors
        self.traced_from, self.priced_only = trunk.traced_from, trunk.priced_only
        self.hidden_width = trunk.hidden_width
        self.mode, self.labels, self.width = mode, labels, labels or width or hidden
        self.applies_sigmoid = squashed
        self.pooling = None if mode == "last" else Pooling(mode, hidden, trunk.storage.dtype)
        for name, stage in stages.items():
            self.add_module(name, stage)

    @contextmanager
    @override
    def on_meta(self, listener: CallListener) -> Iterator[None]:
        """Report each op's call while the context is open, those of the backbone as it reports them itself."""

        def of_backbone(path: str, *call: Any) -> None:
            listener(f"trunk.{path}", *call)

        def of_stages(path: str, *call: Any) -> None:
            if not path.startswith("trunk."):
                listener(path, *call)

        with super().on_meta(of_stages), self.trunk.on_meta(of_backbone):
            yield

    @property
    @override
    def tables(self) -> TokenTables | None:  # type: ignore[override]
        """The token tables of an embedder's backbone, because checkpoint names begin inside it."""
        return self.trunk.tables

    @override
    def arrange_tables(self, held: Mapping[str, str], there: Iterable[str]) -> None:
        """Arrange the token tables of an embedder's backbone, as `PricedModule.arrange_tables` does."""
        self.trunk.arrange_tables(held, there)

    @property
    @override
    def needs_whole_prompt(self) -> bool:
        return self.mode != "last" or self.trunk.needs_whole_prompt

    @override
    def tensors(self) -> dict[str, tuple[StoredModule, str]]:
        """Return the checkpoint tensors that fill an embedder, without those of stages in other folders."""
        return {name: place for name, place in super().tensors().items() if name.split(".")[0] not in self.elsewhere}

    def tensors_of(self, stage: str) -> dict[str, tuple[StoredModule, str]]:
        """Return the tensors that fill a stage stored in another folder, by their names in that folder."""
        every = super().tensors().items()
        return {name.removeprefix(f"{stage}."): place for name, place in every if name.startswith(f"{stage}.")}

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """Return the vector or the label scores of each text, [R, width]; rows_R are the texts' last rows."""
        if self.pooling is None:
            x_RD = self.trunk.hidden(ids_T, positions_T, kv, rows_R)
        else:
            x_TD = self.trunk.hidden(ids_T, positions_T, kv, arange(len(ids_T), device=ids_T.device))
            x_RD = self.pooling(x_TD, rows_R)
        for name in self.stage_names:
            x_RD = self.get_submodule(name)(x_RD)
        return x_RD


def read_labels(fields: Fields) -> dict[str, Any]:
    """Return what a classifier's config states about its scores, as arguments of an Embedder.

    The number of labels is that of the names in `id2label`, else `num_labels`, else 2. The score of a single label is
    squashed by a sigmoid, as sentence-transformers' CrossEncoder does, unless the config names another activation.
    """
    names = fields.value("id2label")
    listed = isinstance(names, dict) and bool(names)
    labels = len(names) if listed else fields.count("num_labels", 2, most=_MAX_LABELS)
    activation_name = fields.section("sentence_transformers").text("activation_fn", "Sigmoid")
    activation = fields.text("sbert_ce_default_activation_function", activation_name).rpartition(".")[2]
    if labels == 1 and activation not in ("Sigmoid", "Identity"):
        raise fields.refuse(f"the activation {activation} of scores is not supported; Sigmoid and Identity are")
    return {"labels": labels, "squashed": labels == 1 and activation == "Sigmoid"}
