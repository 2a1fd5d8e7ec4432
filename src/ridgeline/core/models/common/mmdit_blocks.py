"""The blocks of an MMDiT (Esser et al., arXiv:2403.03206): double-stream and single-stream blocks.

In double blocks the tokens of an image and of its text have separate weights and meet in attention. In single blocks
both have the same weights, and attention and feed-forward part run in parallel (Dehghani et al., arXiv:2302.05442).

Shapes: N rows of latents, M of texts, J of both, P images, D hidden, F width of a feed-forward part.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import head_norms
from ridgeline.core.models.common.decoder import MLP
from ridgeline.core.models.common.denoiser import JOINT, LATENTS, TEXT
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.encoder import uncached_kv_spec
from ridgeline.core.models.common.modulated import PART, Factors, ResidualStream, enter, entry
from ridgeline.core.models.common.token_layout import MMDiTLayout
from ridgeline.core.ops.activation import ActivatedProjections, GatedActivation
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.modulation import AddGatedLayerNorm, Factor, Modulation
from ridgeline.core.ops.norm import Norm
from ridgeline.core.ops.rotary import Angles, Rope
from ridgeline.core.ops.row_ops import JoinColumns, JoinRows, RowPicker
from ridgeline.core.ops.work import AttentionPattern, RowAxis


@dataclass(frozen=True, slots=True)
class MMDiTStyle:
    """The settings in which the blocks of FLUX.1 and FLUX.2 differ."""

    bias: bool
    """Whether all matrices of FLUX's denoiser have a bias."""
    shared: bool
    """Whether all blocks of a kind share one modulation (scales, shifts, gates) instead of having one each."""
    gated: bool
    """Whether feed-forward parts are gated, and a single block's projections are one matrix."""
    theta: float
    """The base of the rotary frequencies of FLUX."""


@dataclass(frozen=True, slots=True)
class MMDiTPass:
    """The inputs that all blocks of an MMDiT pass share, in addition to the residual stream."""

    condition_PD: Tensor
    """The condition of each image, computed from its noise level."""
    shared: Mapping[RowAxis, Factors]
    """The modulation factors that blocks share, by the kind of the blocks' rows; empty if each has its own."""
    layout: MMDiTLayout
    """The layout of the pass's image and text rows."""
    angles: Angles
    """The rotary angles of the joint rows (text and image)."""
    kv: Uncached
    """The KV context of an MMDiT pass: how many rows each image has, without a cache."""


class Modulated(nn.Module):
    """A module whose norms and gates get shifts, scales and gates from its own modulation or a shared one."""

    def __init__(self, d: Dimensions, style: MMDiTStyle, space: RowAxis, parts: int, name: str) -> None:
        """Build a module's own modulation, unless all blocks share one.

        Args:
            d: The sizes of the blocks.
            style: The differences between families.
            space: The row axis of the module.
            parts: Number of parts that need a shift, a scale and a gate.
            name: The checkpoint's name of the modulation.
        """
        super().__init__()
        self.space, self.name = space, name
        if not style.shared:
            self.add_module(name, modulation(d, PART * parts, style))

    def factors(self, given: MMDiTPass) -> Factors:
        """Return the modulation factors (shifts, scales and gates) of a module in a pass."""
        if self.space in given.shared:
            return given.shared[self.space]
        return self.get_submodule(f"{self.name}.linear")(given.condition_PD)


class MMDiTHalf(Modulated):
    """The part of a double block for one of its two streams: norms and feed-forward layer."""

    unnamed = True

    def __init__(self, d: Dimensions, style: MMDiTStyle, space: RowAxis, *, first: bool) -> None:
        suffix = "_context" if space == TEXT else ""
        super().__init__(d, style, space, 2, f"norm1{suffix}")
        self.entry, self.middle = entry(d, first), AddGatedLayerNorm(d.hidden, d.eps, d.dtype)
        self.feed_forward = f"ff{suffix}"
        up = d.fused("linear_in", d.width, d.width) if style.gated else {}
        up = up or {"linear_in": d.column(d.hidden, d.width, bias=style.bias)}
        self.add_module(self.feed_forward, MLP(d, up, "linear_out", d.row(d.width, d.hidden, bias=style.bias)))

    def leave(self, x_ND: Tensor, attended_ND: Tensor, factors: Factors, given: MMDiTPass) -> ResidualStream:
        """Return a stream after the last parts of its double block: gated addition, norm, feed-forward layer."""
        _, _, gate, shift, scale, last_gate = factors
        lengths = given.layout.lengths[self.space]
        x_ND, normed_ND = self.middle(x_ND, attended_ND, gate, scale, shift, lengths)
        return ResidualStream(x_ND, self.get_submodule(self.feed_forward)(normed_ND), last_gate)


