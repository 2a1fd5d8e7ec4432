"""Z-Image (arXiv:2511.22699): a single-stream denoiser, in which image and text tokens attend to each other.

Its blocks are Llama's with norms after attention and feed-forward part too, and with gates and scales that come from
the noise level. A few blocks refine each kind of tokens alone before they are joined. common/token_layout.py has the
order of the rows.

Shapes: N rows of latents, M of texts, J of both, P images, C condition, D hidden, F numbers of a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.block_runner import BlockRunner, every_block
from ridgeline.core.models.common.blocks import Norms, SandwichBlock, head_norms
from ridgeline.core.models.common.decoder import MLP, SelfAttention
from ridgeline.core.models.common.denoiser import (
    CONDITIONS,
    JOINT,
    LATENTS,
    TEXT,
    Denoiser,
    Prepared,
    Texts,
    for_each,
    without,
)
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.encoder import uncached_kv_spec
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields
from ridgeline.core.models.common.modulated import ResidualStream
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_layout import (
    TokenLayout,
    ZImageGrid,
    ZImageLayout,
    ZImageTextLayout,
    text_lengths,
    with_padding,
)
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.modulation import AddModulatedLayerNorm, AddModulatedRMSNorm, ModulatedRMSNorm, Modulation
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.rotary import Angles, AxialRotaryTable, Rope
from ridgeline.core.ops.row_ops import JoinRows, PaddingRow, RowPicker
from ridgeline.core.ops.timestep import TimestepSinusoids
from ridgeline.core.ops.work import AttentionPattern, RowAxis, Work

_RENAMES = (
    (".attention.", ".self_attn."),
    (".to_out.0.", ".o_proj."),
    (".norm_q.", ".q_norm."),
    (".norm_k.", ".k_norm."),
    (".attention_norm1.", ".input_layernorm."),
    (".attention_norm2.", ".post_attention_layernorm."),
    (".ffn_norm1.", ".pre_feedforward_layernorm."),
    (".ffn_norm2.", ".post_feedforward_layernorm."),
    (".feed_forward.w", ".mlp.w"),
    (".adaLN_modulation.0.", ".modulation."),
    ("x_pad_token", "latent_padding.weight"),
    ("cap_pad_token", "text_padding.weight"),
)
_MAX_PATCH = 64
CONDITION = 256
"""The size of a noise level's sinusoidal embedding, and the maximum width of the condition that blocks get."""
_TIME_WIDTH = 1024  # inner width of the MLP between the two
_HEAD_EPS = 1e-5  # of the norms of queries and keys; the config's is that of the others
_FINAL_EPS = 1e-6


