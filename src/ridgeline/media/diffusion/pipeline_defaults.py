"""Pipelines for planning: their parts on the meta device, built from configs alone, and their default request."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.building import build, build_denoiser
from ridgeline.core.models.common.decoder import Decoder
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families import autoencoder_kl
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.media.diffusion.geometry import LAYOUTS, PipelineLayout, Size
from ridgeline.media.diffusion.guidance import Convention
from ridgeline.media.diffusion.pipeline_class import check_configs, pipeline_class_of
from ridgeline.media.diffusion.pipeline_loader import requests_of, scheduler_refusal
from ridgeline.media.diffusion.pipeline_price import PipelineComponents
from ridgeline.media.diffusion.video_decode_price import VideoDecodePrice

PROMPT, NEGATIVE = 96, 32
"""The token counts assumed for a prompt and for an empty negative prompt in its template.

They are for pipelines with texts of any length. A folder whose denoiser has too few positions for such a prompt gets
the smaller count for every text.
"""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """The way in which one text encoder of a pipeline reads texts."""

    part: str
    """The name of the encoder's part in the pipeline."""
    layers: int = 0
    """The number of the encoder's layers that run; negative counts from the end, 0 is all."""
    tokens: int = 0
    """The tokens of every text that a plan assumes for the encoder; 0 for as many as the denoiser receives."""


ENCODER_SPECS: Mapping[str, tuple[EncoderSpec, ...]] = {
    "ZImagePipeline": (EncoderSpec("text_encoder", layers=-1),),
    "FluxPipeline": (EncoderSpec("text_encoder", tokens=77), EncoderSpec("text_encoder_2")),
    # The denoiser takes the states after 9, 18 and 27 of 36 layers.
    "Flux2KleinPipeline": (EncoderSpec("text_encoder", layers=27),),
    "PixArtSigmaPipeline": (EncoderSpec("text_encoder"),),
    "PixArtAlphaPipeline": (EncoderSpec("text_encoder"),),
    "WanPipeline": (EncoderSpec("text_encoder"),),
}
"""The text encoders of each supported pipeline class."""


@dataclass(frozen=True, slots=True)
class PipelineDefaults:
    """The default request of a pipeline: sizes, steps, guidance and frames."""

    encoder_specs: tuple[EncoderSpec, ...]
    """The pipeline's text encoders, each with the way in which it reads texts."""

    layout: PipelineLayout
    """The pixel and latent layout, with the sizes that a request may have."""
    size: Size
    """The default image size."""
    steps: int
    """The default number of denoising steps."""
    convention: Convention
    """The convention of the pipeline's guidance scale."""
    guidance: float | None
    """The default guidance scale, in the convention of the release."""
    frames: int = 1
    """The default number of frames; 1 for images."""
    rate: int = 0
    """The frames per second of a video; 0 if the catalogue states none."""
    tokens: int = 0
    """The token count of every text if it is fixed; 0 if texts keep their own length."""
    refused: str = ""
    """The reason why `load_pipeline` refuses the scheduler of the folder; "" if it does not."""

    @classmethod
    def of(cls, source: ModelSource, parts: PipelineComponents | None = None) -> "PipelineDefaults":
        """Return the default request of a pipeline: from the catalogue, or else from the folder and its class.

        Args:
            source: Catalogue entry or folder of a pipeline.
            parts: Models of the folder; only needed for a folder.

        Raises:
            ModelRefused: If the folder states invalid values.
        """
        readings, stated = ENCODER_SPECS[source.pipeline], source.generation
        if source.folder is None:
            size, convention = Size.parse(stated["size"]), Convention[stated["convention"]]
            return cls(
                readings, LAYOUTS[stated["layout"]], size, stated["steps"], convention, stated["guidance"],
                stated.get("frames", 1), stated.get("rate", 0), stated.get("tokens", 0),
            )  # fmt: skip
        assert parts is not None
        denoiser = parts.denoisers[0]
        found = pipeline_class_of(source)
        kind, layout = requests_of(source, found, denoiser, parts.autoencoder)
        return cls(
            readings, layout, layout.sizes[0], kind.steps, kind.convention, kind.guidance, kind.frames,
            tokens=0 if _reads(denoiser, PROMPT) else NEGATIVE, refused=scheduler_refusal(source, found, denoiser),
        )  # fmt: skip

    def texts(self, passes: int) -> tuple[int, ...]:
        """Return the token counts of a step's texts with `passes` passes: a prompt and, with guidance, an empty one."""
        return ((self.tokens or PROMPT), (self.tokens or NEGATIVE))[:passes]

    def read(self, texts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the token counts of some texts as a plan assumes them for each text encoder of the pipeline."""
        return tuple(tuple(reading.tokens or tokens for tokens in texts) for reading in self.encoder_specs)


def build_on_meta(source: ModelSource, dtype: torch.dtype = torch.bfloat16) -> PipelineComponents:
    """Return the models of a pipeline on the meta device, all in one dtype.

    It reads only the configs of these models: a folder needs no weights, tokenizers or scheduler.

    Raises:
        ModelRefused: If the pipeline is not supported or the folder lacks a config.
    """
    if source.pipeline not in ENCODER_SPECS:
        raise ModelRefused(
            f"{source.name} is a {source.pipeline}, which is not supported; supported are {', '.join(ENCODER_SPECS)}"
        )
    if source.folder is not None:
        pipeline_class_of(source)
        second = ["transformer_2"] if "transformer_2" in source.components else []
        encoders_there = [reading.part for reading in ENCODER_SPECS[source.pipeline]]
        check_configs(source, [*encoders_there, "transformer", *second, "vae"])
    configs = {name: component.config for name, component in source.components.items() if component.config is not None}
    encoders = tuple(_encoder(configs, reading, dtype) for reading in ENCODER_SPECS[source.pipeline])
    names = [name for name in ("transformer", "transformer_2") if name in configs]
    denoisers = tuple(build_denoiser(_unread(configs[name]), dtype) for name in names)
    return PipelineComponents(encoders, denoisers, _autoencoder(_unread(configs["vae"]), dtype))


def _reads(denoiser: Denoiser, tokens: int) -> bool:
    """Return whether a denoiser has positions for a text of `tokens` tokens."""
    try:
        denoiser.work((denoiser.patch,) * 2 if not denoiser.generates_video else (1, *(denoiser.patch,) * 2), [tokens])
    except ValueError:
        return False
    return True


def _autoencoder(config: Fields, dtype: torch.dtype) -> AutoencoderKL | VideoDecodePrice:
    if config.architecture == "AutoencoderKLWan":
        return VideoDecodePrice(config, dtype)
    return autoencoder_kl.build(config, StorageConfig(dtype))


def _encoder(configs: Mapping[str, Fields], reading: EncoderSpec, dtype: torch.dtype) -> Model:
    config = configs[reading.part]
    model = build(config, dtype)
    if reading.layers:
        assert isinstance(model, Decoder), "text encoders are not divided"
        model.stop_after(reading.layers + (config.layers if reading.layers < 0 else 0))
        model.disable_kv_cache()
    return model


def _unread(config: Fields) -> Fields:
    """Return a copy of the config with no field marked as read, so that it can be used for another build."""
    return Fields(config.values, config.source)