class JointAttention(nn.Module):
    """The attention of an image and its text to both, with separate projections for image and text."""

    part = "attention"

    def __init__(self, d: Dimensions, style: MMDiTStyle) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.head_dim = d.head_dim
        spec, back = d.column(d.hidden, d.hidden, bias=style.bias), d.row(d.hidden, d.hidden, bias=style.bias)
        self.qkv = Projections(dict.fromkeys(("to_q", "to_k", "to_v"), spec))
        self.added = Projections(dict.fromkeys(("add_q_proj", "add_k_proj", "add_v_proj"), spec))
        self.norm_q, self.norm_k = head_norms(d)
        self.norm_added_q, self.norm_added_k = head_norms(d)
        self.join = JoinRows(d.hidden, d.dtype)
        self.attend = _attention(d, style)
        self.to_out = nn.ModuleList([Linear(back)])
        self.to_add_out = Linear(back)

    @override
    def forward(self, x_ND: Tensor, x_MD: Tensor, given: MMDiTPass) -> tuple[Tensor, Tensor]:
        """Return the attention outputs of x_ND, rows of images, and of x_MD, rows of texts, in their shapes."""
        joint = given.layout.joint
        own = heads(self.qkv(x_ND), self.head_dim, self.norm_q, self.norm_k)
        added = heads(self.added(x_MD), self.head_dim, self.norm_added_q, self.norm_added_k)
        q_JHE, k_JHE, v_JHE = (self.join(joint.order, text, each) for text, each in zip(added, own, strict=True))
        y_JD: Tensor = self.attend(q_JHE, k_JHE, v_JHE, given.kv, given.angles)
        return self.to_out[0](self.wanted(y_JD, joint.second)), self.to_add_out(self.wanted(y_JD, joint.first))


class DoubleBlock(nn.Module):
    """A double-stream block: x + gate * attention(norm(x)), then x + gate * feed-forward(norm(x)), for image and text.

    Each stream attends to both. Each norm is scaled and shifted. The next norms perform the second additions.
    """

    def __init__(self, d: Dimensions, style: MMDiTStyle, *, first: bool) -> None:
        """Build a double-stream block; the streams of the `first` block have no pending addition."""
        super().__init__()
        self.latents, self.text = (MMDiTHalf(d, style, space, first=first) for space in (LATENTS, TEXT))
        self.attn = JointAttention(d, style)

    @override
    def forward(
        self, latents: ResidualStream, text: ResidualStream, given: MMDiTPass
    ) -> tuple[ResidualStream, ResidualStream]:
        """Return both streams, of rows of images and of texts, after the block."""
        own, beside = self.latents.factors(given), self.text.factors(given)
        x_ND, normed_ND = enter(self.latents.entry, latents, own, given.layout.lengths[LATENTS])
        x_MD, normed_MD = enter(self.text.entry, text, beside, given.layout.lengths[TEXT])
        y_ND, y_MD = self.attn(normed_ND, normed_MD, given)
        return self.latents.leave(x_ND, y_ND, own, given), self.text.leave(x_MD, y_MD, beside, given)


