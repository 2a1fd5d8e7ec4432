"""MMDiT (Esser et al., arXiv:2403.03206) as in FLUX.1 and FLUX.2: a denoiser of image and text tokens.

The tokens pass double blocks, in two streams, then single blocks, in one. flux.py reads the configs.

Shapes: N rows of latents, M of texts, J of both, P images, D hidden, F numbers of a patch, C of a text's token, V of
its pooled vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.block_runner import BlockRunner, every_block
from ridgeline.core.models.common.denoiser import CONDITIONS, JOINT, LATENTS, TEXT, Denoiser, Texts, for_each
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.mmdit_blocks import (
    DoubleBlock,
    MMDiTPass,
    MMDiTStyle,
    SingleBlock,
    modulation,
)
from ridgeline.core.models.common.modulated import PART, ResidualStream, embedder
from ridgeline.core.models.common.token_layout import MMDiTGrid, MMDiTLayout, TokenLayout
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.modulation import AddGated, AddGatedLayerNorm
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.rotary import AxialRotaryTable
from ridgeline.core.ops.row_ops import JoinRows, RowPicker
from ridgeline.core.ops.timestep import TimestepSinusoids
from ridgeline.core.ops.work import RowAxis, Work

_SCALE = 1000.0  # the factor of times and guidance before their sinusoidal embedding


@dataclass(frozen=True, slots=True)
class MMDiTSizes:
    """The settings of a FLUX config besides its double blocks: latents, text width, single blocks, conditions."""

    channels: int
    """The number of channels of FLUX's latents."""
    patch: int
    """The height and width in latents of a patch, which is one token."""
    text_width: int
    """Numbers per token of the text encoder's states."""
    singles: int
    """Number of single blocks; `Dimensions.layers` is the number of double blocks."""
    sinusoids: int
    """Size of the sinusoidal embedding of a timestep."""
    pooled: int | None
    """The count of numbers of the pooled text vector; None if the model reads none."""
    guided: bool
    """Whether the model reads the guidance scale as an input."""
    axes: Sequence[int]
    """Entries of a head that each coordinate of a position rotates."""

    @property
    def features(self) -> int:
        """The count of numbers per patch of latents."""
        return self.patch**2 * self.channels


class MMDiTConditionEmbedder(nn.Module):
    """The embedder of FLUX's condition: the sum of embedded noise level, guidance scale and pooled text vector."""

    def __init__(self, d: Dimensions, sizes: MMDiTSizes, style: MMDiTStyle) -> None:
        super().__init__()
        self.sinusoids = TimestepSinusoids(sizes.sinusoids, d.dtype, scale=_SCALE)
        self.timestep_embedder = embedder(d, sizes.sinusoids, d.hidden, bias=style.bias)
        self.guidance_embedder = embedder(d, sizes.sinusoids, d.hidden, bias=style.bias) if sizes.guided else None
        self.text_embedder = None if sizes.pooled is None else embedder(d, sizes.pooled, d.hidden, bias=style.bias)
        alone = self.guidance_embedder is None and self.text_embedder is None
        self.add = None if alone else ResidualAdd(d.hidden, d.dtype)

    @override
    def forward(self, times_P: Tensor, guidance_P: Tensor | None, pooled_PV: Tensor | None) -> Tensor:
        """Return FLUX's condition of each image, [images, hidden].

        Args:
            times_P: Noise levels fp32 [images].
            guidance_P: Guidance scales fp32 [images]; None if they are no input.
            pooled_PV: Pooled text vectors [images, pooled]; None if they are no input.
        """
        out_PD: Tensor = self.timestep_embedder(self.sinusoids(times_P))
        if self.add is not None and self.guidance_embedder is not None:
            out_PD = self.add(out_PD, self.guidance_embedder(self.sinusoids(guidance_P)))
        if self.add is not None and self.text_embedder is not None:
            out_PD = self.add(out_PD, self.text_embedder(pooled_PV))
        return out_PD


