"""Pipeline classes: the properties that diffusers' pipeline class defines but no config in the folder states."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ridgeline.core.checkpoint.source import Component, ModelSource
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.common.cross_denoiser import CrossDenoiser
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.media.diffusion.flux_encoder import load_flux_encoder
from ridgeline.media.diffusion.geometry import LAYOUTS, PipelineLayout
from ridgeline.media.diffusion.guidance import Convention
from ridgeline.media.diffusion.t5_encoder import load_t5_encoder, lowered, unescaped
from ridgeline.media.diffusion.text_encoder import TextEncoder, load_chat_encoder
from ridgeline.media.diffusion.timestep_call import TimestepCall, flux2_mu, flux_sigmas, token_mu, z_image_sigmas

_WAN_14B = 5120  # hidden size of its large models


class LoadEncoder(Protocol):
    """A function that loads the text encoder of a pipeline's folder."""

    def __call__(self, pipeline: ModelSource, progress: Progress | None = None) -> TextEncoder:
        """Load the text encoder, or raise ModelRefused."""


@dataclass(frozen=True, slots=True)
class PipelineClass:
    """The properties of a pipeline class: its parts, text encoder, guidance convention, layout and defaults."""

    text_parts: tuple[str, ...]
    """The parts of a pipeline's folder that `load_encoder` reads: the text encoders and their tokenizers."""
    load_encoder: LoadEncoder
    """The function that loads the pipeline's text encoder."""
    convention: Convention
    """The convention of the pipeline's guidance scale."""
    layout: PipelineLayout
    """The pixel and latent layout, with the image sizes that the class's releases support.

    The parts of a folder define the rest of the layout.
    """
    steps: int
    """The default number of denoising steps."""
    guidance: float | None
    """The default guidance scale; None if the denoiser uses no guidance."""
    timesteps: TimestepCall
    """The arguments with which the pipeline requests timesteps from its scheduler."""
    frames: int = 1
    """The default number of frames of a video; 1 for images."""
    layout_of: Callable[[Denoiser], PipelineLayout] | None = None
    """The function from a denoiser to its layout, if releases of the class support different sizes."""
    settled: "Callable[[PipelineClass, ModelSource], PipelineClass] | None" = None
    """The function that adapts the pipeline class to one folder, if its releases work in several ways."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that a pipeline's folder must have: those of the text encoder, then denoiser, VAE and scheduler.

        A model with two experts also needs `transformer_2`.
        """
        return (*self.text_parts, "transformer", "vae", "scheduler")


def _klein(found: PipelineClass, source: ModelSource) -> PipelineClass:
    """Return the pipeline class of a FLUX.2-klein folder, distilled or not.

    If model_index.json states that it is distilled, it uses no guidance and four steps.
    """
    assert source.folder is not None
    if not Fields.read(source.folder / "model_index.json").flag("is_distilled", False):
        return found
    return replace(found, convention=Convention.NONE, guidance=None, steps=4)


def _flux(found: PipelineClass, source: ModelSource) -> PipelineClass:
    """Return the pipeline class of a FLUX.1 folder: that of dev, or of schnell.

    schnell, whose denoiser has no guidance input, reads half as many text tokens and takes four steps.
    """
    part = source.components.get("transformer")
    config = None if part is None else part.config
    if config is None or config.flag("guidance_embeds", False):
        return found
    load = partial(load_flux_encoder, most_tokens=256)
    return replace(found, load_encoder=load, convention=Convention.NONE, guidance=None, steps=4)


def _pixart(name: str, most_tokens: int) -> PipelineClass:
    """Return the class of a PixArt pipeline whose texts have at most `most_tokens` tokens."""
    return PipelineClass(
        ("text_encoder", "tokenizer"),
        partial(load_t5_encoder, clean=lowered, most_tokens=most_tokens),
        Convention.TEXTBOOK,
        LAYOUTS["pixart-1024"],
        steps=20,
        guidance=4.5,
        timesteps=TimestepCall(name),
    )


def _wan_layout(denoiser: Denoiser) -> PipelineLayout:
    """Return the layout of a Wan release, by its denoiser: 2.2's 5B, the 14B models, or the small model."""
    if denoiser.channels == LAYOUTS["wan2.2-5b"].channels:
        return LAYOUTS["wan2.2-5b"]
    assert isinstance(denoiser, CrossDenoiser)
    return LAYOUTS["wan-720p" if denoiser.patch_embedding.matrix.outputs >= _WAN_14B else "wan-480p"]


