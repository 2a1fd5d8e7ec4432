"""Outlines: the parts of a pipeline on meta, from its configs alone, and what its release is usually asked for."""

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
"""Tokens of a prompt, and of an empty one in its template, where texts are read as long as they are."""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """How one encoder of a pipeline reads texts. part: its component. layers: how many of its layers are run, from the
    end where it is negative; 0 for all. tokens: that it pads every text to, where that is not what the denoiser is
    given; 0 where it is.
    """

    part: str
    layers: int = 0
    tokens: int = 0


ENCODER_SPECS: Mapping[str, tuple[EncoderSpec, ...]] = {
    "ZImagePipeline": (EncoderSpec("text_encoder", layers=-1),),
    "FluxPipeline": (EncoderSpec("text_encoder", tokens=77), EncoderSpec("text_encoder_2")),
    # It takes the states after 9, 18 and 27 of 36 layers.
    "Flux2KleinPipeline": (EncoderSpec("text_encoder", layers=27),),
    "PixArtSigmaPipeline": (EncoderSpec("text_encoder"),),
    "PixArtAlphaPipeline": (EncoderSpec("text_encoder"),),
    "WanPipeline": (EncoderSpec("text_encoder"),),
}
"""By the class of a pipeline."""


@dataclass(frozen=True, slots=True)
class PipelineDefaults:
    """The default request of a pipeline: sizes, steps, guidance and frames.

    layout: the sizes that it takes. guidance: the scale, in the convention of the release. rate: frames a second of a
    clip. tokens: of a text; 0 where texts are read as long as they are. refused: why `load_pipeline`
    refuses the scheduler of the folder; "" if it does not.
    """

    readings: tuple[EncoderSpec, ...]

    layout: PipelineLayout
    size: Size
    steps: int
    convention: Convention
    guidance: float | None
    frames: int = 1
    rate: int = 0
    tokens: int = 0
    refused: str = ""

    @classmethod
    def of(cls, source: ModelSource, parts: PipelineComponents | None = None) -> "PipelineDefaults":
        """Return the outline that the catalogue states, or else the folder and its class. parts: those of the folder.
        Raises ModelRefused for a folder that states what cannot be.
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
        """Tokens of the texts of so many passes of a step: a prompt and, with guidance, an empty one."""
        return ((self.tokens or PROMPT), (self.tokens or NEGATIVE))[:passes]

    def read(self, texts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Tokens of the same texts as each encoder reads them."""
        return tuple(tuple(reading.tokens or tokens for tokens in texts) for reading in self.readings)


def outline(source: ModelSource, dtype: torch.dtype = torch.bfloat16) -> PipelineComponents:
    """Return the models of a pipeline on meta, all in one number format.

    Only the configs of these models are read: a folder needs no weights, tokenizers or scheduler. Raises ModelRefused
    for what is not built, and for a folder that lacks a config.
    """
    if source.pipeline not in ENCODER_SPECS:
        raise ModelRefused(f"{source.name} is a {source.pipeline}, which is not built; {', '.join(ENCODER_SPECS)} are")
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
    """Whether a denoiser has places for a text of so many tokens."""
    try:
        denoiser.work((denoiser.patch,) * 2 if not denoiser.clips else (1, *(denoiser.patch,) * 2), [tokens])
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
        assert isinstance(model, Decoder), "encoders of texts run whole"
        model.stop_after(reading.layers + (config.layers if reading.layers < 0 else 0))
        model.disable_kv_cache()
    return model


def _unread(config: Fields) -> Fields:
    """The config as if nothing of it had been read yet, so that it can be built once more in another number format."""
    return Fields(config.values, config.source)
