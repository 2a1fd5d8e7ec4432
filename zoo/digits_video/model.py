"""What draws clips, as it is trained: Wan's denoiser (arXiv:2503.20314) and an encoder of T5 that reads its texts,
named as diffusers and transformers name them, so that their state dicts are the checkpoint.

Wan pads every text with zeros to 512 tokens that are not masked. They are all alike, so that here they are one, whose
share in attention is as large as all of theirs.

Shapes: B clips, N tokens of latents, M of text, H heads, D head size, C width, F frames.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.digits.model import turned, turns, waves
from zoo.digits_video.data import FRAMES
from zoo.translate.model import Shape as TextShape
from zoo.translate.model import Stack

TEXT = 32  # tokens of a text that are trained on
PADDED = 512  # that Wan pads it to
CHANNELS, GRID, PATCH = 4, 4, 4  # of latents; patches of a side; latents of a patch's side
THETA = 10_000.0  # of positions
STEPS = 1000.0  # a time in the units that the denoiser takes
TEXT_SHAPE = replace(
    TextShape(), vocab_size=512, d_model=64, d_kv=16, num_heads=4, d_ff=128, num_layers=2, num_decoder_layers=0
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the denoiser, under the names of diffusers' config.json. No more positions than are trained."""

    num_attention_heads: int = 4
    attention_head_dim: int = 32
    ffn_dim: int = 512
    num_layers: int = 6
    text_dim: int = TEXT_SHAPE.d_model
    freq_dim: int = 256
    in_channels: int = CHANNELS
    out_channels: int = CHANNELS
    patch_size: tuple[int, int, int] = (1, PATCH, PATCH)
    rope_max_seq_len: int = FRAMES
    cross_attn_norm: bool = True
    qk_norm: str = "rms_norm_across_heads"
    eps: float = 1e-6

    @property
    def width(self) -> int:
        """Of a token's state."""
        return self.num_attention_heads * self.attention_head_dim

    def config(self) -> dict[str, Any]:
        """config.json of the exported checkpoint."""
        return {"_class_name": "WanTransformer3DModel", **asdict(self)}


