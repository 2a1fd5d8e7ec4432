"""`ridgeline video` generates videos from a prompt."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import diffusion_options as drawing
from ridgeline.cli import options
from ridgeline.cli.console import silence
from ridgeline.cli.diffusion_run import draw
from ridgeline.cli.diffusion_settings import OFF, DiffusionSettings
from ridgeline.cli.image_files import video_medium
from ridgeline.cli.image_latents import decode_saved, refuse_generation_options
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.video_file import FPS

_FRAMES = "The number of frames; by default the model's usual number. Wan's releases make 4k + 1 frames, 81 by default."
_FPS = (
    "The frames per second of the file; the model does not know them. Wan 2.1 and A14B were trained "
    "on 16, the 5B model on 24."
)
_OUTPUT = (
    "The file: mp4, gif or webp, or a name without a suffix for a folder of png files; several "
    "videos are numbered. By default MODEL-SEED.mp4 in the current folder."
)


def video(
    model: drawing.Pipeline,
    prompt: drawing.Prompt = None,
    *,
    negative: drawing.Negative = None,
    frames: Annotated[int | None, drawing.request_option(_FRAMES, "--frames")] = None,
    size: drawing.PixelSize = None,
    steps: drawing.Steps = None,
    guidance: drawing.Guidance = None,
    second_guidance: drawing.SecondGuidance = None,
    step_cache: drawing.StepCache = None,
    seed: drawing.Seed = None,
    n: drawing.Count = 1,
    fps: Annotated[float, typer.Option("--fps", help=_FPS)] = FPS,
    output: Annotated[Path | None, drawing.output(_OUTPUT)] = None,
    force: drawing.Force = False,
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
    """Generate videos from a prompt: predicts the time, shows each step, and writes one file per video.

    The prompt and settings are stored in the video's file. Latents are saved before they are decoded. Ctrl-C stops
    after the current step and says what is there; a second Ctrl-C stops at once.
    """
    settings = DiffusionSettings(
        output,
        force,
        OFF,
        keep_latents,
        0,
        cfg_parallel,
        compiled,
        as_json=as_json,
        medium=video_medium(fps),
        device=device,
    )
    wanted = None if size is None else Size.parse(size)
    request = DiffusionRequest("", negative, wanted, steps, guidance, seed, n, frames, second_guidance, step_cache)
    with silence(quiet):
        if latents:
            refuse_generation_options({"a prompt": prompt, "--dtype": dtype}, request, settings)
            decode_saved(model, latents, settings, threads)
        else:
            draw(model, prompt, request, settings, dtype, threads)
