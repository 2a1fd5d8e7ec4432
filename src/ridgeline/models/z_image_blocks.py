"""Blocks of Z-Image (arXiv:2511.22699): Llama's, with norms before and after each part, and scales and gates that come
from the noise level; what becomes of that level, and the last layer.

Shapes: N rows, P pictures, C condition, D hidden, F numbers of a patch.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from ridgeline.models.blocks import Norms, SandwichBlock, head_norms
from ridgeline.models.decoder import MLP, SelfAttention
from ridgeline.models.dimensions import Dimensions
from ridgeline.models.encoder import looks_at
from ridgeline.ops.attention import Attention
from ridgeline.ops.kv_context import Uncached
from ridgeline.ops.linear import Linear
from ridgeline.ops.modulation import AddModulatedLayerNorm, AddModulatedRMSNorm, ModulatedRMSNorm, Modulation
from ridgeline.ops.residual import Add
from ridgeline.ops.rotary import Angles, Rope
from ridgeline.ops.timestep import TimestepSinusoids
from ridgeline.ops.work import Reach, Space

CONDITION = 256
"""Numbers of the sinusoids of a noise level, and at most of the condition that blocks see of it."""
_TIME_WIDTH = 1024  # of the feed-forward part between the two
_HEAD_EPS = 1e-5  # of the norms of queries and keys, whatever the config says of the others
_FINAL_EPS = 1e-6


class ModulatedBlock(SandwichBlock):
    """x + gate * norm(attention(scale * norm(x))), then the same of the feed-forward part; the second sum is left to
    the norm that follows."""

    def __init__(self, d: Dimensions, space: Space, condition: int, attention: nn.Module, *, first: bool) -> None:
        """As SandwichBlock. space: of its rows. condition: numbers of what modulates."""
        norms = Norms(
            lambda: ModulatedRMSNorm(d.hidden, d.eps, d.dtype),
            lambda: AddModulatedRMSNorm(d.hidden, d.eps, d.dtype),
            lambda: Add(d.hidden, d.dtype),
        )
        super().__init__(attention, feed_forward(d), first=first, norms=norms)
        self.space = space
        self.modulation = Modulation(condition, d.hidden, ("scale", "bounded gate") * 2, d.dtype)

    def forward(  # type: ignore[override]
        self, x_ND: Tensor, y_ND: Tensor | None, condition_PC: Tensor, angles: Angles, kv: Uncached
    ) -> tuple[Tensor, Tensor]:
        """As SandwichBlock.forward. condition_PC [pictures, condition]."""
        scale, gate, inner_scale, inner_gate = self.modulation(condition_PC)
        lengths = kv.lengths[self.space]
        if y_ND is None:
            normed_ND = self.input_layernorm(x_ND, scale, lengths)
        else:
            x_ND, normed_ND = self.input_layernorm(x_ND, y_ND, scale, lengths)
        y_ND = self.post_attention_layernorm(self.self_attn(normed_ND, angles, kv), gate, lengths)
        x_ND, normed_ND = self.pre_feedforward_layernorm(x_ND, y_ND, inner_scale, lengths)
        return x_ND, self.post_feedforward_layernorm(self.mlp(normed_ND), inner_gate, lengths)


class TimeEmbedder(nn.Module):
    """The condition of a picture: the sinusoids of its noise level through two matrices. All blocks see it."""

    def __init__(self, d: Dimensions, condition: int, scale: float) -> None:
        """condition: numbers of what comes out. scale: of times."""
        super().__init__()
        self.sinusoids = TimestepSinusoids(CONDITION, d.dtype, scale=scale)
        up = {"0": d.whole(CONDITION, _TIME_WIDTH, bias=True)}
        self.mlp = MLP(d, up, "2", d.whole(_TIME_WIDTH, condition, bias=True))

    def forward(self, times_P: Tensor) -> Tensor:
        """times_P fp32 [pictures] -> [pictures, condition]."""
        out_PC: Tensor = self.mlp(self.sinusoids(times_P))
        return out_PC


class FinalLayer(nn.Module):
    """The last norm, scaled, and the projection to patches."""

    def __init__(self, d: Dimensions, condition: int, features: int) -> None:
        """condition: numbers of what modulates. features: numbers of a patch."""
        super().__init__()
        self.norm_final = AddModulatedLayerNorm(d.hidden, _FINAL_EPS, d.dtype)
        self.linear = Linear(d.whole(d.hidden, features, bias=True))
        modulation = Modulation(condition, d.hidden, ("scale",), d.dtype, activated=True)
        self.adaLN_modulation = nn.ModuleDict({"1": modulation})

    def forward(self, x_ND: Tensor, y_ND: Tensor, condition_PC: Tensor, lengths: Sequence[int]) -> Tensor:
        """Two summands [rows, hidden] and condition_PC [pictures, condition] -> [rows, features]. lengths: rows of each
        picture."""
        (scale_PD,) = self.adaLN_modulation["1"](condition_PC)
        out_NF: Tensor = self.linear(self.norm_final(x_ND, y_ND, scale_PD, lengths)[1])
        return out_NF


def attention(d: Dimensions, space: Space, theta: float) -> SelfAttention:
    """Attention over all rows of a picture in a space."""
    rope = Rope(d.head_dim, theta, interleaved=True)
    attend = Attention(-1, d.own_heads, looks_at(d, Reach("full", space=space)), rope=rope)
    qkv = dict.fromkeys(("to_q", "to_k", "to_v"), d.column(d.hidden, d.hidden))
    return SelfAttention(d, attend, qkv, head_norms=head_norms(replace(d, eps=_HEAD_EPS)))


def feed_forward(d: Dimensions) -> MLP:
    """w2(silu(w1(x)) * w3(x))."""
    return MLP(d, dict.fromkeys(("w1", "w3"), d.column(d.hidden, d.width)), "w2", d.row(d.width, d.hidden))
