"""The block of denoisers with cross-attention to a text (PixArt, arXiv:2310.00426; Wan, arXiv:2503.20314).

Embedders and the final layer around the blocks are here too.

Shapes: N rows of latents, M of texts, R runs of rows of one noise level, C condition, D hidden, H heads, E entries of a
head, S a third of D.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import HeadNorm, norms_over_heads
from ridgeline.core.models.common.decoder import MLP, SelfAttention
from ridgeline.core.models.common.denoiser import LATENTS, TEXT
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.encoder import uncached_kv_spec
from ridgeline.core.models.common.modulated import PART, ResidualStream, embedder, enter, entry
from ridgeline.core.ops.adaptive_norm import AddShiftedLayerNorm, ConditionTable, GatedAddLayerNorm
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.modulation import AddGated, AddGatedLayerNorm, Modulation
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.rotary import Angles, Rope
from ridgeline.core.ops.row_ops import JoinColumns
from ridgeline.core.ops.timestep import TimestepSinusoids
from ridgeline.core.ops.work import AttentionPattern

OF_LATENTS = AttentionPattern("full", query_axis=LATENTS)
"""The pattern of self-attention over the latents of an image."""
OF_TEXT = AttentionPattern("cross", query_axis=LATENTS, key_axis=TEXT)
"""The pattern of cross-attention from latents to a text."""


@dataclass(frozen=True, slots=True)
class CrossStyle:
    """The differences between the families whose denoisers have cross-attention."""

    rope: Rope | None
    """The rotary embedding of queries and keys; None if positions are added to the tokens."""
    heads: bool
    """Whether a denoiser's queries and keys are normalised, over all heads at once."""
    cross_attention_norm: bool
    """Whether a denoiser's blocks have a norm before cross-attention."""
    bias: bool
    """Whether a denoiser's query, key and value projections have a bias."""


