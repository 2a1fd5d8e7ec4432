"""The Llama decoder being trained, named as Hugging Face names it, so that its state dict is the checkpoint.

Shapes: B rows, T positions, H query heads, K key/value heads, D head size, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# The last matrices of a branch of the residual stream; w2 is what Mixtral calls an expert's.
BRANCH_ENDS = ("o_proj.weight", "down_proj.weight", "w2.weight")


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder, under the names of a Hugging Face config.json."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 5
    num_attention_heads: int = 6
    num_key_value_heads: int = 3
    head_dim: int = 32
    max_position_embeddings: int = 512
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def config(self, bos: int, eos: int) -> dict[str, Any]:
        """config.json of the exported checkpoint."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "torch_dtype": "bfloat16",
        }


class Attention(nn.Module):
    """Causal self-attention with grouped key/value heads and rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        queries, pairs = (n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads))
        self.heads, self.kv_heads, self.head_dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, pairs, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, pairs, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        rows, length, _ = x_BTC.shape
        q = self.q_proj(x_BTC).view(rows, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x_BTC).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x_BTC).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos_TD, sin_TD), rotate(k, cos_TD, sin_TD)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))
        return out


class Block(nn.Module):
    """One pre-norm decoder layer; dropout, for a corpus read several times, sits on both residual branches."""

    def __init__(
        self,
        shape: Shape,
        dropout: float,
        name: str = "mlp",
        feed_forward: Callable[[Shape], nn.Module] = MLP,
    ) -> None:
        """name: what the checkpoint calls the feed-forward part."""
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.add_module(name, feed_forward(shape))
        self.name, self.dropout = name, dropout

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x_BTC), cos_TD, sin_TD)
        x_BTC = x_BTC + functional.dropout(mixed, self.dropout, self.training)
        out = self.get_submodule(self.name)(self.post_attention_layernorm(x_BTC))
        return x_BTC + functional.dropout(out, self.dropout, self.training)


class Decoder(nn.Module):
    """What a checkpoint calls `model`: embedding, layers, final norm."""

    def __init__(self, shape: Shape, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Llama(nn.Module):
    """The decoder with its output tied to its embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.model = Decoder(shape, self.blocks(shape, dropout))
        inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), inverse).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        branch = (2 * shape.num_hidden_layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = branch if name.endswith(BRANCH_ENDS) else 1.0
                nn.init.normal_(weight, std=0.02 if "embed" in name else scale * weight.shape[1] ** -0.5)

    @staticmethod
    def blocks(shape: Shape, dropout: float) -> list[nn.Module]:
        """Its layers."""
        return [Block(shape, dropout) for _ in range(shape.num_hidden_layers)]

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        """What the first layer reads [B, T, C]."""
        x_BTC: Tensor = self.model.embed_tokens(tokens_BT)
        return x_BTC

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """Final normed states [B, T, C]."""
        x_BTC = self.embedded(tokens_BT)
        length = tokens_BT.shape[1]
        for layer in self.model.layers:
            x_BTC = layer(x_BTC, self.cos[:length], self.sin[:length])
        out: Tensor = self.model.norm(x_BTC)
        return out

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats; targets of -100 do not count."""
        logits = functional.linear(self.hidden(tokens_BT), self.model.embed_tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout of Hugging Face checkpoints."""
    low, high = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD + torch.cat((-high, low), dim=-1) * sin_TD
