"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases, a plain MLP; matrices stored [in, out]."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ridgeline.models.fields import MOST_LAYERS, Fields
from ridgeline.models.model import Model
from ridgeline.ops.activation import ACTIVATIONS, Activation
from ridgeline.ops.attention import Attention, KVContext
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
    dtype: torch.dtype
    tied: bool

    @property
    def kv_spec(self) -> KVSpec:
        """Every layer keeps all positions, one KV head a query head."""
        head_dim = self.hidden // self.heads
        return KVSpec(self.heads, head_dim, head_dim, None, self.dtype)


class SelfAttention(nn.Module):
    """Attention with one stored matrix for queries, keys and values."""

    part = "attention"

    def __init__(self, s: GPT2Settings, layer: int) -> None:
        super().__init__()
        self.head_dim = s.kv_spec.k_dim
        self.c_attn = Linear(s.hidden, 3 * s.hidden, s.dtype, bias=True, transposed=True)
        self.attend = Attention(layer, s.heads, s.kv_spec)
        self.c_proj = Linear(s.hidden, s.hidden, s.dtype, bias=True, transposed=True)

    def forward(self, x_TD: Tensor, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        q_THD, k_THD, v_THD = (p.unflatten(1, (-1, self.head_dim)) for p in self.c_attn(x_TD).chunk(3, dim=-1))
        out: Tensor = self.c_proj(self.attend(q_THD, k_THD, v_THD, kv))
        return out


class MLP(nn.Module):
    """proj(act(fc(x)))."""

    part = "feed-forward"

    def __init__(self, s: GPT2Settings) -> None:
        super().__init__()
        self.c_fc = Linear(s.hidden, s.width, s.dtype, bias=True, transposed=True)
        self.act = Activation(s.activation, s.width, s.dtype, gated=False)
        self.c_proj = Linear(s.width, s.hidden, s.dtype, bias=True, transposed=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        out: Tensor = self.c_proj(self.act(self.c_fc(x_TD)))
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
        self.wte = Embedding(s.vocabulary, s.hidden, s.dtype)
        self.wpe = Embedding(s.context, s.hidden, s.dtype)
        self.embedding_add = Add(s.hidden, s.dtype)
        self.h = nn.ModuleList(Block(s, layer) for layer in range(s.layers))
        self.ln_f = LayerNorm(s.hidden, s.eps, s.dtype, row_space="logits")

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext) -> Tensor:
        """ids_T, positions_T int64 [rows] -> hidden states before the last norm [rows, hidden]."""
        x_TD: Tensor = self.embedding_add(self.wte(ids_T), self.wpe(positions_T))
        for block in self.h:
            x_TD = block(x_TD, kv)
        return x_TD


class GPT2(Model):
    """GPT-2 with its head."""

    def __init__(self, s: GPT2Settings) -> None:
        super().__init__()
        self.kv_specs = (s.kv_spec,) * s.layers
        self.context, self.vocabulary, self.dtype, self.tied = s.context, s.vocabulary, s.dtype, s.tied
        self.transformer = Trunk(s)
        self.lm_head = Head(s.hidden, s.vocabulary, s.dtype)
        self.retie()

    def retie(self) -> None:
        """As Model.retie."""
        if self.tied:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """As Model.forward."""
        x_TD = self.transformer(ids_T, positions_T, kv)
        logits: Tensor = self.lm_head(self.transformer.ln_f(x_TD[rows_R]))
        return logits


def build(fields: Fields, dtype: torch.dtype, shard: Shard) -> GPT2:
    """GPT-2 of every size; its config has names of its own."""
    if shard.size > 1:
        raise fields.refuse("fused projections are not divided over devices")
    fields.refuse_if("scale_attn_by_inverse_layer_idx")
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
            dtype=dtype,
            tied=fields.flag("tie_word_embeddings", True),
        )
    )
