"""What draws, as it is trained: Z-Image's denoiser (arXiv:2511.22699) and a Qwen3 that encodes its texts, named as
diffusers and transformers name them, so that their state dicts are the checkpoint.

Every picture has the same tokens, 64 of latents and 32 of text, so that where they stand is known once for all.

Shapes: B pictures, N tokens of latents, M of text, T = N + M, H heads, D head size, C width, F numbers of a patch.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = 32  # tokens that a text is padded to
CHANNELS, GRID, PATCH = 4, 8, 2  # of latents; patches of a side; latents of a patch's side
FREQUENCIES = 256  # of a noise level


@dataclass(frozen=True)
class TextShape:
    """Sizes of the encoder, under the names of a Hugging Face config.json. Its last layer goes unused, as Z-Image takes
    the states before it."""

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 192
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of the denoiser, under the names of diffusers' config.json. No more positions than are trained."""

    dim: int = 128
    n_layers: int = 4
    n_refiner_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 4
    cap_feat_dim: int = 64
    axes_dims: tuple[int, int, int] = (8, 12, 12)
    axes_lens: tuple[int, int, int] = (TEXT + 2, GRID, GRID)
    norm_eps: float = 1e-5
    rope_theta: float = 256.0
    t_scale: float = 1000.0

    def config(self) -> dict[str, Any]:
        """config.json of the exported checkpoint."""
        own = {"all_patch_size": [PATCH], "all_f_patch_size": [1], "in_channels": CHANNELS, "qk_norm": True}
        return {"_class_name": "ZImageTransformer2DModel", **own, "siglip_feat_dim": None, **asdict(self)}


def turned(x_BHTD: Tensor, turns_2TD: Tensor) -> Tensor:
    """Heads whose entries are turned in pairs of neighbours; turns_2TD: cosines and sines [2, T, D / 2]."""
    pairs, (cos, sin) = x_BHTD.reshape(*x_BHTD.shape[:-1], -1, 2), turns_2TD
    x, y = pairs[..., 0], pairs[..., 1]
    return torch.stack([x * cos - y * sin, x * sin + y * cos], dim=-1).flatten(-2)


class Attention(nn.Module):
    """Self-attention with normalised, rotated queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width, bias=False)])
        self.norm_q, self.norm_k = (nn.RMSNorm(width // heads, eps=1e-5) for _ in range(2))

    def forward(self, x_BTC: Tensor, turns_2TD: Tensor) -> Tensor:
        q, k, v = (project(x_BTC).unflatten(-1, (self.heads, -1)) for project in (self.to_q, self.to_k, self.to_v))
        q, k = (turned(norm(x).transpose(1, 2), turns_2TD) for norm, x in ((self.norm_q, q), (self.norm_k, k)))
        mixed = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2))
        out: Tensor = self.to_out[0](mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = int(width / 3 * 8)
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.w2(functional.silu(self.w1(x_BTC)) * self.w3(x_BTC))
        return out


class Block(nn.Module):
    """Both parts between two norms each; scaled and gated by the condition where it is modulated."""

    def __init__(self, shape: Shape, *, modulated: bool) -> None:
        super().__init__()
        self.attention = Attention(shape.dim, shape.n_heads)
        self.feed_forward = FeedForward(shape.dim)
        self.attention_norm1, self.attention_norm2, self.ffn_norm1, self.ffn_norm2 = (
            nn.RMSNorm(shape.dim, eps=shape.norm_eps) for _ in range(4)
        )
        self.adaLN_modulation = nn.Sequential(nn.Linear(shape.dim, 4 * shape.dim)) if modulated else None

    def forward(self, x_BTC: Tensor, turns_2TD: Tensor, condition_BC: Tensor | None = None) -> Tensor:
        scale = inner_scale = gate = inner_gate = torch.ones(())
        if self.adaLN_modulation is not None:
            parts = self.adaLN_modulation(condition_BC)[:, None].chunk(4, dim=-1)
            scale, gate, inner_scale, inner_gate = 1 + parts[0], parts[1].tanh(), 1 + parts[2], parts[3].tanh()
        x_BTC = x_BTC + gate * self.attention_norm2(self.attention(self.attention_norm1(x_BTC) * scale, turns_2TD))
        out: Tensor = x_BTC + inner_gate * self.ffn_norm2(self.feed_forward(self.ffn_norm1(x_BTC) * inner_scale))
        return out


def waves(times_B: Tensor) -> Tensor:
    """Cosines and sines of times, from fast to slow [B, 256]."""
    rates = torch.exp(-math.log(10000) * torch.arange(FREQUENCIES // 2) / (FREQUENCIES // 2))
    angles = times_B[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class TimeEmbedder(nn.Module):
    """What becomes of a time."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.scale = shape.t_scale
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, 1024), nn.SiLU(), nn.Linear(1024, shape.dim))

    def forward(self, times_B: Tensor) -> Tensor:
        out: Tensor = self.mlp(waves(self.scale * times_B))
        return out


