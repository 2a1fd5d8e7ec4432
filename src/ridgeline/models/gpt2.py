"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases, a plain MLP; matrices stored [in, out]."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ridgeline.models.fields import MOST_LAYERS, Fields
from ridgeline.models.model import Model
from ridgeline.models.storage import Storage
from ridgeline.ops.activation import ACTIVATIONS, Activation
from ridgeline.ops.attention import Attention, KVContext
from ridgeline.ops.collective import all_gather, all_reduce
from ridgeline.ops.embedding import Embedding
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.linear import Head, Linear
from ridgeline.ops.norm import LayerNorm
from ridgeline.ops.residual import Add
from ridgeline.ops.shard import Shard


@dataclass(frozen=True, slots=True)
class GPT2Settings:
    """Everything that shapes a GPT-2."""

    vocabulary: int
    context: int
    hidden: int
    heads: int
    width: int
    layers: int
    activation: str
    eps: float
    storage: Storage
    tied: bool

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        return self.storage.dtype

    @property
    def shard(self) -> Shard:
        """The part that this rank holds."""
        return self.storage.shard

    @property
    def vocabulary_shard(self) -> Shard:
        """The part of embedding and head that this rank holds: all of it where the vocabulary does not divide."""
        return self.shard.if_divides(self.vocabulary)

    @property
    def kv_spec(self) -> KVSpec:
        """Every layer keeps all positions, one KV head a query head."""
        head_dim = self.hidden // self.heads
        return KVSpec(self.shard.part(self.heads, "heads"), head_dim, head_dim, None, self.dtype, self.storage.kv)

    def column(self, inputs: int, parts: list[int]) -> Linear:
        """A matrix whose outputs (of each fused part) are divided over ranks, stored [in, out] with a bias."""
        return Linear(
            inputs, sum(parts), self.dtype, True,
            transposed=True, split="column", shard=self.shard, parts=parts, stored=self.storage.weights,
        )  # fmt: skip

    def row(self, inputs: int, outputs: int) -> Linear:
        """A matrix whose inputs are divided over ranks, stored [in, out] with a bias; an all-reduce follows."""
        return Linear(
            inputs, outputs, self.dtype, True,
            transposed=True, split="row", shard=self.shard, stored=self.storage.weights,
        )  # fmt: skip


class SelfAttention(nn.Module):
    """Attention with one stored matrix for queries, keys and values."""

    part = "attention"

    def __init__(self, s: GPT2Settings, layer: int) -> None:
        super().__init__()
        self.head_dim = s.kv_spec.k_dim
        self.c_attn = s.column(s.hidden, [s.hidden] * 3)
        self.attend = Attention(layer, s.kv_spec.heads, s.kv_spec)
        self.c_proj = s.row(s.hidden, s.hidden)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.shard)

    def forward(self, x_TD: Tensor, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        q_THD, k_THD, v_THD = (p.reshape(len(p), -1, self.head_dim) for p in self.c_attn(x_TD).chunk(3, dim=-1))
        out: Tensor = self.all_reduce(self.c_proj(self.attend(q_THD, k_THD, v_THD, kv)))
        return out


class MLP(nn.Module):
    """proj(act(fc(x)))."""

    part = "feed-forward"

    def __init__(self, s: GPT2Settings) -> None:
        super().__init__()
        self.c_fc = s.column(s.hidden, [s.width])
        self.act = Activation(s.activation, s.shard.part(s.width, "MLP columns"), s.dtype, gated=False)
        self.c_proj = s.row(s.width, s.hidden)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.shard)

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        out: Tensor = self.all_reduce(self.c_proj(self.act(self.c_fc(x_TD))))
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, s: GPT2Settings, layer: int) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(s.hidden, s.eps, s.dtype)
        self.attn = SelfAttention(s, layer)
        self.attention_add = Add(s.hidden, s.dtype)
        self.ln_2 = LayerNorm(s.hidden, s.eps, s.dtype)
        self.mlp = MLP(s)
        self.mlp_add = Add(s.hidden, s.dtype)

    def forward(self, x_TD: Tensor, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        x_TD = self.attention_add(x_TD, self.attn(self.ln_1(x_TD), kv))
        out: Tensor = self.mlp_add(x_TD, self.mlp(self.ln_2(x_TD)))
        return out


class Trunk(nn.Module):
    """Token and position embeddings, blocks and the last norm: what checkpoints call `transformer`."""

    def __init__(self, s: GPT2Settings) -> None:
        super().__init__()
        self.wte = Embedding(s.vocabulary, s.hidden, s.dtype, s.vocabulary_shard)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.vocabulary_shard)
        self.wpe = Embedding(s.context, s.hidden, s.dtype)
        self.embedding_add = Add(s.hidden, s.dtype)
        self.h = nn.ModuleList(Block(s, layer) for layer in range(s.layers))
        self.ln_f = LayerNorm(s.hidden, s.eps, s.dtype, row_space="logits")

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext) -> Tensor:
        """ids_T, positions_T int64 [rows] -> hidden states before the last norm [rows, hidden]."""
        x_TD: Tensor = self.embedding_add(self.all_reduce(self.wte(ids_T)), self.wpe(positions_T))
        for block in self.h:
            x_TD = block(x_TD, kv)
        return x_TD


class GPT2(Model):
    """GPT-2 with its head."""

    def __init__(self, s: GPT2Settings) -> None:
        super().__init__()
        self.kv_specs = (s.kv_spec,) * s.layers
        self.context, self.vocabulary, self.storage, self.tied = s.context, s.vocabulary, s.storage, s.tied
        self.transformer = Trunk(s)
        self.lm_head = Head(s.hidden, s.vocabulary, s.dtype, split="column", shard=s.vocabulary_shard)
        self.all_gather = all_gather(s.vocabulary, s.vocabulary_shard)
        self.retie()

    def retie(self) -> None:
        """As Model.retie."""
        if self.tied:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """As Model.forward."""
        x_TD = self.transformer(ids_T, positions_T, kv)
        logits: Tensor = self.all_gather(self.lm_head(self.transformer.ln_f(x_TD[rows_R])))
        return logits


def build(fields: Fields, storage: Storage) -> GPT2:
    """GPT-2 of every size; its config has names of its own."""
    fields.passed_over("n_ctx")  # n_positions again
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.refuse_if(name)
    if not fields.flag("scale_attn_weights", True):
        raise fields.refuse("scale_attn_weights = false is not supported")
    hidden, heads = fields.count("n_embd"), fields.count("n_head")
    if hidden % heads:
        raise fields.refuse(f"n_embd {hidden} does not divide into {heads} heads")
    activation = fields.text("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise fields.refuse(f"activation_function {activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    return GPT2(
        GPT2Settings(
            vocabulary=fields.count("vocab_size"),
            context=fields.count("n_positions"),
            hidden=hidden,
            heads=heads,
            width=fields.count("n_inner", 4 * hidden),
            layers=fields.count("n_layer", most=MOST_LAYERS),
            activation=activation,
            eps=fields.positive("layer_norm_epsilon", 1e-5),
            storage=storage,
            tied=fields.flag("tie_word_embeddings", True),
        )
    )
