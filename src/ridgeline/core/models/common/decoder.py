"""The parts of a decoder-only transformer: attention, feed-forward layers, a backbone of blocks (blocks.py), a head.

The file of a model family puts them together and passes what is special as arguments. Modules have the names of the
checkpoint's tensors, so that loading needs no table: `model.layers.0.self_attn.q_proj.weight` is a path in both, if
modules that are `unnamed` are left out.

The residual stream is passed on as two summands, x and the output of the last attention or feed-forward part, because
the next norm does the addition (`core/ops/norm.py`).

Shapes: T rows of a step, R requested rows, D hidden, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import HeadNorm
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.collective import all_gather, all_reduce
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear, LMHead, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import AddNorm, AddRMSNorm
from ridgeline.core.ops.output_gate import SigmoidGate
from ridgeline.core.ops.query_scale import QueryScale, QueryScaleTable, ScaledQueries
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.rotary import Angles, Rope, RotaryTable
from ridgeline.core.ops.row_ops import JoinColumns, RowPicker

MTP = (r"mtp\..*",)
"""Patterns of tensors that a family ignores: layers for multi-token prediction (MTP)."""


class SelfAttention(nn.Module):
    """The self-attention of a decoder layer, with optional norms of queries and keys and an optional output gate.

    The norms apply to each head (Qwen3) or to all heads at once (OLMo 2), depending on their width. With a gate
    (Qwen3-Next) the query projection returns each head's queries, then its gate.
    """

    part = "attention"

    def __init__(
        self,
        d: Dimensions,
        attend: Attention,
        qkv: Mapping[str, MatrixSpec],
        *,
        output_bias: bool = False,
        head_norms: tuple[HeadNorm, HeadNorm] | None = None,
        gated: bool = False,
        scaled: bool = False,
    ) -> None:
        """Build the query, key, value and output projections, and the norms, around an attention op.

        Args:
            d: The sizes.
            attend: The attention op.
            qkv: The specs of the query, key and value projections: three matrices, or a fused one.
            output_bias: Whether the output projection has a bias.
            head_norms: The norms of queries and of keys.
            gated: Whether a sigmoid gate multiplies the result.
            scaled: Whether queries are scaled by their position.
        """
        super().__init__()
        self.head_dim = d.head_dim
        self.qkv = Projections(qkv)
        self.q_norm: HeadNorm | None = None
        self.k_norm: HeadNorm | None = None
        if head_norms is not None:
            self.q_norm, self.k_norm = head_norms
        self.scaled_queries = ScaledQueries(attend.heads * d.head_dim, d.dtype) if scaled else None
        self.attend = attend
        self.gate = SigmoidGate(attend.heads * d.head_dim, d.dtype) if gated else None
        self.o_proj = Linear(d.row(d.heads * d.head_dim, d.hidden, bias=output_bias))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor, angles: Angles | None, kv: KVContext) -> Tensor:
        """Return the attention output [rows, hidden] for x_TD [rows, hidden].

        A layer without rotary embedding (NoPE) does not rotate by `angles`, but it may read the query scales in them
        (Llama 4).
        """
        q_TO, k_TO, v_TO = self.qkv(x_TD)
        gate_THD: Tensor | None = None
        if self.gate is not None:
            q_TO, gate_THD = torch.split(q_TO.view(len(x_TD), -1, 2 * self.head_dim), self.head_dim, dim=-1)
        q_THD, k_TKD, v_TKD = self._heads(q_TO, self.q_norm), self._heads(k_TO, self.k_norm), self._heads(v_TO)
        if self.scaled_queries is not None:  # before the rotation, with which scaling commutes
            assert angles is not None
            q_THD = self.scaled_queries(q_THD, angles[2])
        turned = None if self.attend.rope is None else angles
        out_TO: Tensor = self.attend(q_THD, k_TKD, v_TKD, kv, turned)
        if self.gate is not None:
            out_TO = self.gate(out_TO, gate_THD)
        return self.all_reduce(self.o_proj(out_TO))

    def _heads(self, x_TO: Tensor, norm: HeadNorm | None = None) -> Tensor:
        """Split queries, keys or values [rows, heads x D] into [rows, heads, D], normalised if there is a norm."""
        if norm is not None:
            x_TO = norm(x_TO.reshape(len(x_TO), norm.per_token, norm.width))
        return x_TO.reshape(len(x_TO), -1, self.head_dim)


class MLP(nn.Module):
    """A feed-forward layer with the checkpoint's names: down(act(up(x))), or down(act(gate(x)) * up(x))."""

    part = "feed-forward"
    first: ClassVar[str] = "fc"
    """The name of the module that holds the up (and gate) matrices, which checkpoints leave out."""

    def __init__(
        self, d: Dimensions, up: Mapping[str, MatrixSpec], down: str, spec: MatrixSpec, *, summand: bool = False
    ) -> None:
        """Build a feed-forward layer from the specs of its matrices.

        Args:
            d: The sizes.
            up: The specs of the first matrices by name: one, or those of gate and up, separate or fused.
            down: The name of the last matrix.
            spec: The spec of the last matrix.
            summand: Whether the caller sums the result over the ranks, because it adds something to it first.
        """
        super().__init__()
        self.add_module(self.first, ActivatedProjections(up, d.activation))
        self.down = down
        self.add_module(down, Linear(spec))
        self.all_reduce = nn.Identity() if summand else all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the feed-forward output [rows, hidden] for x_TD [rows, hidden]."""
        return self.all_reduce(getattr(self, self.down)(getattr(self, self.first)(x_TD)))


class GatedMLP(MLP):
    """A gated feed-forward layer, down(act(gate(x)) * up(x)), whose last matrix is called `down_proj` as in Llama."""

    first = "gate_up"

    def __init__(
        self,
        d: Dimensions,
        gate_up: Mapping[str, MatrixSpec],
        *,
        bias: bool = False,
        width: int | None = None,
        summand: bool = False,
    ) -> None:
        """Build a gated feed-forward layer from the specs of its gate and up matrices.

        Args:
            d: The sizes.
            gate_up: The specs of the gate and up matrices: two, or a fused one.
            bias: Whether the last matrix has a bias.
            width: The width of the layer, if it is not the model's.
            summand: Whether the caller sums the result over the ranks.
        """
        super().__init__(d, gate_up, "down_proj", d.row(width or d.width, d.hidden, bias=bias), summand=summand)


class Backbone(nn.Module):
    """The decoder without its head: embedding, blocks and final norm; checkpoints call it `model`."""

    def __init__(
        self,
        d: Dimensions,
        rope: Rope | None,
        blocks: Sequence[nn.Module],
        *,
        norm: AddNorm | None = None,
        embedding_scale: float | None = None,
        local: tuple[Rope, Sequence[bool]] | None = None,
        query_scale: QueryScale | None = None,
    ) -> None:
        """Build a decoder's embedding, rotary tables and final norm around its blocks.

        Args:
            d: The sizes.
            rope: The rotary embedding; None if no layer has one.
            blocks: The transformer blocks, which are called as `Block` is.
            norm: The final norm. Default: an AddRMSNorm.
            embedding_scale: The factor of embedded tokens (Gemma).
            local: A second rotary embedding, and which layers use it (Gemma 3).
            query_scale: The scale of queries by position, for layers that use it.
        """
        super().__init__()
        self.wanted = RowPicker()
        self.embed_tokens: nn.Module = Embedding(
            d.vocabulary, d.hidden, d.dtype, d.vocabulary_shard, scale=embedding_scale
        )
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.vocabulary_shard)
        self.rotary = None if rope is None else RotaryTable(rope)
        self.local_rotary = None if local is None else RotaryTable(local[0])
        self.query_scale = None if query_scale is None else QueryScaleTable(query_scale)
        self.is_local: Sequence[bool] = (False,) * len(blocks) if local is None else local[1]
        self.layers = nn.ModuleList(blocks)
        self.norm: AddNorm | ResidualAdd = norm or AddRMSNorm(d.hidden, d.eps, d.dtype)
        self.taken: Sequence[int] = ()
        self.join: JoinColumns | None = None

    def stop_after(self, *layers: int) -> None:
        """Make the model return the states after these numbers of layers, unnormed, and drop the layers above.

        Several numbers give the states side by side; the last number is the highest.
        """
        assert isinstance(self.norm, AddNorm)
        *self.taken, last = layers
        width, dtype = self.norm.width, self.norm.weight.dtype
        self.norm, self.join = (
            ResidualAdd(width, dtype),
            JoinColumns(len(layers) * width, dtype) if self.taken else None,
        )
        self.layers, self.is_local = self.layers[:last], self.is_local[:last]

    @override
    def forward(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, placed_ED: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states of a step's requested rows, after the final norm, [R, hidden].

        Args:
            ids_T: Token ids int64 [rows].
            positions_T: Positions int64 [rows].
            kv: The KV context of the step.
            rows_R: Indices int64 of the requested rows.
            placed_ED: The rows that stand for ids below 0, if the embedding is a PlacedEmbedding.
        """
        embedded_TD = self.embed_tokens(ids_T) if placed_ED is None else self.embed_tokens(ids_T, placed_ED)
        x_TD: Tensor = self.all_reduce(embedded_TD)
        y_TD: Tensor | None = None
        angles: Angles | None = None if self.rotary is None else self.rotary(positions_T)
        if angles is not None and self.query_scale is not None:
            angles = (*angles, self.query_scale(positions_T))
        local: Angles | None = angles if self.local_rotary is None else self.local_rotary(positions_T)
        taken: list[Tensor] = []
        for number, (layer, is_local) in enumerate(zip(self.layers, self.is_local, strict=True), start=1):
            x_TD, y_TD = layer(x_TD, y_TD, local if is_local else angles, kv)
            if number in self.taken:
                taken.append(self.norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R)))
        assert y_TD is not None
        given = self.norm(self.wanted(x_TD, rows_R), self.wanted(y_TD, rows_R))
        out_RD: Tensor = given if isinstance(self.norm, ResidualAdd) else given[1]
        return out_RD if self.join is None else self.join(*taken, out_RD)