class Attention(nn.Module):
    """Attention of x to y, queries and keys normalised over all heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads = shape.width, shape.num_attention_heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.norm_q, self.norm_k = (nn.RMSNorm(width, eps=shape.eps) for _ in range(2))
        nn.init.zeros_(self.to_out[0].weight)

    def turn_from_padding(self) -> None:
        """Begin with queries that point away from the key of padding, zeros, which is its bias alone. Else its five
        hundred tokens have nearly all of the attention, and what is learned first is to leave it at that."""
        signs = torch.randn_like(self.to_q.bias).sign()
        for linear, bias in ((self.to_q, signs), (self.to_k, -0.2 * signs)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            linear.bias.data.copy_(bias)
        for norm in (self.norm_q, self.norm_k):
            nn.init.constant_(norm.weight, 1.5)

    def forward(
        self, x_BNC: Tensor, y_BMC: Tensor, turns_2ND: Tensor | None = None, bias_B11M: Tensor | None = None
    ) -> Tensor:
        """turns_2ND: by which both turn. bias_B11M: added to the scores of y."""

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k = heads(self.norm_q(self.to_q(x_BNC))), heads(self.norm_k(self.to_k(y_BMC)))
        if turns_2ND is not None:
            q, k = turned(q, turns_2ND), turned(k, turns_2ND)
        mixed = functional.scaled_dot_product_attention(q, k, heads(self.to_v(y_BMC)), bias_B11M)
        out: Tensor = self.to_out[0](mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    """With the tanh form of GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        widen = nn.Module()
        widen.proj = nn.Linear(width, inner)
        self.net = nn.ModuleList([widen, nn.Identity(), nn.Linear(inner, width)])
        nn.init.zeros_(self.net[2].weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net[2](functional.gelu(self.net[0].proj(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """Attention to the clip, attention to the text, feed-forward; the first and the last scaled, shifted and gated by
    the noise level."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn1, self.attn2 = Attention(shape), Attention(shape)
        self.attn2.turn_from_padding()
        self.norm2 = nn.LayerNorm(shape.width, eps=shape.eps)
        self.ffn = FeedForward(shape.width, shape.ffn_dim)
        gates = torch.tensor([0.0, 0.0, 1.0] * 2)[None, :, None]
        self.scale_shift_table = nn.Parameter(gates.expand(1, 6, shape.width).clone())
        self.eps = shape.eps

    def forward(
        self, x_BNC: Tensor, text_BMC: Tensor, condition_B6C: Tensor, turns_2ND: Tensor, bias_B11M: Tensor
    ) -> Tensor:
        shift, scale, gate, inner_shift, inner_scale, inner_gate = (self.scale_shift_table + condition_B6C).chunk(6, 1)
        normed = normal(x_BNC, self.eps) * (1 + scale) + shift
        x_BNC = x_BNC + gate * self.attn1(normed, normed, turns_2ND)
        x_BNC = x_BNC + self.attn2(self.norm2(x_BNC), text_BMC, None, bias_B11M)
        out: Tensor = x_BNC + inner_gate * self.ffn(normal(x_BNC, self.eps) * (1 + inner_scale) + inner_shift)
        return out


def normal(x: Tensor, eps: float) -> Tensor:
    """LayerNorm without weights."""
    return functional.layer_norm(x, x.shape[-1:], eps=eps)


class Embedder(nn.Module):
    """Two layers; the activation between them is not named in a checkpoint."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(inputs, width), nn.Linear(width, width)


class ConditionEmbedder(nn.Module):
    """What becomes of a time, for the blocks and for the last norm, and of a text."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.time_embedder = Embedder(shape.freq_dim, shape.width)
        self.time_proj = nn.Linear(shape.width, 6 * shape.width)
        self.text_embedder = Embedder(shape.text_dim, shape.width)
        nn.init.zeros_(self.time_proj.weight)
        nn.init.zeros_(self.time_proj.bias)
        for linear in (self.text_embedder.linear_1, self.text_embedder.linear_2):
            nn.init.normal_(linear.weight, std=1.5 * linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)  # padding stays zeros

    def time(self, times_B: Tensor) -> tuple[Tensor, Tensor]:
        """Conditions of the last norm [B, C] and of blocks [B, 6, C]."""
        embedder = self.time_embedder
        last: Tensor = embedder.linear_2(functional.silu(embedder.linear_1(waves(times_B))))
        return last, self.time_proj(functional.silu(last)).unflatten(-1, (6, -1))

    def text(self, text_BMC: Tensor) -> Tensor:
        """States of a text, as the blocks read them."""
        embedder = self.text_embedder
        out: Tensor = embedder.linear_2(functional.gelu(embedder.linear_1(text_BMC), approximate="tanh"))
        return out


class Wan(nn.Module):
    """The denoiser."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, side = shape.width, 2 * (shape.attention_head_dim // 6)
        self.patch_embedding = nn.Conv3d(CHANNELS, width, shape.patch_size, shape.patch_size)
        self.condition_embedder = ConditionEmbedder(shape)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 2, width))
        self.proj_out = nn.Linear(width, PATCH**2 * CHANNELS)
        nn.init.zeros_(self.proj_out.weight)
        places = torch.cartesian_prod(torch.arange(FRAMES), torch.arange(GRID), torch.arange(GRID))
        widths = (shape.attention_head_dim - 2 * side, side, side)
        self.turns_2ND = nn.Buffer(turns(places, widths, THETA), persistent=False)
        self.eps = shape.eps

    def forward(self, latents_BCFHW: Tensor, times_B: Tensor, text_BMC: Tensor, own_BM: Tensor) -> Tensor:
        """latents [B, 4, 9, 16, 16], times from 0 to 1000, where all is noise, states of texts [B, 32, width], bool
        which of them are no padding [B, 32] -> velocity, as latents."""
        cut = latents_BCFHW.view(-1, CHANNELS, FRAMES, GRID, PATCH, GRID, PATCH).permute(0, 2, 3, 5, 1, 4, 6)
        embedding = self.patch_embedding
        x = functional.linear(
            cut.reshape(len(cut), -1, CHANNELS * PATCH**2), embedding.weight.flatten(1), embedding.bias
        )
        last, condition = self.condition_embedder.time(times_B)
        text, bias = padded(text_BMC, own_BM)
        y = self.condition_embedder.text(text)
        for block in self.blocks:
            x = block(x, y, condition, self.turns_2ND, bias)
        shift, scale = (self.scale_shift_table + last[:, None]).chunk(2, 1)
        out: Tensor = self.proj_out(normal(x, self.eps) * (1 + scale) + shift)
        back = out.view(-1, FRAMES, GRID, GRID, PATCH, PATCH, CHANNELS).permute(0, 6, 1, 2, 4, 3, 5)
        return back.reshape(latents_BCFHW.shape)

    def compile_blocks(self) -> None:
        """Compile what a block does, once for all; the first pass then takes minutes."""
        for block in self.blocks:
            block.compile(dynamic=False)


def padded(text_BMC: Tensor, own_BM: Tensor) -> tuple[Tensor, Tensor]:
    """States of texts with one of padding, zeros, behind them, and what is added to scores [B, 1, 1, M + 1]: what is no
    text's own counts nothing, and the last as often as there is padding."""
    counts = torch.log(PADDED - own_BM.sum(1, keepdim=True).float())
    hidden = torch.zeros_like(own_BM, dtype=torch.float32).masked_fill(~own_BM, float("-inf"))
    return functional.pad(text_BMC, (0, 0, 0, 1)), torch.cat([hidden, counts], 1)[:, None, None]


class TextEncoder(nn.Module):
    """T5's encoder over a table of tokens."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.shared = nn.Embedding(shape.vocab_size, shape.d_model)
        self.encoder = Stack(shape, 0.0, decoder=False)
        nn.init.normal_(self.shared.weight, std=0.5)

    def forward(self, tokens_BM: Tensor, own_BM: Tensor) -> Tensor:
        """int64 [B, 32], bool which are no padding -> states [B, 32, width]."""
        hidden = torch.zeros_like(own_BM, dtype=torch.float32).masked_fill(~own_BM, -1e9)[:, None, None]
        out: Tensor = self.encoder(self.shared(tokens_BM), self.encoder.bias(tokens_BM.shape[1]) + hidden)
        return out


class ClipDrawer(nn.Module):
    """Encoder and denoiser, trained as one."""

    def __init__(self, shape: Shape, text: TextShape) -> None:
        super().__init__()
        assert shape.text_dim == text.d_model
        self.text_encoder, self.transformer = TextEncoder(text), Wan(shape)

    def forward(self, latents_BCFHW: Tensor, t_B: Tensor, tokens_BM: Tensor, own_BM: Tensor) -> Tensor:
        """Latents (1 - t) clip + t noise, their texts' tokens and which of those are no padding -> the velocity noise -
        clip."""
        text = self.text_encoder(tokens_BM, own_BM)
        velocity: Tensor = self.transformer(latents_BCFHW, STEPS * t_B, text, own_BM)
        return velocity
