"""The decoder-only transformer: pre-norm blocks of attention and a gated MLP.

Llama, Mistral, Qwen, Phi-3 and Mixtral are this module with other settings. Modules carry the names of the checkpoint's
tensors, so that loading needs no table: `model.layers.0.self_attn.q_proj.weight` is a path in both.

Shapes: T rows of a step, R rows that need logits, D hidden, V vocabulary.
"""

from torch import Tensor, nn

from ridgeline.models.model import Model
from ridgeline.models.settings import DecoderSettings
from ridgeline.ops.activation import Activation
from ridgeline.ops.attention import Attention, KVContext
from ridgeline.ops.collective import all_gather, all_reduce
from ridgeline.ops.embedding import Embedding
from ridgeline.ops.linear import Head
from ridgeline.ops.norm import RMSNorm
from ridgeline.ops.residual import Add
from ridgeline.ops.rotary import RotaryTable, Rotate

Angles = tuple[Tensor, Tensor]


class SelfAttention(nn.Module):
    """Queries, keys and values from separate projections, optionally normalised by head (Qwen3)."""

    part = "attention"

    def __init__(self, s: DecoderSettings, layer: int) -> None:
        super().__init__()
        self.head_dim = s.head_dim
        self.project(s)
        heads, spec = s.shard.part(s.heads, "heads"), s.kv_spec(layer)
        inner = s.heads * s.head_dim
        self.o_proj = s.row(inner, s.hidden, s.output_bias)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.shard)
        self.q_norm = RMSNorm(s.head_dim, s.eps, s.dtype, per_token=heads) if s.qk_norm else None
        self.k_norm = RMSNorm(s.head_dim, s.eps, s.dtype, per_token=spec.heads) if s.qk_norm else None
        self.rotate = Rotate(heads, spec.heads, s.head_dim, s.rope, s.dtype)
        self.attend = Attention(layer, heads, spec)

    def project(self, s: DecoderSettings) -> None:
        """Create the projections; Phi-3 stores them as one."""
        wide, narrow = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.q_proj = s.column(s.hidden, wide, s.qkv_bias)
        self.k_proj = s.column(s.hidden, narrow, s.qkv_bias, s.kv_shard)
        self.v_proj = s.column(s.hidden, narrow, s.qkv_bias, s.kv_shard)

    def qkv(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each flat [rows, heads x head_dim]."""
        return self.q_proj(x_TD), self.k_proj(x_TD), self.v_proj(x_TD)

    def forward(self, x_TD: Tensor, angles: Angles, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        q_THD, k_TKD, v_TKD = (part.reshape(len(part), -1, self.head_dim) for part in self.qkv(x_TD))
        if self.q_norm is not None and self.k_norm is not None:
            q_THD, k_TKD = self.q_norm(q_THD), self.k_norm(k_TKD)
        q_THD, k_TKD = self.rotate(q_THD, k_TKD, *angles)
        out: Tensor = self.all_reduce(self.o_proj(self.attend(q_THD, k_TKD, v_TKD, kv)))
        return out


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    part = "feed-forward"

    def __init__(self, s: DecoderSettings) -> None:
        super().__init__()
        self.gate_proj = s.column(s.hidden, s.width, s.mlp_bias)
        self.up_proj = s.column(s.hidden, s.width, s.mlp_bias)
        self.down_proj = s.row(s.width, s.hidden, s.mlp_bias)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.shard)
        self.act = Activation(s.activation, s.shard.part(s.width, "MLP columns"), s.dtype, gated=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        out: Tensor = self.all_reduce(self.down_proj(self.act(self.gate_proj(x_TD), self.up_proj(x_TD))))
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    attention: type[SelfAttention] = SelfAttention
    feed_forward_name = "mlp"

    def __init__(self, s: DecoderSettings, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden, s.eps, s.dtype)
        self.self_attn = self.attention(s, layer)
        self.attention_add = Add(s.hidden, s.dtype)
        self.post_attention_layernorm = RMSNorm(s.hidden, s.eps, s.dtype)
        self.add_module(self.feed_forward_name, self.feed_forward(s, layer))
        self.feed_forward_add = Add(s.hidden, s.dtype)

    def feed_forward(self, s: DecoderSettings, layer: int) -> nn.Module:
        """The second half of the block; mixtures override it."""
        return GatedMLP(s)

    def forward(self, x_TD: Tensor, angles: Angles, kv: KVContext) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        x_TD = self.attention_add(x_TD, self.self_attn(self.input_layernorm(x_TD), angles, kv))
        mlp = self.get_submodule(self.feed_forward_name)
        out: Tensor = self.feed_forward_add(x_TD, mlp(self.post_attention_layernorm(x_TD)))
        return out


class Trunk(nn.Module):
    """Embedding, blocks and the last norm: what checkpoints call `model`."""

    def __init__(self, s: DecoderSettings, block: type[Block]) -> None:
        super().__init__()
        self.embed_tokens = Embedding(s.vocabulary, s.hidden, s.dtype, s.vocabulary_shard)
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.vocabulary_shard)
        self.rotary = RotaryTable(s.rope)
        self.layers = nn.ModuleList(block(s, layer) for layer in range(len(s.windows)))
        self.norm = RMSNorm(s.hidden, s.eps, s.dtype, row_space="logits")

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext) -> Tensor:
        """ids_T, positions_T int64 [rows] -> hidden states before the last norm [rows, hidden]."""
        x_TD: Tensor = self.all_reduce(self.embed_tokens(ids_T))
        angles: Angles = self.rotary(positions_T)
        for layer in self.layers:
            x_TD = layer(x_TD, angles, kv)
        return x_TD


class Decoder(Model):
    """A decoder with its head. A family's file sets `block` where its block differs."""

    block: type[Block] = Block

    def __init__(self, s: DecoderSettings) -> None:
        super().__init__()
        self.kv_specs = tuple(s.kv_spec(layer) for layer in range(len(s.windows)))
        self.context, self.vocabulary, self.storage, self.tied = s.context, s.vocabulary, s.storage, s.tied
        self.model = Trunk(s, self.block)
        self.lm_head = Head(s.hidden, s.vocabulary, s.dtype, split="column", shard=s.vocabulary_shard)
        self.all_gather = all_gather(s.vocabulary, s.vocabulary_shard)
        self.retie()

    def retie(self) -> None:
        """As Model.retie."""
        if self.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """As Model.forward; only the wanted rows pass the last norm and the head."""
        x_TD = self.model(ids_T, positions_T, kv)
        logits: Tensor = self.all_gather(self.lm_head(self.model.norm(x_TD[rows_R])))
        return logits