class Decoder(Model):
    """A decoder-only language model: a backbone with a head, which may be tied to the embedding."""

    def __init__(
        self,
        d: Dimensions,
        trunk: nn.Module,
        *,
        tied: bool,
        softcap: float | None = None,
        multiplier: float = 1.0,
        bias: bool = False,
        names: tuple[str, str] = ("model", "embed_tokens"),
    ) -> None:
        """Build a language model from a backbone by adding a head.

        Args:
            d: The sizes.
            trunk: The backbone, which is called as `Backbone` is.
            tied: Whether the head's weight is the embedding.
            softcap: The soft cap of the logits (Gemma 2).
            multiplier: The factor of the logits (Granite).
            bias: Whether the head has a bias.
            names: The checkpoint's names of the backbone and of the embedding in it.
        """
        super().__init__()
        self.context, self.vocabulary, self.storage = d.context, d.vocabulary, d.storage
        self.trunk_name, embedding = names
        self.add_module(self.trunk_name, trunk)
        head = MatrixSpec(d.hidden, d.vocabulary, d.dtype, bias, split="column", shard=d.vocabulary_shard)
        self.lm_head = LMHead(head, softcap=softcap, multiplier=multiplier)
        self.all_gather = all_gather(d.vocabulary, d.vocabulary_shard)
        self.collect_cache_specs()
        table = f"{self.trunk_name}.{embedding}"
        self.ties = {"lm_head.matrix.weight": f"{table}.weight"} if tied else {}
        if tied:
            uses = {f"{table}.weight": table, "lm_head.weight": "lm_head.matrix"}
            self.tables = TokenTables(uses, {"lm_head.weight": f"{table}.weight"})
        self.tie()

    @override
    def drop_head(self) -> None:
        del self.lm_head, self.all_gather
        self.has_head, self.ties = False, {}
        if self.tables is not None:
            del self.tables.uses["lm_head.weight"]
        self.ignored_tensors = (*self.ignored_tensors, r"lm_head\.weight")

    def stop_after(self, *layers: int) -> None:
        """Make the model return hidden states after these numbers of layers, before any norm, and no logits.

        Several numbers give the states after each of them side by side. Call it before weights are loaded. Diffusion
        pipelines read their prompts this way: it is `hidden_states[layers]` in transformers.

        Raises:
            ValueError: If the numbers do not ascend, or one is not from 1 to the number of layers - 1. After the last
                layer, states are normed.
        """
        trunk = self.get_submodule(self.trunk_name)
        assert isinstance(trunk, Backbone)
        every, last = len(trunk.layers), layers[-1]
        if not all(before < after for before, after in pairwise((0, *layers, every))):
            raise ValueError(f"the model has {every} layers; give depths from 1 to {every - 1}, in ascending order")
        if self.has_head:
            self.drop_head()
        trunk.stop_after(*layers)
        self.collect_cache_specs()
        left_out = "|".join(str(layer) for layer in range(last, every))
        self.ignored_tensors = (
            *self.ignored_tensors,
            rf"({self.trunk_name}\.)?(layers\.({left_out})\..*|norm\.weight)",
        )

    def disable_kv_cache(self) -> None:
        """Run and price every sequence whole in one step from now on, without a KV cache.

        Attention then gets `Uncached` instead of KV memory.
        """
        for _, op in self.ops():
            op.disable_kv_cache()
        self.collect_cache_specs()

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        return self.all_gather(self.lm_head(x_RD))


def further_layers(fields: Fields, layers: int, name: str) -> tuple[str, ...]:
    """Return the patterns of the tensors of multi-token prediction (MTP) layers in a checkpoint.

    These layers follow the `layers` of the model itself, and the field `name` counts them. Only training uses them.
    """
    further = fields.natural(name) if fields.has(name) else 0
    return tuple(rf"model\.layers\.{layer}\..*" for layer in range(layers, layers + further))