PIPELINES: Mapping[str, PipelineClass] = {
    "ZImagePipeline": PipelineClass(
        ("text_encoder", "tokenizer"),
        partial(load_chat_encoder, layers=(-1,), thinking=True),
        Convention.ADDED,
        LAYOUTS["z-image"],
        steps=50,
        guidance=5.0,
        timesteps=TimestepCall("ZImagePipeline", z_image_sigmas, mu=token_mu),
    ),
    "Flux2KleinPipeline": PipelineClass(
        ("text_encoder", "tokenizer"),
        partial(load_chat_encoder, layers=(9, 18, 27), thinking=False, padded=True),
        Convention.TEXTBOOK,
        LAYOUTS["flux.2"],
        steps=50,
        guidance=4.0,
        timesteps=TimestepCall("Flux2KleinPipeline", flux_sigmas, except_flow=True, mu=lambda _: flux2_mu),
        settled=_klein,
    ),
    "FluxPipeline": PipelineClass(
        ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"),
        partial(load_flux_encoder, most_tokens=512),
        Convention.EMBEDDED,
        LAYOUTS["flux.1"],
        steps=28,
        guidance=3.5,
        timesteps=TimestepCall("FluxPipeline", flux_sigmas, except_flow=True, mu=token_mu),
        settled=_flux,
    ),
    "WanPipeline": PipelineClass(
        ("text_encoder", "tokenizer"),
        partial(load_t5_encoder, clean=unescaped, most_tokens=512),
        Convention.TEXTBOOK,
        LAYOUTS["wan-480p"],
        steps=50,
        guidance=5.0,
        timesteps=TimestepCall("WanPipeline"),
        frames=81,
        layout_of=_wan_layout,
    ),
    "PixArtSigmaPipeline": _pixart("PixArtSigmaPipeline", most_tokens=300),
    "PixArtAlphaPipeline": _pixart("PixArtAlphaPipeline", most_tokens=120),
}
"""The supported pipeline classes, by the `_class_name` of model_index.json."""


def pipeline_class_of(source: ModelSource) -> PipelineClass:
    """Return the class of a pipeline's folder, even if parts of the folder are missing.

    Raises:
        ModelRefused: If the source is not the folder of a pipeline, or its class is not supported.
    """
    if not source.pipeline:
        kind = source.model.kind or "a model whose config states no architecture"
        raise ModelRefused(
            f"{source.name} is {kind}, which makes no images: give the folder of a diffusion pipeline, with a "
            "model_index.json"
        )
    if source.folder is None:
        raise ModelRefused(
            f"{source.name} is a built-in config without weights: give the folder of a diffusion pipeline"
        )
    found = PIPELINES.get(source.pipeline)
    if found is None:
        raise ModelRefused(
            f"{source.folder} is a {source.pipeline}, which is not supported; supported are {', '.join(PIPELINES)}"
        )
    return found if found.settled is None else found.settled(found, source)


def check_parts(source: ModelSource, parts: Iterable[str]) -> None:
    """Raise ModelRefused if the index of a pipeline does not list one of the given parts, or its folder is missing."""
    for part in parts:
        component = _listed(source, part)
        if not component.folder.is_dir():
            raise ModelRefused(f"{source.folder} lacks the folder {part} ({component.kind}); fetch the pipeline again")


def check_configs(source: ModelSource, parts: Iterable[str]) -> None:
    """Raise ModelRefused if the index of a pipeline lacks one of the given parts, or a part has no config.json.

    A plan reads nothing but the configs of these parts.
    """
    for part in parts:
        component = _listed(source, part)
        if component.config is None:
            raise ModelRefused(f"{component.folder} has no config.json ({component.kind}); fetch the pipeline again")


def _listed(source: ModelSource, part: str) -> Component:
    """Return the entry of a part in the pipeline's index, model_index.json.

    Raises:
        ModelRefused: If the index does not list the part.
    """
    component = source.components.get(part)
    if component is None:
        raise ModelRefused(
            f"{source.folder}/model_index.json does not list {part}, which a {source.pipeline} needs: fetch the "
            "pipeline again"
        )
    return component
