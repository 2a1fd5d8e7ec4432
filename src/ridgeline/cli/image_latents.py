"""The decoding of saved latents into images or videos, without denoising."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.cli.diffusion_models import check_medium, open_media_source
from ridgeline.cli.diffusion_settings import DiffusionSettings
from ridgeline.cli.image_files import IMAGE_MEDIUM, check_outputs, numbered
from ridgeline.media.diffusion.decoding import decode_parts
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline_loader import load_vae
from ridgeline.media.diffusion.saved_latents import decoded_path, read_latents


def refuse_generation_options(
    given: Mapping[str, object], request: DiffusionRequest, settings: DiffusionSettings
) -> None:
    """Raise ValueError for options that only apply to generation, if latents are only decoded.

    Args:
        given: Further options by name; None for those that were not given.
        request: The request.
        settings: The output settings.
    """
    given_flags = {
        **given,
        "--negative": request.negative,
        "--size": request.size,
        "--frames": request.frames,
        "--steps": request.steps,
        "--guidance": request.guidance,
        "--second-guidance": request.second_guidance,
        "--step-cache": request.step_cache,
        "--seed": request.seed,
        "--n": request.images if request.images != 1 else None,
        "--keep-latents": settings.keep_latents or None,
        "--cfg-parallel": settings.cfg_parallel or None,
        "--compile": settings.compiled or None,
    }
    if stated := [name for name, value in given_flags.items() if value is not None]:
        raise ValueError(f"{stated[0]} is for generation, but --latents only decodes saved latents; leave it out")


def decode_saved(model: str, latents: Sequence[Path], settings: DiffusionSettings, threads: int | None) -> None:
    """Decode files of latents into images or videos; the latents are preserved.

    Raises:
        ValueError: If a file holds no suitable latents. This is checked before anything is decoded.
    """
    given, medium = [read_latents(path) for path in latents], settings.medium
    beside = [decoded_path(path, medium.suffix) for path in latents]
    paths = beside if settings.output is None else numbered(settings.output, len(latents))
    check_outputs(paths, medium, force=settings.force)
    source = open_media_source(model, medium)
    check_medium(source, medium)
    autoencoder = load_vae(source, threads=threads, device=settings.place)
    wanted, dimensions = autoencoder.channels, 3 if medium is IMAGE_MEDIUM else 4
    for path, (each, _) in zip(latents, given, strict=True):
        if each.dim() != dimensions:
            raise ValueError(f"{path} holds latents of {list(each.shape)}; this model's have {dimensions} dimensions")
        if each.shape[0] != wanted:
            raise ValueError(f"{path} holds latents of {each.shape[0]} channels, the model's have {wanted}")
    for path, (each, parameters) in zip(paths, given, strict=True):
        parts = decode_parts(autoencoder, each, settings.tiling(autoencoder, each.shape))
        medium.make(path, parameters).write(parts)
        if not settings.as_json:
            print(path, flush=True)
    if settings.as_json:
        print(json.dumps({"files": [str(path) for path in paths]}))
