"""Model: the contract between a family and whoever runs or prices it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext, Uncached
from ridgeline.core.ops.kv_layout import CacheSpec
from ridgeline.core.ops.matrix import AdapterRows
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import ENCODER, LOGITS, TOKENS, RowAxis, StepSegment

WeightChoice = Callable[[WeightSlot], WeightFormat | None]
"""The format of a matrix or a table; None for the model's dtype."""


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """How an image stands in a prompt: `rows` places, whose ids are all `placeholder`, in which there are rows of what
    `encode` gives for as many patches, of `width` numbers each.
    """

    placeholder: int
    rows: int
    width: int


class Model(PricedModule):
    """What the engine runs: token ids, positions and a KV context in, hidden states of the wanted rows out, and logits
    of them where the model has a head.

    kv_specs: what each op that keeps something keeps, K and V or a state, by its place (`layer`). context: positions a
    sequence may have. encodes: whether sequences look at the rows of an encoder. encoder_context: positions that one
    reads. encoder_width: numbers of each, where it reads no ids. has_head: whether it gives logits. pooled: whether the
    last row of a text is answered for all of it. outputs: how many ids it gives logits of, the first of the vocabulary,
    where those are not all. images: how images stand in a prompt, where they may. segments: how many texts it tells
    apart in a prompt; the ids of the second are moved on by the size of the vocabulary. adapters: where adapters are
    beside its matrices, what is to be told which rows of a step are whose.
    """

    kv_specs: tuple[CacheSpec, ...]
    context: int
    vocabulary: int
    adapters: AdapterRows | None = None
    encodes = False
    images: PlacedRows | None = None
    encoder_context = 0
    encoder_width = 0
    has_head = True
    pooled = False
    sampled_vocab_size: int | None = None
    segments = 1
    spaces: tuple[RowAxis, ...] = (TOKENS, LOGITS, ENCODER)

    @abstractmethod
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """ids_T, positions_T int64 [rows]; rows_R int64: the rows that are wanted -> their last hidden states, normed,
        [R, hidden]. encoded_ED: what `encode` gave for the encoder's rows of this step, None where it has none; where
        images may stand in a prompt, an id below 0 is one of these rows, -1 the first.
        """

    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """ids_E, positions_E int64 [encoder rows] -> the encoder's last hidden states [encoder rows, hidden]. One that
        reads features has them in the place of ids, fp32 [encoder rows, encoder_width].
        """
        raise AssertionError("this model has no encoder")

    def head(self, x_RD: Tensor) -> Tensor:
        """Last hidden states [R, hidden] -> logits fp32 [R, vocabulary], or [R, outputs]."""
        raise AssertionError("this model has no head")

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """The logits of the rows that are wanted: `head` of `hidden`."""
        return self.head(self.hidden(ids_T, positions_T, kv, rows_R))

    @override
    def _outline(self, rows: Mapping[RowAxis, int]) -> None:
        tokens, encoded = rows[TOKENS], rows[ENCODER] if self.has_encoder else 0
        kv = Uncached([StepSegment(tokens, tokens, encoded, encodes=bool(encoded))])
        ids_T, ids_E, rows_R = (torch.empty(count, dtype=torch.int64) for count in (tokens, encoded, rows[LOGITS]))
        width = self.encoder_width if self.images is None else self.images.width
        read_E = torch.empty(encoded, width) if width else ids_E
        encoded_ED = self.encode(read_E, ids_E, kv) if encoded else None
        x_RD = self.hidden(ids_T, ids_T, kv, rows_R, encoded_ED)
        if self.has_head:
            self.head(x_RD)

    @property
    def has_encoder(self) -> bool:
        """Whether there is something for `encode` to read."""
        return self.encodes or self.images is not None

    @property
    def whole(self) -> bool:
        """Whether a prompt has to run in one step, because its positions see later ones, or all make its answer."""
        return any(reach.both_ways and reach.space == TOKENS for reach in self.reaches)

    def store(self, choose: WeightChoice) -> None:
        """Keep matrices and the table of tokens in the formats that `choose(place)` names, unfilled. A tied head is
        that table, in whatever format it is.
        """
        path, table = self._token_table()
        self._store_op(path, table, choose)
        for path, op in self.ops():
            places = op.places()
            kinds = {place.kind for place in places.values()}
            if "head" in kinds and self.tied:
                op.store(dict.fromkeys(places, table.stored))
            elif "embedding" not in kinds:
                self._store_op(path, op, choose)
        self.tie()

    def _store_op(self, path: str, op: Op, choose: WeightChoice) -> None:
        name, chosen = self.module_name(path), dict[str, WeightFormat | None]()
        for key, place in op.places().items():
            chosen[key] = choose(replace(place, name=f"{name}.{place.name}" if place.name else name))
        op.store(chosen)

    def note_kept(self) -> None:
        """Set `kv_specs` to what the ops keep."""
        self.kv_specs = tuple(op.kept_spec for _, op in self.ops() if op.kept_spec is not None)

    def _token_table(self) -> tuple[str, Embedding]:
        """The embedding of tokens, with its path: what the head is tied to, else the first; a speech model's first is
        of its encoder's positions.
        """
        tied = {path.rpartition(".")[0] for path in self.ties.values()}
        return next((path, op) for path, op in self.ops_of(Embedding) if not tied or path in tied)

    def decode_ops(self) -> list[Op]:
        """Return the ops that a decode step runs."""
        return [op for _, op in self.ops()]