class MMDiT(Denoiser):
    """The denoiser of FLUX; checkpoints call it FluxTransformer2DModel or Flux2Transformer2DModel."""

    # Joint rows come before image rows, because they include them: a trace then has more joint rows as well.
    row_axes = (JOINT, TEXT, LATENTS, CONDITIONS)
    block_lists = ("transformer_blocks", "single_transformer_blocks")
    text_first = True

    def __init__(self, d: Dimensions, sizes: MMDiTSizes, style: MMDiTStyle) -> None:
        super().__init__()
        self.wanted = RowPicker()
        self.storage, self.sizes, self.hidden = d.storage, sizes, d.hidden
        self._layout = lru_cache(maxsize=1)(MMDiTGrid.layout)  # all passes of a request share it
        self.channels, self.patch, self.text_width = sizes.channels, sizes.patch, sizes.text_width
        self.pooled_width, self.takes_guidance = sizes.pooled, sizes.guided
        self.time_text_embed = MMDiTConditionEmbedder(d, sizes, style)
        shared = (("double_stream_modulation_img", LATENTS, 2), ("double_stream_modulation_txt", TEXT, 2))
        self.shared = (*shared, ("single_stream_modulation", JOINT, 1)) if style.shared else ()
        for name, _, parts in self.shared:
            self.add_module(name, modulation(d, PART * parts, style))
        self.rotary = AxialRotaryTable(sizes.axes, style.theta)
        self.x_embedder = Linear(d.whole(sizes.features, d.hidden, bias=style.bias))
        self.context_embedder = Linear(d.whole(sizes.text_width, d.hidden, bias=style.bias))
        self.transformer_blocks = nn.ModuleList(DoubleBlock(d, style, first=layer == 0) for layer in range(d.layers))
        self.latent_add, self.text_add = AddGated(d.hidden, d.dtype), AddGated(d.hidden, d.dtype)
        self.join = JoinRows(d.hidden, d.dtype)
        self.single_transformer_blocks = nn.ModuleList(
            SingleBlock(d, style, first=layer == 0) for layer in range(sizes.singles)
        )
        self.norm_out = modulation(d, ("scale", "shift"), style)
        self.last_norm = AddGatedLayerNorm(d.hidden, d.eps, d.dtype)
        self.proj_out = Linear(d.whole(d.hidden, sizes.features, bias=style.bias))

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
        """Return the predicted velocities of noisy latents; checkpoints use the convention of `Denoiser` already."""
        images, _, *size = latents_PCHW.shape
        self.check_conditions(images, pooled, guidance)
        prepared = self.prepared(texts, images)
        grid, device, dtype = self.grid((size[0], size[1])), latents_PCHW.device, self.storage.dtype
        layout = self._layout(grid, prepared.lengths, len(self.sizes.axes), device)
        times_P, guidance_P = (
            None if given is None else torch.tensor(for_each(given, images), dtype=torch.float32, device=device)
            for given in (t, guidance)
        )
        assert times_P is not None
        patches_NF, texts_MC = grid.patches(latents_PCHW).to(dtype), torch.cat(prepared.rows).to(dtype)
        pooled_PV = None if pooled is None else pooled.to(dtype)
        rows_NF = self.denoise(
            patches_NF, times_P, texts_MC, layout, guidance_P=guidance_P, pooled_PV=pooled_PV, walk=walk
        )
        return grid.latents(rows_NF, images).to(latents_PCHW.dtype)

    def denoise(
        self,
        patches_NF: Tensor,
        times_P: Tensor,
        texts_MC: Tensor,
        layout: MMDiTLayout,
        *,
        guidance_P: Tensor | None,
        pooled_PV: Tensor | None,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        """Run FLUX's blocks on rows of images and texts, and return noise - image for each patch, [N, F].

        Args:
            patches_NF: Patches of latents, as many as the layout has.
            times_P: Noise levels, fp32.
            texts_MC: Text tokens, as many as the layout has.
            layout: The rows of the pass.
            guidance_P: Guidance scales, fp32; None if they are no input.
            pooled_PV: Pooled text vectors; None if they are no input.
            walk: The function that runs the blocks.
        """
        condition_PD = self.time_text_embed(times_P, guidance_P, pooled_PV)
        shared = {space: self.get_submodule(f"{name}.linear")(condition_PD) for name, space, _ in self.shared}
        kv = Uncached([], layout.lengths)
        given = MMDiTPass(condition_PD, shared, layout, self.rotary(layout.positions), kv)
        entered, text = ResidualStream(self.x_embedder(patches_NF)), ResidualStream(self.context_embedder(texts_MC))
        double, *doubles = self.transformer_blocks

        def first(latents: ResidualStream) -> ResidualStream:
            nonlocal text
            latents, text = double(latents, text, given)
            return latents

        def rest(latents: ResidualStream) -> ResidualStream:
            nonlocal text
            for block in doubles:
                latents, text = block(latents, text, given)
            x_ND = self.latent_add(*latents, layout.lengths[LATENTS])
            joint = ResidualStream(self.join(layout.joint.order, self.text_add(*text, layout.lengths[TEXT]), x_ND))
            for block in self.single_transformer_blocks:
                joint = block(joint, given)
            assert joint.y_ND is not None
            own = layout.joint.second
            return ResidualStream(self.wanted(joint.x_ND, own), self.wanted(joint.y_ND, own), joint.gate_RD)

        latents = walk(entered, None, first, rest)
        factors = self.norm_out["linear"](condition_PD)
        _, normed_ND = self.last_norm(*latents, *factors, layout.lengths[LATENTS])
        return self.proj_out(normed_ND)

    @override
    def work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        work = Work.whole(self.grid(size).lengths(texts))
        return replace(work, rows={**work.rows, CONDITIONS: len(texts)})

    def grid(self, size: tuple[int, ...]) -> MMDiTGrid:
        """Return the grid of patches of an image of `size` latents.

        Raises:
            ValueError: If the size does not divide into patches.
        """
        return MMDiTGrid.of(size, self.patch)

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        positions = torch.empty(rows[JOINT], len(self.sizes.axes), dtype=torch.int64)
        joint = TokenLayout.empty(rows[TEXT], rows[LATENTS], rows[JOINT])
        layout = MMDiTLayout({space: [count] for space, count in rows.items()}, positions, joint)
        images, dtype = rows[CONDITIONS], self.storage.dtype
        self.denoise(
            torch.empty(rows[LATENTS], self.sizes.features, dtype=dtype),
            torch.empty(images),
            torch.empty(rows[TEXT], self.text_width, dtype=dtype),
            layout,
            guidance_P=torch.empty(images) if self.takes_guidance else None,
            pooled_PV=None if self.pooled_width is None else torch.empty(images, self.pooled_width, dtype=dtype),
        )