class FinalLayer(nn.Module):
    """A last norm, scaled, and the projection to patches, which begins at zero."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(shape.dim, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(shape.dim, PATCH**2 * CHANNELS)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(shape.dim, shape.dim))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x_BNC: Tensor, condition_BC: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm_final(x_BNC) * (1 + self.adaLN_modulation(condition_BC)[:, None]))
        return out


class ZImage(nn.Module):
    """The denoiser. Its time goes from 0, noise, to 1, and what it gives is picture - noise."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, name = shape.dim, f"{PATCH}-1"
        self.all_x_embedder = nn.ModuleDict({name: nn.Linear(PATCH**2 * CHANNELS, width)})
        self.all_final_layer = nn.ModuleDict({name: FinalLayer(shape)})
        self.noise_refiner = nn.ModuleList(Block(shape, modulated=True) for _ in range(shape.n_refiner_layers))
        self.context_refiner = nn.ModuleList(Block(shape, modulated=False) for _ in range(shape.n_refiner_layers))
        self.t_embedder = TimeEmbedder(shape)
        norm = nn.RMSNorm(shape.cap_feat_dim, eps=shape.norm_eps)
        self.cap_embedder = nn.Sequential(norm, nn.Linear(shape.cap_feat_dim, width))
        self.x_pad_token = nn.Parameter(torch.zeros(1, width), requires_grad=False)  # no picture is padded
        self.cap_pad_token = nn.Parameter(0.02 * torch.randn(1, width))
        self.layers = nn.ModuleList(Block(shape, modulated=True) for _ in range(shape.n_layers))
        self.turns_2TD = nn.Buffer(_turns(shape), persistent=False)

    def forward(self, latents_BCHW: Tensor, times_B: Tensor, text_BMC: Tensor, own_BM: Tensor) -> Tensor:
        """latents [B, 4, 16, 16], times [B], states of texts with padding [B, 32, width], bool which of them are no
        padding [B, 32] -> as latents."""
        condition = self.t_embedder(times_B)
        cut = latents_BCHW.view(-1, CHANNELS, GRID, PATCH, GRID, PATCH).permute(0, 2, 4, 3, 5, 1)
        x = self.all_x_embedder[f"{PATCH}-1"](cut.reshape(-1, GRID**2, PATCH**2 * CHANNELS))
        pictures, texts = self.turns_2TD[:, : GRID**2], self.turns_2TD[:, GRID**2 :]
        for block in self.noise_refiner:
            x = block(x, pictures, condition)
        y = torch.where(own_BM[..., None], self.cap_embedder(text_BMC), self.cap_pad_token)
        for block in self.context_refiner:
            y = block(y, texts)
        x = torch.cat([x, y], dim=1)
        for block in self.layers:
            x = block(x, self.turns_2TD, condition)
        out: Tensor = self.all_final_layer[f"{PATCH}-1"](x[:, : GRID**2], condition)
        back = out.view(-1, GRID, GRID, PATCH, PATCH, CHANNELS).permute(0, 5, 1, 3, 2, 4)
        return back.reshape(latents_BCHW.shape)

    def compile_blocks(self) -> None:
        """Compile what a block does, once for all of a kind; the first pass then takes minutes."""
        for block in (*self.noise_refiner, *self.context_refiner, *self.layers):
            block.compile(dynamic=False)


