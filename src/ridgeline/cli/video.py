"""`ridgeline video`: a prompt becomes a clip, or several."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import diffusion_options as drawing
from ridgeline.cli import options
from ridgeline.cli.console import silence
from ridgeline.cli.diffusion_run import draw
from ridgeline.cli.diffusion_settings import OFF, DiffusionSettings
from ridgeline.cli.image_files import video_medium
from ridgeline.cli.image_latents import decode_saved, refuse_drawn
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.video_file import FPS

_FRAMES = "How many, by default what the model is usually asked for; Wan's releases make 4k + 1 of them, 81."
_FPS = "Frames a second, of the file alone: the model knows none. Wan 2.1 and A14B were trained on 16, the 5B on 24."
_OUTPUT = (
    "The file: mp4, gif or webp, or a name without a suffix, a folder of png; several clips are numbered. By default "
    "MODEL-SEED.mp4, here."
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
    """Draw clips of a prompt: says what they will take, shows each step, and writes a file for each.

    What a clip was drawn from is kept in its file. Latents are on the disk before they are decoded. Ctrl-C stops
    between two steps and says what there is; twice, it stops at once.
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
            refuse_drawn({"a prompt": prompt, "--dtype": dtype}, request, settings)
            decode_saved(model, latents, settings, threads)
        else:
            draw(model, prompt, request, settings, dtype, threads)