class ModulatedBlock(SandwichBlock):
    """A modulated sandwich block: x + gate * norm(attention(scale * norm(x))), then the same for the feed-forward part.

    The next norm performs the last addition.
    """

    def __init__(self, d: Dimensions, space: RowAxis, condition: int, attention: nn.Module, *, first: bool) -> None:
        """Build a block of Z-Image around its attention.

        Args:
            d: The sizes.
            space: The row axis of the block.
            condition: Width of the condition.
            attention: The attention, which is called as SelfAttention is.
            first: Whether the block's stream has no pending addition.
        """
        norms = Norms(
            lambda: ModulatedRMSNorm(d.hidden, d.eps, d.dtype),
            lambda: AddModulatedRMSNorm(d.hidden, d.eps, d.dtype),
            lambda: ResidualAdd(d.hidden, d.dtype),
        )
        super().__init__(attention, feed_forward(d), first=first, norms=norms)
        self.space = space
        self.modulation = Modulation(condition, d.hidden, ("scale", "bounded gate") * 2, d.dtype)

    @override
    def forward(  # type: ignore[override]
        self, x_ND: Tensor, y_ND: Tensor | None, condition_PC: Tensor, angles: Angles, kv: Uncached
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a block, as two summands, given condition_PC [images, condition]."""
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
    """Z-Image's embedder of the noise level: sinusoids and an MLP, whose result is the condition of all blocks."""

    def __init__(self, d: Dimensions, condition: int, scale: float) -> None:
        """Build the embedder of noise levels; `condition` is the width of its result, `scale` the factor of times."""
        super().__init__()
        self.sinusoids = TimestepSinusoids(CONDITION, d.dtype, scale=scale)
        up = {"0": d.whole(CONDITION, _TIME_WIDTH, bias=True)}
        self.mlp = MLP(d, up, "2", d.whole(_TIME_WIDTH, condition, bias=True))

    @override
    def forward(self, times_P: Tensor) -> Tensor:
        """Return the condition [images, condition] that embeds the noise levels times_P fp32 [images]."""
        return self.mlp(self.sinusoids(times_P))


class ZImageFinalLayer(nn.Module):
    """Z-Image's final norm, scaled by the condition, and the projection to patches."""

    def __init__(self, d: Dimensions, condition: int, features: int) -> None:
        """Build Z-Image's final layer for a condition of this width and patches of `features` numbers."""
        super().__init__()
        self.norm_final = AddModulatedLayerNorm(d.hidden, _FINAL_EPS, d.dtype)
        self.linear = Linear(d.whole(d.hidden, features, bias=True))
        modulation = Modulation(condition, d.hidden, ("scale",), d.dtype, activated=True)
        self.adaLN_modulation = nn.ModuleDict({"1": modulation})

    @override
    def forward(self, x_ND: Tensor, y_ND: Tensor, condition_PC: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return Z-Image's prediction [rows, features] from the residual stream and the condition.

        Args:
            x_ND: The first summand of the stream [rows, hidden].
            y_ND: The second summand [rows, hidden].
            condition_PC: The condition [images, condition].
            lengths: Rows of each image.
        """
        (scale_PD,) = self.adaLN_modulation["1"](condition_PC)
        return self.linear(self.norm_final(x_ND, y_ND, scale_PD, lengths)[1])


def attention(d: Dimensions, space: RowAxis, theta: float) -> SelfAttention:
    """Return Z-Image's attention over all of an image's rows of one kind (the row axis `space`)."""
    rope = Rope(d.head_dim, theta, interleaved=True)
    attend = Attention(-1, d.own_heads, uncached_kv_spec(d, AttentionPattern("full", query_axis=space)), rope=rope)
    qkv = dict.fromkeys(("to_q", "to_k", "to_v"), d.column(d.hidden, d.hidden))
    return SelfAttention(d, attend, qkv, head_norms=head_norms(replace(d, eps=_HEAD_EPS)))


def feed_forward(d: Dimensions) -> MLP:
    """Build the feed-forward layer that computes w2(silu(w1(x)) * w3(x))."""
    return MLP(d, dict.fromkeys(("w1", "w3"), d.column(d.hidden, d.width)), "w2", d.row(d.width, d.hidden))


@dataclass(frozen=True, slots=True)
class ZImageSizes:
    """The settings of a Z-Image config besides the blocks' dimensions: latents, text width, condition, positions."""

    channels: int
    """The number of channels of Z-Image's latents."""
    patch: int
    """Height and width of a patch in latents."""
    text_width: int
    """Numbers per token of the text encoder's states."""
    condition: int
    """Width of the condition, which is computed from the noise level."""
    refiners: int
    """Number of blocks that refine image tokens, and text tokens, before they are joined."""
    axes: Sequence[int]
    """Entries of a head that each coordinate of a position rotates."""
    places: Sequence[int]
    """The number of positions that Z-Image has on each of the three coordinates."""
    theta: float
    """The base of the rotary frequencies of Z-Image."""
    scale: float
    """The factor of times before their sinusoidal embedding."""

    @property
    def features(self) -> int:
        """The count of numbers per patch of latents."""
        return self.patch**2 * self.channels

    @property
    def name(self) -> str:
        """The part of tensor names that states the patch size: the side, and one frame."""
        return f"{self.patch}-1"


class ZImage(Denoiser):
    """The Z-Image denoiser; checkpoints call it ZImageTransformer2DModel."""

    # Joint rows come before image rows, because they include them: a trace then has more joint rows as well.
    row_axes = (JOINT, TEXT, LATENTS, CONDITIONS)
    block_lists = ("noise_refiner", "layers")

    def __init__(self, d: Dimensions, sizes: ZImageSizes) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.storage, self.sizes, self.hidden = d.storage, sizes, d.hidden
        self._layout = lru_cache(maxsize=1)(ZImageGrid.layout)  # all passes of a request share it
        self.channels, self.patch, self.text_width = sizes.channels, sizes.patch, sizes.text_width
        self.t_embedder = TimeEmbedder(d, sizes.condition, sizes.scale)
        self.rotary = AxialRotaryTable(sizes.axes, sizes.theta)
        self.all_x_embedder = nn.ModuleDict({sizes.name: Linear(d.whole(sizes.features, d.hidden, bias=True))})
        self.latent_padding = PaddingRow(d.hidden, d.dtype)
        self.noise_refiner = self._modulated(d, LATENTS, sizes.refiners)
        self.latent_add = ResidualAdd(d.hidden, d.dtype)
        embedding = Linear(d.whole(sizes.text_width, d.hidden, bias=True))
        self.cap_embedder = nn.Sequential(RMSNorm(sizes.text_width, d.eps, d.dtype), embedding)
        self.text_padding = PaddingRow(d.hidden, d.dtype)
        norms = Norms.rms(d)
        self.context_refiner = nn.ModuleList(
            SandwichBlock(attention(d, TEXT, sizes.theta), feed_forward(d), first=layer == 0, norms=norms)
            for layer in range(sizes.refiners)
        )
        self.text_add = ResidualAdd(d.hidden, d.dtype)
        self.join = JoinRows(d.hidden, d.dtype)
        self.layers = self._modulated(d, JOINT, d.layers)
        self.all_final_layer = nn.ModuleDict({sizes.name: ZImageFinalLayer(d, sizes.condition, sizes.features)})

    def _modulated(self, d: Dimensions, space: RowAxis, count: int) -> nn.ModuleList:
        """Return `count` modulated blocks over rows of one kind (row axis)."""
        return nn.ModuleList(
            ModulatedBlock(d, space, self.sizes.condition, attention(d, space, self.sizes.theta), first=layer == 0)
            for layer in range(count)
        )

    @override
    def forward(
        self,
        latents_PCHW: Tensor,
        t: float | Sequence[float],
        texts: Texts,
        *,
        pooled: Tensor | None = None,
        guidance: float | Sequence[float] | None = None,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        """Return the predicted velocities (noise - image) of noisy latents.

        Checkpoints reverse the time and predict image - noise; this method converts both.
        """
        images, _, *size = latents_PCHW.shape
        self.check_conditions(images, pooled, guidance)
        levels = for_each(t, images)
        prepared = self.prepared(texts, images)
        grid, device, dtype = self.grid((size[0], size[1])), latents_PCHW.device, self.storage.dtype
        layout = self._layout(grid, prepared.lengths, device)
        # Rounded as in the reference, in training steps: an error of 6e-8 in time is 6e-5 radians in its sinusoids.
        steps_P = torch.tensor([1000 * level for level in levels], dtype=torch.float32, device=device)
        times_P = (1000 - steps_P) / 1000
        (text_MD,) = prepared.rows
        rows_NF = self.denoise(grid.patches(latents_PCHW).to(dtype), times_P, text_MD, layout, walk)
        return -grid.latents(rows_NF, images).to(latents_PCHW.dtype)

    @override
    def prepare(self, texts: Sequence[Tensor]) -> Prepared:
        """Compute Z-Image's refined rows of texts, which do not depend on the noise level."""
        lengths = tuple(map(len, texts))
        layout = ZImageTextLayout.of(lengths, self.sizes.places, texts[0].device)
        texts_MC = torch.cat([with_padding(text) for text in texts])
        return Prepared(lengths, (self.read(texts_MC.to(self.storage.dtype), layout),))

    def read(self, texts_MC: Tensor, layout: ZImageTextLayout) -> Tensor:
        """Return the refined rows [M, hidden] of texts_MC [M, text_width], laid out as `layout` says.

        The values in padding rows do not matter.
        """
        kv, angles = Uncached([], {TEXT: layout.lengths}), self.rotary(layout.positions)
        x_MD, y_MD = self.text_padding(self.cap_embedder(texts_MC), layout.padding), None
        for block in self.context_refiner:
            x_MD, y_MD = block(x_MD, y_MD, angles, kv)
        return self.text_add(x_MD, y_MD)

    def denoise(
        self,
        patches_NF: Tensor,
        times_P: Tensor,
        text_MD: Tensor,
        layout: ZImageLayout,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        """Run Z-Image's blocks on patches of latents, and return image - noise for each patch, [N, F].

        Args:
            patches_NF: Rows of images, as many as the layout has; the values in padding rows do not matter.
            times_P: 1 - t of each image, fp32.
            text_MD: The result of `read`.
            layout: The rows of the pass.
            walk: The function that runs the blocks.
        """
        kv = Uncached([], layout.lengths)
        condition_PC = self.t_embedder(times_P)
        x_ND = self.latent_padding(self.all_x_embedder[self.sizes.name](patches_NF), layout.padding)
        y_ND, angles = None, self.rotary(layout.positions[LATENTS])
        for block in self.noise_refiner:
            x_ND, y_ND = block(x_ND, y_ND, condition_PC, angles, kv)
        joint = ResidualStream(self.join(layout.joint.order, self.latent_add(x_ND, y_ND), text_MD))
        angles, own, (block, *others) = self.rotary(layout.positions[JOINT]), layout.joint.first, self.layers

        def first(stream: ResidualStream) -> ResidualStream:
            return ResidualStream(*block(stream.x_ND, None, condition_PC, angles, kv))

        def rest(stream: ResidualStream) -> ResidualStream:
            x_JD, y_JD, _ = stream
            del stream  # so that no tensor stays alive longer than a block needs it
            for other in others:
                x_JD, y_JD = other(x_JD, y_JD, condition_PC, angles, kv)
            assert y_JD is not None
            return ResidualStream(self.wanted(x_JD, own), self.wanted(y_JD, own))

        x_ND, y_ND, _ = walk(joint, own, first, rest)
        return self.all_final_layer[self.sizes.name](x_ND, y_ND, condition_PC, layout.lengths[LATENTS])

    @override
    def work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        work = Work.whole(self.grid(size).lengths(texts))
        return replace(work, rows={**work.rows, CONDITIONS: len(texts)})

    @override
    def prepare_work(self, texts: Sequence[int]) -> Work:
        own, nothing = Work.whole({TEXT: text_lengths(texts, self.sizes.places)}), super().prepare_work(texts)
        return replace(own, attention={**nothing.attention, **own.attention})

    @override
    def pass_work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        return without(self.work(size, texts), TEXT)

    def grid(self, size: tuple[int, ...]) -> ZImageGrid:
        """Return the grid of patches of an image of `size` latents.

        Raises:
            ValueError: If the size does not divide into patches, or exceeds the positions.
        """
        return ZImageGrid.of(size, self.patch, self.sizes.places)

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        axes, dtype = len(self.sizes.axes), self.storage.dtype
        positions = {space: torch.empty(count, axes, dtype=torch.int64) for space, count in rows.items()}
        padding = {space: torch.empty(count, dtype=torch.int64) for space, count in rows.items()}
        texts_MC = torch.empty(rows[TEXT], self.text_width, dtype=dtype)
        text_MD = self.read(texts_MC, ZImageTextLayout([rows[TEXT]], positions[TEXT], padding[TEXT]))
        joint = TokenLayout.empty(rows[LATENTS], rows[TEXT], rows[JOINT])
        layout = ZImageLayout({space: [count] for space, count in rows.items()}, positions, padding[LATENTS], joint)
        patches_NF = torch.empty(rows[LATENTS], self.sizes.features, dtype=dtype)
        self.denoise(patches_NF, torch.empty(rows[CONDITIONS]), text_MD, layout)


def build(fields: Fields, storage: StorageConfig) -> ZImage:
    """Build the denoiser of a Z-Image or Z-Image-Turbo config."""
    hidden, heads = fields.count("dim", 3840), fields.count("n_heads", 30)
    axes, places = (_three(fields, *each) for each in (("axes_dims", (32, 48, 48)), ("axes_lens", (1024, 512, 512))))
    if hidden != heads * sum(axes):
        raise fields.refuse(f"dim is {hidden}; it must be n_heads {heads} x {sum(axes)}, the sum of axes_dims")
    if any(width % 2 for width in axes):
        raise fields.refuse(f"axes_dims is {list(axes)}; its numbers must be even, because rotary rotates pairs")
    fields.require("n_kv_heads", heads)
    fields.require("qk_norm", True)
    fields.require_off("siglip_feat_dim")
    fields.require("all_f_patch_size", [1])
    patches = fields.integers("all_patch_size") or [2]
    if len(patches) != 1 or not 1 <= patches[0] <= _MAX_PATCH:
        raise fields.refuse(f"all_patch_size {patches} is not supported; one size from 1 to {_MAX_PATCH} is")
    d = Dimensions(
        vocabulary=0,  # it reads no tokens
        context=places[0],
        layers=fields.count("n_layers", 30, most=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        width=int(hidden / 3 * 8),
        activation="silu",
        eps=fields.positive("norm_eps", 1e-5),
        storage=storage,
    )
    sizes = ZImageSizes(
        channels=fields.count("in_channels", 16),
        patch=patches[0],
        text_width=fields.count("cap_feat_dim", 2560),
        condition=min(hidden, CONDITION),
        refiners=fields.count("n_refiner_layers", 2, most=MAX_LAYERS),
        axes=axes,
        places=places,
        theta=fields.positive("rope_theta", 256.0),
        scale=fields.positive("t_scale", 1000.0),
    )
    return ZImage(d, sizes)


def _three(fields: Fields, name: str, default: tuple[int, int, int]) -> tuple[int, ...]:
    """Read from a config a list of one positive number for each of the three coordinates."""
    values = tuple(fields.integers(name)) or default
    if len(values) != len(default) or min(values) < 1:
        raise fields.refuse(f"{name} is {list(values)}; it must be {len(default)} positive numbers")
    return values


FAMILY = Family("ZImageTransformer2DModel", "", build, "", _RENAMES, (), kind="denoiser")
