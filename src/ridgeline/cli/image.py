"""`ridgeline image`: a prompt becomes a picture, or several."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ridgeline.checkpoint import open_source
from ridgeline.cli import options
from ridgeline.cli.image_drawing import Asked, decode_saved, draw
from ridgeline.cli.image_files import check_files, numbered
from ridgeline.cli.request import read_prompt
from ridgeline.cli.terminal import loading_bar, silence
from ridgeline.diffusion.geometry import Size
from ridgeline.diffusion.loading import load_pipeline
from ridgeline.diffusion.noise import check_draws
from ridgeline.diffusion.pipeline_class import pipeline_class_of
from ridgeline.diffusion.request import Request
from ridgeline.models import ModelRefused

_MODEL = "The folder of a pipeline, with a model_index.json, or its id in the Hugging Face cache."
_PROMPT = "What is to be seen; - reads standard input."
_NEGATIVE = "What is not to be seen; it acts where guidance does."
_SIZE = "WIDTHxHEIGHT in pixels, one of the model's; by default its usual one."
_STEPS = "Steps from noise to picture; by default as the model's folder or its pipeline says."
_GUIDANCE = "How strongly the prompt is followed, as the model's pipeline states it; guided steps are two passes."
_SEED = "Of the first picture: picture i has seed + i; by default any, which is said."
_OUTPUT = "The file: png, webp (lossless) or jpg; several pictures are numbered. By default MODEL-SEED.png, here."
_TILE = "Latents on a side of the tiles that are decoded one by one; auto: none where memory suffices; off: none."
_PREVIEW = "Every so many steps write what the picture would become, at 64 latents a side at most, to its file."
_KEEP = "Keep the latents, which are saved before they are decoded, beside the picture; else they go once it is there."
_LATENTS = "Decode latents that were saved, and draw nothing; several, or repeated. Loads the VAE alone."
_DTYPE = "fp32 or bf16: what the denoiser runs in, by default what it is stored in."
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_REQUEST = "Request"


def _request(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_REQUEST, **more)


def image(
    model: Annotated[str, typer.Argument(help=_MODEL, callback=options.say_which)],
    prompt: Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)] = None,
    *,
    negative: Annotated[str | None, _request(_NEGATIVE, metavar="TEXT")] = None,
    size: Annotated[str | None, _request(_SIZE, metavar="WxH")] = None,
    steps: Annotated[int | None, _request(_STEPS)] = None,
    guidance: Annotated[float | None, _request(_GUIDANCE)] = None,
    seed: Annotated[int | None, _request(_SEED)] = None,
    n: Annotated[int, _request("How many pictures.", "-n", "--n")] = 1,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=_OUTPUT, metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    tile: Annotated[str, typer.Option(help=_TILE, metavar="auto|off|N")] = "auto",
    every: Annotated[int, typer.Option("--preview", help=_PREVIEW, metavar="K")] = 0,
    keep_latents: Annotated[bool, typer.Option("--keep-latents", help=_KEEP)] = False,
    latents: Annotated[list[Path] | None, typer.Option("--latents", help=_LATENTS, metavar="FILE")] = None,
    dtype: Annotated[str | None, typer.Option(help=_DTYPE, metavar="NAME")] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but what goes wrong.")] = False,
) -> None:
    """Draw pictures of a prompt: says what they will take, shows each step, and writes a file for each.

    What a picture was drawn from is kept in its file. Latents are on the disk before they are decoded. Ctrl-C stops
    between two steps and says what there is; twice, it stops at once.
    """
    asked = Asked(output, force, tile, keep_latents, every, as_json=as_json)
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"--dtype is {dtype!r}; give {' or '.join(_DTYPES)}")
    with silence(quiet):
        if latents:
            drawn: dict[str, object] = {
                "a prompt": prompt,
                "--negative": negative,
                "--size": size,
                "--steps": steps,
                "--seed": seed,
            }
            drawn |= {"--guidance": guidance, "--dtype": dtype, "--n": n if n != 1 else None}
            drawn |= {"--preview": every or None, "--keep-latents": keep_latents or None}
            if given := [name for name, value in drawn.items() if value is not None]:
                raise ValueError(f"{given[0]} is for what is drawn; with --latents nothing is: leave it out")
            decode_saved(model, latents, asked, threads)
            return
        if prompt is None:
            raise ValueError("give a prompt (- reads standard input), or --latents with a file of saved latents")
        check_draws(seed or 0, n)
        wanted = None if size is None else Size.parse(size)
        request = Request(read_prompt(prompt), negative, wanted, steps, guidance, seed, n)
        if output is not None:
            check_files(numbered(output, n), force=force)
        source = open_source(model)
        if pipeline_class_of(source).frames > 1:
            raise ModelRefused(f"{model} is a {source.pipeline}, which makes clips; give a pipeline of pictures")
        with loading_bar(model) as progress:
            pipeline = load_pipeline(source, _DTYPES.get(dtype or ""), threads=threads, progress=progress)
        draw(pipeline, model, request, asked)