class SideBySide(nn.Module):
    """Attention and a feed-forward part in parallel, whose results one output matrix reads."""

    def __init__(self, d: Dimensions, style: MMDiTStyle, out: str) -> None:
        """Build attention and a feed-forward part in parallel, without the input projections, which subclasses build.

        `out` is the checkpoint's name of the output matrix.
        """
        super().__init__()
        self.head_dim, self.out = d.head_dim, out
        self.norm_q, self.norm_k = head_norms(d)
        self.attend = _attention(d, style)
        self.join = JoinColumns(d.hidden + d.width, d.dtype)
        self.add_module(out, Linear(d.row(d.hidden + d.width, d.hidden, bias=style.bias)))

    @override
    def forward(self, x_JD: Tensor, given: MMDiTPass) -> Tensor:
        """Return the output of parallel attention and feed-forward part, [rows, hidden], for x_JD [rows, hidden]."""
        *qkv, widened_JF = self.projected(x_JD)
        q_JHE, k_JHE, v_JHE = heads(qkv, self.head_dim, self.norm_q, self.norm_k)
        y_JD = self.attend(q_JHE, k_JHE, v_JHE, given.kv, given.angles)
        return self.get_submodule(self.out)(self.join(y_JD, widened_JF))

    @abstractmethod
    def projected(self, x_JD: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values [rows, hidden], and activated feed-forward rows [rows, width]."""


class SeparateSideBySide(SideBySide):
    """The parallel attention and feed-forward part of FLUX.1, with separate projections."""

    def __init__(self, d: Dimensions, style: MMDiTStyle) -> None:
        super().__init__(d, style, "proj_out")
        spec = d.column(d.hidden, d.hidden, bias=style.bias)
        self.qkv = Projections(dict.fromkeys(("to_q", "to_k", "to_v"), spec))
        self.up = ActivatedProjections({"proj_mlp": d.column(d.hidden, d.width, bias=style.bias)}, d.activation)

    @override
    def projected(self, x_JD: Tensor) -> tuple[Tensor, ...]:
        return *self.qkv(x_JD), self.up(x_JD)


class FusedSideBySide(SideBySide):
    """The parallel attention and feed-forward part of FLUX.2, with one matrix for all input projections."""

    def __init__(self, d: Dimensions, style: MMDiTStyle) -> None:
        super().__init__(d, style, "to_out")
        widths = (d.hidden,) * 3 + (d.width,) * 2
        self.projections = Projections(d.fused("to_qkv_mlp_proj", *widths, bias=style.bias))
        self.activate = GatedActivation(d.width, d.activation, d.dtype)

    @override
    def projected(self, x_JD: Tensor) -> tuple[Tensor, ...]:
        *qkv, gate_JF, up_JF = self.projections(x_JD)
        return *qkv, self.activate(gate_JF, up_JF)


class SingleBlock(Modulated):
    """A single-stream block over joint rows: x + gate * (attention and feed-forward in parallel)(norm(x)).

    The next norm performs the addition.
    """

    def __init__(self, d: Dimensions, style: MMDiTStyle, *, first: bool) -> None:
        """Build a single-stream block; the stream of the `first` block has no pending addition."""
        super().__init__(d, style, JOINT, 1, "norm")
        self.entry = entry(d, first)
        self.attn = FusedSideBySide(d, style) if style.gated else SeparateSideBySide(d, style)

    @override
    def forward(self, stream: ResidualStream, given: MMDiTPass) -> ResidualStream:
        """Return the residual stream of joint (text and image) rows after the block."""
        factors = self.factors(given)
        x_JD, normed_JD = enter(self.entry, stream, factors, given.layout.lengths[JOINT])
        return ResidualStream(x_JD, self.attn(normed_JD, given), factors[-1])


def modulation(d: Dimensions, factors: tuple[Factor, ...], style: MMDiTStyle) -> nn.ModuleDict:
    """Return the projection from a condition to shifts, scales and gates, which checkpoints call `linear`."""
    own = Modulation(d.hidden, d.hidden, factors, d.dtype, activated=True, bias=style.bias)
    return nn.ModuleDict({"linear": own})


def heads(qkv: Sequence[Tensor], width: int, q_norm: Norm, k_norm: Norm) -> tuple[Tensor, ...]:
    """Split queries, keys and values into heads, [rows, heads, width], and normalise queries and keys."""
    q_JHE, k_JHE, v_JHE = (x.view(len(x), -1, width) for x in qkv)
    return q_norm(q_JHE), k_norm(k_JHE), v_JHE


def _attention(d: Dimensions, style: MMDiTStyle) -> Attention:
    """Return the attention over all joint rows of an image and its text."""
    rope = Rope(d.head_dim, style.theta, interleaved=True)
    return Attention(-1, d.own_heads, uncached_kv_spec(d, AttentionPattern("full", query_axis=JOINT)), rope=rope)