class TextAttention(nn.Module):
    """The cross-attention of latents to a text, whose keys and values are the same at every noise level."""

    part = "attention"

    def __init__(self, d: Dimensions, style: CrossStyle) -> None:
        super().__init__()
        self.head_dim = d.head_dim
        column = d.column(d.hidden, d.hidden, bias=style.bias)
        self.to_q = Linear(column)
        self.kv = Projections({"to_k": column, "to_v": column})
        self.q_norm: HeadNorm | None = None
        self.k_norm: HeadNorm | None = None
        if style.heads:
            self.q_norm, self.k_norm = norms_over_heads(d)
        self.attend = Attention(-1, d.own_heads, uncached_kv_spec(d, OF_TEXT))
        self.o_proj = Linear(d.row(d.hidden, d.hidden, bias=True))

    def keys_values(self, text_MD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values, each [rows, heads, E], of text_MD [rows of texts, hidden]."""
        k_MD, v_MD = self.kv(text_MD)
        return self._heads(k_MD, self.k_norm), self._heads(v_MD)

    @override
    def forward(self, x_ND: Tensor, text: tuple[Tensor, Tensor], kv: Uncached) -> Tensor:
        """Return the attention output [rows, hidden] of x_ND [rows, hidden] over a text's keys and values."""
        q_NHE = self._heads(self.to_q(x_ND), self.q_norm)
        return self.o_proj(self.attend(q_NHE, *text, kv))

    def _heads(self, x_xD: Tensor, norm: HeadNorm | None = None) -> Tensor:
        """Split rows into attention heads [rows, heads, E], normalised if there is a norm."""
        if norm is not None:
            x_xD = norm(x_xD.view(len(x_xD), norm.per_token, norm.width))
        return x_xD.view(len(x_xD), -1, self.head_dim)


@dataclass(frozen=True, slots=True)
class CrossPass:
    """The inputs that all blocks share in one pass of a denoiser, in addition to the residual stream."""

    condition_RC: Tensor
    """The condition (embedded noise level) of each run of consecutive rows."""
    runs: Sequence[int]
    """The number of consecutive latent rows that share each noise level."""
    angles: Angles | None
    """The rotary angles of the latent rows; None without rotary embedding."""
    kv: Uncached
    """The KV context of a denoiser's pass: how many rows each image and each text has, without a cache."""


class CrossBlock(nn.Module):
    """A denoiser block: x + gate * attention(norm(x)), + attention to the text, + gate * feed-forward(norm(x)).

    The next norm performs the last addition. The scales and shifts of norms, and the gates, come from the noise level.
    """

    def __init__(self, d: Dimensions, style: CrossStyle, *, first: bool) -> None:
        super().__init__()
        self.factors = ConditionTable(PART * 2, d.hidden, d.dtype)
        self.norm1 = entry(d, first)
        rows = Attention(-1, d.own_heads, uncached_kv_spec(d, OF_LATENTS), rope=style.rope)
        qkv = dict.fromkeys(("to_q", "to_k", "to_v"), d.column(d.hidden, d.hidden, bias=style.bias))
        norms = norms_over_heads(d) if style.heads else None
        self.attn1 = SelfAttention(d, rows, qkv, output_bias=True, head_norms=norms)
        self.norm2 = (
            GatedAddLayerNorm(d.hidden, d.eps, d.dtype) if style.cross_attention_norm else AddGated(d.hidden, d.dtype)
        )
        self.attn2 = TextAttention(d, style)
        self.norm3 = AddShiftedLayerNorm(d.hidden, d.eps, d.dtype)
        up, down = d.column(d.hidden, d.width, bias=True), d.row(d.width, d.hidden, bias=True)
        self.ffn = MLP(d, {"widen": up}, "narrow", down)

    def keys_values(self, text_MD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a text for one block's cross-attention."""
        return self.attn2.keys_values(text_MD)

    @override
    def forward(self, stream: ResidualStream, text: tuple[Tensor, Tensor], given: CrossPass) -> ResidualStream:
        """Return the residual stream after a block, given the text's keys and values in that block."""
        runs, factors = given.runs, self.factors(given.condition_RC)
        _, _, gate, inner_shift, inner_scale, inner_gate = factors
        x_ND, normed_ND = enter(self.norm1, stream, factors, runs)
        y_ND = self.attn1(normed_ND, given.angles, given.kv)
        if isinstance(self.norm2, AddGated):
            x_ND = normed_ND = self.norm2(x_ND, y_ND, gate, runs)
        else:
            x_ND, normed_ND = self.norm2(x_ND, y_ND, gate, runs)
        y_ND = self.attn2(normed_ND, text, given.kv)
        x_ND, normed_ND = self.norm3(x_ND, y_ND, inner_scale, inner_shift, runs)
        return ResidualStream(x_ND, self.ffn(normed_ND), inner_gate)


class CrossConditionEmbedder(nn.Module):
    """The embedders of a denoiser's conditions: noise level, size of the image if the model reads it, and text.

    The noise level and the size become the conditions of the blocks and of the final norm. Each text is embedded once
    for all blocks.
    """

    def __init__(self, d: Dimensions, sinusoids: int, text_width: int, *, sized: bool) -> None:
        """Build the embedders of noise level, image size and text.

        Args:
            d: The sizes of the blocks.
            sinusoids: Numbers of the sinusoidal embedding of a timestep.
            text_width: Numbers per text token.
            sized: Whether the size of the image is a condition too.
        """
        super().__init__()
        self.sinusoids = TimestepSinusoids(sinusoids, d.dtype)
        self.time_embedder = embedder(d, sinusoids, d.hidden)
        self.time_proj = Modulation(d.hidden, 2 * len(PART) * d.hidden, ("shift",), d.dtype, activated=True)
        self.text_embedder = embedder(d, text_width, d.hidden, "gelu_new")
        self.sized = sized
        if sized:
            third = d.hidden // 3
            self.resolution_embedder, self.aspect_ratio_embedder = (embedder(d, sinusoids, third) for _ in range(2))
            self.join_sides, self.join_ratio = JoinColumns(2 * third, d.dtype), JoinColumns(d.hidden, d.dtype)
            self.add = ResidualAdd(d.hidden, d.dtype)

    @override
    def forward(self, times_R: Tensor, conditions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the conditions of a denoiser's final norm [runs, hidden] and of its blocks [runs, 6 x hidden].

        Args:
            times_R: The timestep of each run, fp32 [runs].
            conditions: Height and width in pixels and their ratio, each fp32 [runs], if the model is `sized`.
        """
        embedded_RD = self.time_embedder(self.sinusoids(times_R))
        if self.sized:
            height_RS, width_RS = (self.resolution_embedder(self.sinusoids(side_R)) for side_R in conditions[:2])
            ratio_RS = self.aspect_ratio_embedder(self.sinusoids(conditions[2]))
            embedded_RD = self.add(embedded_RD, self.join_ratio(self.join_sides(height_RS, width_RS), ratio_RS))
        (condition_RC,) = self.time_proj(embedded_RD)
        return embedded_RD, condition_RC


class CrossFinalLayer(nn.Module):
    """The final norm of a denoiser, scaled and shifted by the condition, and the projection to patches.

    Checkpoints hold both at the top.
    """

    unnamed = True

    def __init__(self, d: Dimensions, features: int) -> None:
        """Build the final norm and the projection to patches of `features` numbers."""
        super().__init__()
        self.factors = ConditionTable(PART[:2], d.hidden, d.dtype, spread=True)
        self.norm_out = AddGatedLayerNorm(d.hidden, d.eps, d.dtype)
        self.proj_out = Linear(d.whole(d.hidden, features, bias=True))

    @override
    def forward(self, stream: ResidualStream, embedded_RD: Tensor, runs: Sequence[int]) -> Tensor:
        """Return a denoiser's prediction [rows, features] from its residual stream and the final norm's condition."""
        shift_RD, scale_RD = self.factors(embedded_RD)
        _, normed_ND = self.norm_out(stream.x_ND, stream.y_ND, stream.gate_RD, scale_RD, shift_RD, runs)
        return self.proj_out(normed_ND)
