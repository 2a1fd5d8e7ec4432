"""`ridgeline image` generates images from a prompt."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import diffusion_options as drawing
from ridgeline.cli import options
from ridgeline.cli.console import silence
from ridgeline.cli.diffusion_models import open_media_source
from ridgeline.cli.diffusion_run import draw
from ridgeline.cli.diffusion_settings import AUTO, DiffusionSettings
from ridgeline.cli.image_files import IMAGE_MEDIUM
from ridgeline.cli.image_latents import decode_saved, refuse_generation_options
from ridgeline.cli.image_tokens import draw_tokens, refuse
from ridgeline.cli.text_request import read_prompt
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.noise import check_draws
from ridgeline.media.images.image_generator import generates_image_tokens

_OUTPUT = (
    "The file: png, webp (lossless) or jpg; several images are numbered. By default MODEL-SEED.png "
    "in the current folder."
)
_TILE = "Decode in tiles of this many latents per side. auto: only if memory is too small; off: never."
_PREVIEW = "Every N steps, write a preview (at most 64 latents per side) to the image's file."


def image(
    model: drawing.Pipeline,
    prompt: drawing.Prompt = None,
    *,
    negative: drawing.Negative = None,
    size: drawing.PixelSize = None,
    steps: drawing.Steps = None,
    guidance: drawing.Guidance = None,
    step_cache: drawing.StepCache = None,
    seed: drawing.Seed = None,
    n: drawing.Count = 1,
    output: Annotated[Path | None, drawing.output(_OUTPUT)] = None,
    force: drawing.Force = False,
    tile: Annotated[str, typer.Option(help=_TILE, metavar="auto|off|N")] = "auto",
    every: Annotated[int, typer.Option("--preview", help=_PREVIEW, metavar="K")] = 0,
    keep_latents: drawing.KeepLatents = False,
    latents: drawing.Latents = None,
    cfg_parallel: drawing.CfgParallel = False,
    compiled: drawing.Compile = False,
    dtype: drawing.DType = None,
    device: drawing.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: drawing.Quiet = False,
) -> None:
    """Generate images from a prompt: predicts the time, shows each step, and writes one file per image.

    MODEL is a diffusion pipeline, or a model that generates an image as tokens (Janus). The prompt and settings are
    stored in the image's file. Latents are saved before they are decoded. Ctrl-C stops after the current step and says
    what is there; a second Ctrl-C stops at once.
    """
    settings = DiffusionSettings(
        output, force, tile, keep_latents, every, cfg_parallel, compiled, as_json=as_json, device=device
    )
    wanted = None if size is None else Size.parse(size)
    request = DiffusionRequest("", negative, wanted, steps, guidance, seed, n, step_cache=step_cache)
    with silence(quiet):
        source = open_media_source(model, IMAGE_MEDIUM)
        if generates_image_tokens(source):
            denoising = {"--negative": negative, "--size": size, "--steps": steps, "--guidance": guidance}
            denoising |= {"--step-cache": step_cache, "--cfg-parallel": cfg_parallel, "--compile": compiled}
            shown = {"--latents": latents or None, "--keep-latents": keep_latents, "--preview": every or None}
            refuse(source, {**denoising, **shown, "--dtype": dtype, "--tile": None if tile == AUTO else tile})
            if prompt is None:
                raise ValueError("give a prompt (- reads standard input)")
            check_draws(seed or 0, n)
            text = read_prompt(prompt)
            draw_tokens(source, text, n, seed, settings, threads)
            return
        if latents:
            refuse_generation_options(
                {"a prompt": prompt, "--dtype": dtype, "--preview": every or None}, request, settings
            )
            decode_saved(model, latents, settings, threads)
        else:
            draw(model, prompt, request, settings, dtype, threads)
