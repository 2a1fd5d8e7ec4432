"""The decoder-only transformer, in parts: attention, feed-forward layers, a trunk of blocks (blocks.py), a head.

A family's file puts them together with what is its own as arguments. Modules carry the names of the checkpoint's
tensors, so that loading needs no table: `model.layers.0.self_attn.q_proj.weight` is a path in both, once modules that
are `unnamed` are left out.

The residual stream is passed on as two summands, x and what the last part adds to it, because the addition belongs to
the norm that follows (`core/ops/norm.py`).

Shapes: T rows of a step, R rows that are wanted, D hidden, V vocabulary.
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
"""Tensors that a Family ignores: layers that predict the tokens after the next (multi-token prediction)."""


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, whose queries and keys are normalised where there are norms for them: each
    head (Qwen3) or all heads at once (OLMo 2), as the norms are wide; and whose result is gated where it is asked for
    (Qwen3-Next): the projection to queries gives each head's queries, then its gate.
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
        """qkv: what the queries, keys and values are projected with: three matrices, or a fused one. scaled: whether
        queries are scaled by their position.
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
        """x_TD [rows, hidden] -> [rows, hidden]. angles: passed by where its positions are not turned (NoPE)."""
        q_TO, k_TO, v_TO = self.qkv(x_TD)
        gate_THD: Tensor | None = None
        if self.gate is not None:
            q_TO, gate_THD = torch.split(q_TO.view(len(x_TD), -1, 2 * self.head_dim), self.head_dim, dim=-1)
        q_THD, k_TKD, v_TKD = self._heads(q_TO, self.q_norm), self._heads(k_TO, self.k_norm), self._heads(v_TO)
        if self.scaled_queries is not None:  # before they are turned, which commutes
            assert angles is not None
            q_THD = self.scaled_queries(q_THD, angles[2])
        turned = None if self.attend.rope is None else angles
        out_TO: Tensor = self.attend(q_THD, k_TKD, v_TKD, kv, turned)
        if self.gate is not None:
            out_TO = self.gate(out_TO, gate_THD)
        out: Tensor = self.all_reduce(self.o_proj(out_TO))
        return out

    def _heads(self, x_TO: Tensor, norm: HeadNorm | None = None) -> Tensor:
        """[rows, heads x D] -> [rows, heads, D], normalised."""
        if norm is not None:
            x_TO = norm(x_TO.reshape(len(x_TO), norm.per_token, norm.width))
        return x_TO.reshape(len(x_TO), -1, self.head_dim)


class MLP(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)), under the names of a checkpoint."""

    part = "feed-forward"
    first: ClassVar[str] = "fc"

    def __init__(
        self, d: Dimensions, up: Mapping[str, MatrixSpec], down: str, spec: MatrixSpec, *, summand: bool = False
    ) -> None:
        """up: what the width comes of, by names: a matrix, or those of a gate and of what it gates, two or a fused one.
        down: the name of the last matrix, which is `spec`. summand: whether ranks are left to be added up by whoever
        adds more to it.
        """
        super().__init__()
        self.add_module(self.first, ActivatedProjections(up, d.activation))
        self.down = down
        self.add_module(down, Linear(spec))
        self.all_reduce = nn.Identity() if summand else all_reduce(d.hidden, d.dtype, d.shard)

    @override
    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        out: Tensor = self.all_reduce(getattr(self, self.down)(getattr(self, self.first)(x_TD)))
        return out


class GatedMLP(MLP):
    """down(act(gate(x)) * up(x)), the last matrix called as Llama's."""

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
        """gate_up: the matrices of the gate and of what it gates: two, or a fused one. width: their columns, where they
        are not the model's. summand: as of MLP.
        """
        super().__init__(d, gate_up, "down_proj", d.row(width or d.width, d.hidden, bias=bias), summand=summand)


