"""Pipeline classes: what diffusers' class of a pipeline says that none of its folder's configs do."""

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

_WAN_14B = 5120  # numbers of a token's state in its large models


class LoadEncoder(Protocol):
    """Loads the text encoder of a pipeline's folder. Raises ModelRefused."""

    def __call__(self, pipeline: ModelSource, progress: Progress | None = None) -> TextEncoder: ...


@dataclass(frozen=True, slots=True)
class PipelineClass:
    """How pipelines of a class draw.

    Args:
        text_parts: of the folder, that `load_encoder` reads; a transformer, a vae and a scheduler are beside them.
        load_encoder: how texts are read.
        convention: how the scale of guidance is stated.
        layout: the sizes that its releases take; the rest of it the parts of a folder say.
        layout_of: the same of one whose releases take different sizes, by its denoiser.
        steps, guidance: of a request that states none, as the class has them.
        timesteps: its call of the scheduler for timesteps.
        frames: of a request for a clip that states none; 1 where pictures are drawn.
        settled: the class of one folder, where its releases draw in several ways.
    """

    text_parts: tuple[str, ...]
    load_encoder: LoadEncoder
    convention: Convention
    layout: PipelineLayout
    steps: int
    guidance: float | None
    timesteps: TimestepCall
    frames: int = 1
    layout_of: Callable[[Denoiser], PipelineLayout] | None = None
    settled: "Callable[[PipelineClass, ModelSource], PipelineClass] | None" = None

    @property
    def parts(self) -> tuple[str, ...]:
        """All that a folder is to have, in the order in which they are loaded."""
        return (*self.text_parts, "transformer", "vae", "scheduler")


def _klein(found: PipelineClass, source: ModelSource) -> PipelineClass:
    """FLUX.2-klein: one that was distilled, as model_index.json says, needs no guidance, and four steps."""
    assert source.folder is not None
    if not Fields.read(source.folder / "model_index.json").flag("is_distilled", False):
        return found
    return replace(found, convention=Convention.NONE, guidance=None, steps=4)


def _flux(found: PipelineClass, source: ModelSource) -> PipelineClass:
    """FLUX.1: schnell, whose denoiser has no input for guidance, reads half as many tokens, and takes four steps."""
    part = source.components.get("transformer")
    config = None if part is None else part.config
    if config is None or config.flag("guidance_embeds", False):
        return found
    load = partial(load_flux_encoder, most_tokens=256)
    return replace(found, load_encoder=load, convention=Convention.NONE, guidance=None, steps=4)


def _pixart(name: str, most_tokens: int) -> PipelineClass:
    """PixArt's, of texts of so many tokens."""
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
    """The sizes that Wan's releases take: 2.2's 5B, the 14B models, and the small one."""
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
"""By the `_class_name` of model_index.json."""


def pipeline_class_of(source: ModelSource) -> PipelineClass:
    """Return the class of a pipeline's folder, even if parts of it are missing. Raises ModelRefused for what is no
    pipeline and for a class that is not built.
    """
    if not source.pipeline:
        kind = source.model.kind or "a model of no stated architecture"
        raise ModelRefused(
            f"{source.name} is {kind} and draws no pictures; give the folder of a pipeline, with a model_index.json"
        )
    if source.folder is None:
        raise ModelRefused(
            f"{source.name} is a config of the catalogue, without weights; give the folder of a pipeline"
        )
    found = PIPELINES.get(source.pipeline)
    if found is None:
        raise ModelRefused(f"{source.folder} is a {source.pipeline}, which is not built; {', '.join(PIPELINES)} are")
    return found if found.settled is None else found.settled(found, source)


def check_parts(source: ModelSource, parts: Iterable[str]) -> None:
    """Raise ModelRefused if the folder of a pipeline lacks one of these parts."""
    for part in parts:
        component = _listed(source, part)
        if not component.folder.is_dir():
            raise ModelRefused(f"{source.folder} lacks the folder {part} ({component.kind}); fetch it again")


def check_configs(source: ModelSource, parts: Iterable[str]) -> None:
    """Raise ModelRefused if one of these parts has no config, which is all that a plan reads of it."""
    for part in parts:
        component = _listed(source, part)
        if component.config is None:
            raise ModelRefused(f"{component.folder} has no config.json ({component.kind}); fetch it again")


def _listed(source: ModelSource, part: str) -> Component:
    """Return a part that the pipeline's index lists. Raises ModelRefused."""
    component = source.components.get(part)
    if component is None:
        raise ModelRefused(f"{source.folder}/model_index.json lists no {part}, which a {source.pipeline} has")
    return component