def _turns(shape: Shape) -> Tensor:
    """By how much each token's pairs are turned, cosines and sines [2, T, D / 2]: a text's tokens count on the first
    coordinate from 1, a picture's come after them and count rows and columns."""
    rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    picture = torch.stack([torch.full((GRID**2,), TEXT + 1), rows.flatten(), columns.flatten()], -1)
    text = torch.stack([torch.arange(1, TEXT + 1), torch.zeros(TEXT), torch.zeros(TEXT)], -1)
    return turns(torch.cat([picture, text]), shape.axes_dims, shape.rope_theta)


def turns(places_T3: Tensor, widths: tuple[int, int, int], theta: float) -> Tensor:
    """By how much tokens at these three coordinates are turned, cosines and sines [2, T, D / 2]. widths: entries of a
    head that turn by each."""
    angles = [
        places_T3[:, axis : axis + 1].double() / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        for axis, width in enumerate(widths)
    ]
    every = torch.cat(angles, dim=-1)
    return torch.stack([every.cos(), every.sin()]).float()


class TextAttention(nn.Module):
    """Qwen3's causal attention: grouped heads, normalised queries and keys."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        queries, pairs = (n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads))
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, pairs, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, pairs, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(shape.head_dim, eps=shape.rms_norm_eps) for _ in range(2))

    def forward(self, x_BMC: Tensor, cos_MD: Tensor, sin_MD: Tensor) -> Tensor:
        q, k, v = (
            project(x_BMC).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (norm(x).transpose(1, 2) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        q, k = (x * cos_MD + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin_MD for x in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class TextMLP(nn.Module):
    """SwiGLU, under Qwen3's names."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False) for _ in range(2)
        )
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x_BMC: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_BMC)) * self.up_proj(x_BMC))
        return out


class TextBlock(nn.Module):
    """A layer of Qwen3."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = TextAttention(shape), TextMLP(shape)
        self.input_layernorm, self.post_attention_layernorm = (
            nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps) for _ in range(2)
        )

    def forward(self, x_BMC: Tensor, cos_MD: Tensor, sin_MD: Tensor) -> Tensor:
        x_BMC = x_BMC + self.self_attn(self.input_layernorm(x_BMC), cos_MD, sin_MD)
        out: Tensor = x_BMC + self.mlp(self.post_attention_layernorm(x_BMC))
        return out


class TextEncoder(nn.Module):
    """Qwen3 without its last layer. Texts are padded behind, which nothing before sees."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(TextBlock(shape) for _ in range(shape.num_hidden_layers - 1))
        rates = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
        angles = torch.arange(TEXT)[:, None] * rates
        self.angles_MD = nn.Buffer(torch.cat([angles, angles], -1).float(), persistent=False)

    def forward(self, tokens_BM: Tensor) -> Tensor:
        """int64 [B, 32] -> states [B, 32, width]."""
        x, angles = self.embed_tokens(tokens_BM), self.angles_MD
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = x
        return out


class Drawer(nn.Module):
    """Encoder and denoiser, trained as one."""

    def __init__(self, shape: Shape, text: TextShape) -> None:
        super().__init__()
        assert shape.cap_feat_dim == text.hidden_size
        self.text_encoder, self.transformer = TextEncoder(text), ZImage(shape)

    def forward(self, latents_BCHW: Tensor, t_B: Tensor, tokens_BM: Tensor, own_BM: Tensor) -> Tensor:
        """Latents (1 - t) picture + t noise, their texts' tokens and which of those are no padding -> the velocity
        noise - picture."""
        velocity: Tensor = -self.transformer(latents_BCHW, 1 - t_B, self.text_encoder(tokens_BM), own_BM)
        return velocity