class Backbone(nn.Module):
    """Embedding, blocks and the last norm: what checkpoints call `model`."""

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
        """rope: None where no layer turns. blocks: called as Block is. norm: the last one, by default AddRMSNorm.
        local: a second rope, and which layers turn by it (Gemma 3). query_scale: of the layers that scale queries.
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
        """Give what the first so many layers give, not normed; of several, side by side, the last of which is run
        last.
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
        """ids_T, positions_T int64 [rows] -> the last hidden states of the rows that are wanted, normed [R, hidden].
        placed_ED: of a PlacedEmbedding, the rows that stand for ids below 0.
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
    """A trunk with a head, which is the embedding where `tied`."""

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
        """trunk: called as Backbone is. softcap, multiplier: of the logits (Gemma 2; Granite). bias: whether the head
        has one. names: what checkpoints call the trunk, and the embedding in it.
        """
        super().__init__()
        self.context, self.vocabulary, self.storage = d.context, d.vocabulary, d.storage
        self.trunk_name, embedding = names
        self.add_module(self.trunk_name, trunk)
        head = MatrixSpec(d.hidden, d.vocabulary, d.dtype, bias, split="column", shard=d.vocabulary_shard)
        self.lm_head = LMHead(head, softcap=softcap, multiplier=multiplier)
        self.all_gather = all_gather(d.vocabulary, d.vocabulary_shard)
        self.note_kept()
        table = f"{self.trunk_name}.{embedding}"
        self.ties = {"lm_head.matrix.weight": f"{table}.weight"} if tied else {}
        if tied:
            uses = {f"{table}.weight": table, "lm_head.weight": "lm_head.matrix"}
            self.tables = TokenTables(uses, {"lm_head.weight": f"{table}.weight"})
        self.tie()

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden; only the wanted rows pass the last norm."""
        out_RD: Tensor = self.get_submodule(self.trunk_name)(ids_T, positions_T, kv, rows_R)
        return out_RD

    def drop_head(self) -> None:
        """Give hidden states alone from now on; before it is filled."""
        del self.lm_head, self.all_gather
        self.has_head, self.ties = False, {}
        if self.tables is not None:
            del self.tables.uses["lm_head.weight"]
        self.passed_over = (*self.passed_over, r"lm_head\.weight")

    def stop_after(self, *layers: int) -> None:
        """Give hidden states after the first so many layers, before any norm, from now on; of several, those after
        each, side by side; before it is filled. So pipelines that draw read their prompts: in transformers' words,
        `hidden_states[layers]`. Raises ValueError where there are not so many layers, or it is the last, after which
        states are normed, or one does not come after the other.
        """
        trunk = self.get_submodule(self.trunk_name)
        assert isinstance(trunk, Backbone)
        every, last = len(trunk.layers), layers[-1]
        if not all(before < after for before, after in pairwise((0, *layers, every))):
            raise ValueError(
                f"the model has {every} layers; states are taken after 1 to {every - 1} of them, the first layers first"
            )
        if self.has_head:
            self.drop_head()
        trunk.stop_after(*layers)
        self.note_kept()
        left_out = "|".join(str(layer) for layer in range(last, every))
        self.passed_over = (*self.passed_over, rf"({self.trunk_name}\.)?(layers\.({left_out})\..*|norm\.weight)")

    def disable_kv_cache(self) -> None:
        """From now on every sequence is run, and priced, whole in one step, and nothing of it is kept for a later one:
        attention is given Uncached, not KV memory.
        """
        for _, op in self.ops():
            op.disable_kv_cache()
        self.note_kept()

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        logits_RV: Tensor = self.all_gather(self.lm_head(x_RD))
        return logits_RV


def further_layers(fields: Fields, layers: int, name: str) -> tuple[str, ...]:
    """What the tensors of layers beyond the last are called, as many as the field `name` says: they predict further
    tokens in training (MTP), lie in a release, and are no part of the model.
    """
    further = fields.natural(name) if fields.has(name) else 0
    return tuple(rf"model\.layers\.{layer}\..*" for layer in range(layers, layers + further))
