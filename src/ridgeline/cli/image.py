"""`ridgeline image` and `ridgeline video`, which generate images and videos from a prompt."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import print_json, silence
from ridgeline.cli.diffusion_models import check_medium, open_media_source
from ridgeline.cli.diffusion_run import draw
from ridgeline.cli.flags import build_from, given_flags, with_flags
from ridgeline.cli.image_files import IMAGE_MEDIUM, Medium, check_media_outputs, numbered, video_medium
from ridgeline.cli.image_tokens import draw_tokens
from ridgeline.cli.media_flags import MediaRequestFlags, MediaRunFlags
from ridgeline.cli.text_request import read_prompt
from ridgeline.core.checkpoint import ModelSource
from ridgeline.media.diffusion.decoding import decode_parts
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.noise import check_draws
from ridgeline.media.diffusion.pipeline_loader import load_vae
from ridgeline.media.diffusion.saved_latents import decoded_path, read_latents
from ridgeline.media.images.image_generator import generates_image_tokens

_MODEL = (
    "The folder of a pipeline (with model_index.json), its id in the Hugging Face cache, or a built-in one: digits, "
    "digits-fast, digits-ar; digits-video makes videos."
)
_PROMPT = "A description of the image; - reads standard input."

# The options that have an effect without a diffusion pipeline, and without denoising.
_OF_TOKENS = ("images", "seed", "output", "force", "device", "threads", "as_json", "quiet")
_OF_DECODING = ("fps", "output", "force", "tile", "latents", "device", "threads", "as_json", "quiet")

_Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, callback=options.report_model_choice)]
_Prompt = Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)]


@with_flags
def image(model: _Model, prompt: _Prompt = None, *, request: MediaRequestFlags, run: MediaRunFlags) -> None:
    """Generate images from a prompt: predicts the time, shows each step, and writes one file per image.

    MODEL is a diffusion pipeline, or a model that generates an image as tokens (Janus). The prompt and settings are
    stored in the image's file. Latents are saved before they are decoded. Ctrl-C stops after the current step and says
    what is there; a second Ctrl-C stops at once.
    """
    _generate(IMAGE_MEDIUM, model, prompt, request, run)


@with_flags
def video(model: _Model, prompt: _Prompt = None, *, request: MediaRequestFlags, run: MediaRunFlags) -> None:
    """Generate videos from a prompt: predicts the time, shows each step, and writes one file per video.

    The prompt and settings are stored in the video's file. Latents are saved before they are decoded. Ctrl-C stops
    after the current step and says what is there; a second Ctrl-C stops at once.
    """
    _generate(video_medium(run.fps), model, prompt, request, run)


def _generate(medium: Medium, model: str, prompt: str | None, flags: MediaRequestFlags, run: MediaRunFlags) -> None:
    """Generate the images or videos of a prompt, or decode saved latents.

    Raises:
        ValueError: If an option is invalid or has no effect, or a file cannot be read or written.
    """
    size = None if flags.size is None else Size.parse(flags.size)
    with silence(run.quiet):
        source = open_media_source(model, medium, has_prompt=prompt is not None or bool(run.latents))
        check_medium(source, medium)
        as_tokens = generates_image_tokens(source)
        if as_tokens:
            how = f"{source.name} generates the tokens of an image one after the other"
            given = given_flags(flags, *_OF_TOKENS) + given_flags(run, *_OF_TOKENS)
            _refuse(given, f"diffusion pipelines, but {how}")
        elif run.latents:
            given = ["a prompt"] * (prompt is not None) + given_flags(flags) + given_flags(run, *_OF_DECODING)
            _refuse(given, "generation, but --latents only decodes saved latents")
            _decode_saved(source, medium, run)
            return
        if prompt is None:
            otherwise = "" if as_tokens else ", or --latents with a file of saved latents"
            raise ValueError(f"give a prompt (- reads standard input){otherwise}")
        check_draws(flags.seed or 0, flags.images)
        request = build_from(flags, DiffusionRequest, prompt=read_prompt(prompt), size=size)
        (draw_tokens if as_tokens else draw)(source, medium, request, run)


def _refuse(given: Sequence[str], purpose: str) -> None:
    """Raise ValueError for the first of the given options, which have no effect."""
    if given:
        raise ValueError(f"{given[0]} is for {purpose}; leave it out")


def _decode_saved(source: ModelSource, medium: Medium, run: MediaRunFlags) -> None:
    """Decode the files of --latents into images or videos; the latents are preserved.

    Raises:
        ValueError: If a file holds no suitable latents. This is checked before anything is decoded.
    """
    files = run.latents or []
    given = [read_latents(path) for path in files]
    beside = [decoded_path(path, medium.suffix) for path in files]
    paths = beside if run.output is None else numbered(run.output, len(files))
    check_media_outputs(paths, medium, force=run.force)
    autoencoder = load_vae(source, threads=run.threads, device=run.place)
    wanted, dimensions = autoencoder.channels, 3 if medium is IMAGE_MEDIUM else 4
    for path, (each, _) in zip(files, given, strict=True):
        if each.dim() != dimensions:
            raise ValueError(f"{path} holds latents of {list(each.shape)}; this model's have {dimensions} dimensions")
        if each.shape[0] != wanted:
            raise ValueError(f"{path} holds latents of {each.shape[0]} channels, the model's have {wanted}")
    for path, (each, parameters) in zip(paths, given, strict=True):
        medium.make(path, parameters).write(decode_parts(autoencoder, each, run.tiling(autoencoder, each.shape)))
        if not run.as_json:
            print(path, flush=True)
    if run.as_json:
        print_json({"files": [str(path) for path in paths]})
