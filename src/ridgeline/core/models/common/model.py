"""The contract between a model family and the code that runs or prices its models."""

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
"""The function that returns the storage format of a model's weight, given its slot; None for the model's dtype."""


@dataclass(frozen=True, slots=True)
class ImagePlaceholders:
    """The layout of an image in a prompt: a run of placeholder tokens, which the rows of the image encoder replace."""

    placeholder: int
    """The placeholder token id at each position of an image in a prompt."""
    rows: int
    """Number of prompt positions that an image takes, one per patch."""
    width: int
    """Numbers per image patch, as the encoder reads it."""


class Model(PricedModule):
    """A model that the engine runs: token ids, positions and a KV context in, hidden states and logits out.

    Only the requested rows of hidden states are returned. A model without a head has no logits.
    """

    kv_specs: tuple[CacheSpec, ...]
    """The cache formats of a model's ops that keep keys and values or a state, in the order of the ops' `layer`."""
    context: int
    """The maximum number of positions of a sequence."""
    vocabulary: int
    """Number of token ids that the model reads."""
    adapters: AdapterRows | None = None
    """The assignment of a step's rows to LoRA adapters; None if no adapter is loaded."""
    has_cross_attention = False
    """Whether sequences attend to the output of an encoder."""
    images: ImagePlaceholders | None = None
    """The layout of images in a prompt; None if prompts may not contain images."""
    encoder_context = 0
    """The maximum number of positions of a model's encoder."""
    encoder_width = 0
    """Numbers per encoder position if the encoder reads features (audio); 0 if it reads token ids."""
    has_head = True
    """Whether the model has a head and returns logits."""
    pooled = False
    """Whether the model returns one result per text, in the text's last row."""
    sampled_vocab_size: int | None = None
    """The number of logits, which are those of the first token ids; None for all ids."""
    token_types = 1
    """Number of texts that the model distinguishes in one prompt (BERT's token types).

    The ids of the second text are shifted by the size of the vocabulary.
    """
    hidden_width: int = 0
    """The width of the hidden states that a model returns; 0 if it is that of the token embedding."""
    traced_from: str = ""
    """The package whose class defines a model, as in "transformers 5.24"; "" for a model of Ridgeline's families."""
    priced_only: str = ""
    """The reason why the engine prices a model but does not run it, in one line; "" if it runs."""
    undivided: str = ""
    """The modules whose matrices or tables ranks hold whole, with their shares of the weights; "" if there are none."""
    unused_latent: int = 0
    """The numbers of the latent that a model's class keeps of a token in a layer, if the engine keeps more; else 0."""
    row_axes: tuple[RowAxis, ...] = (TOKENS, LOGITS, ENCODER)
    """The kinds of rows that a step has: token rows, rows with logits, and encoder rows."""

    trunk_name: str
    """The name of the module whose forward pass gives the hidden states, for models that have only one."""

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states of a step's requested rows, after the final norm, [R, hidden].

        Args:
            ids_T: Token ids int64 [rows]. If the prompt may contain images, an id below 0 stands for a row of
                `encoded_ED`; -1 is the first.
            positions_T: Positions int64 [rows].
            kv: The KV context of the step.
            rows_R: Indices int64 of the requested rows.
            encoded_ED: The result of `encode` for this step's encoder rows; None if the step has none.
        """
        return self.get_submodule(self.trunk_name)(ids_T, positions_T, kv, rows_R)

    @override
    def shown_path(self, path: str) -> str:
        """Return the path of an op as reports show it: in a model of a class, without the modules around the class."""
        return self.checkpoint_name(path) if self.traced_from else path

    def drop_head(self) -> None:
        """Make the model return hidden states only, if its head can be left out; call it before weights are loaded."""

    def encode(self, ids_E: Tensor, positions_E: Tensor, kv: KVContext) -> Tensor:
        """Return the encoder's last hidden states, [encoder rows, hidden].

        Args:
            ids_E: Token ids int64 [encoder rows]; features fp32 [encoder rows, encoder_width] if the encoder reads
                features.
            positions_E: Positions int64 [encoder rows].
            kv: The KV context of the step.
        """
        raise AssertionError("this model has no encoder")

    def head(self, x_RD: Tensor) -> Tensor:
        """Return the logits, fp32 [R, vocabulary] or [R, sampled_vocab_size], of last hidden states [R, hidden]."""
        raise AssertionError("this model has no head")

    @override
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """Return the logits of a step's requested rows: `head` of `hidden`."""
        return self.head(self.hidden(ids_T, positions_T, kv, rows_R))

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        tokens, encoded = rows[TOKENS], rows[ENCODER] if self.has_encoder else 0
        kv = Uncached([StepSegment(tokens, tokens, encoded, runs_encoder=bool(encoded))])
        ids_T, ids_E, rows_R = (torch.empty(count, dtype=torch.int64) for count in (tokens, encoded, rows[LOGITS]))
        width = self.encoder_width if self.images is None else self.images.width
        read_E = torch.empty(encoded, width) if width else ids_E
        encoded_ED = self.encode(read_E, ids_E, kv) if encoded else None
        x_RD = self.hidden(ids_T, ids_T, kv, rows_R, encoded_ED)
        if self.has_head:
            self.head(x_RD)

    @property
    def has_encoder(self) -> bool:
        """Whether the model has an encoder, of text, audio or images."""
        return self.has_cross_attention or self.images is not None

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether a prompt must run in one step, for bidirectional attention or to pool all positions."""
        return any(reach.is_bidirectional and reach.query_axis == TOKENS for reach in self.attention_patterns)

    def store(self, choose: WeightChoice) -> None:
        """Set the weight formats of all matrices and of the token table, before any weight is loaded.

        `choose` returns the format of a weight slot. A tied head gets the format of the table.
        """
        path, table = self._token_table()
        self._store_op(path, table, choose)
        for path, op in self.ops():
            places = op.weight_slots()
            kinds = {place.kind for place in places.values()}
            if "head" in kinds and self.tied:
                op.set_weight_formats(dict.fromkeys(places, table.stored))
            elif "embedding" not in kinds:
                self._store_op(path, op, choose)
        self.tie()

    def _store_op(self, path: str, op: Op, choose: WeightChoice) -> None:
        """Set the weight formats of an op's slots, which are named as in the checkpoint."""
        places = op.weight_slots()
        if not places:
            return
        name, chosen = self.module_name(path), dict[str, WeightFormat | None]()
        for key, place in places.items():
            chosen[key] = choose(replace(place, name=f"{name}.{place.name}" if place.name else name))
        op.set_weight_formats(chosen)

    def collect_cache_specs(self) -> None:
        """Set `kv_specs` to the cache formats of the model's ops."""
        self.kv_specs = tuple(op.cache_spec for _, op in self.ops() if op.cache_spec is not None)

    def _token_table(self) -> tuple[str, Embedding]:
        """Return the token embedding with its path: the one that the head is tied to, else the first.

        In a speech model the first embedding is that of the encoder's positions.
        """
        tied = {path.rpartition(".")[0] for path in self.ties.values()}
        return next((path, op) for path, op in self.ops_of(Embedding) if not tied or path in tied)

    def decode_ops(self) -> list[Op]:
        """Return the ops of a model that a decode step may run: all of them, unless a model overrides this."""
        return [op for _, op in self.ops()]
