"""The options that `ridgeline image` and `ridgeline video` have in common."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli import options

_MODEL = (
    "The folder of a pipeline (with model_index.json), its id in the Hugging Face cache, or a "
    "built-in one: digits, digits-fast, digits-ar; digits-video makes videos."
)
_PROMPT = "A description of the image; - reads standard input."
_NEGATIVE = "A description of what to avoid; it works only with guidance."
_SIZE = "WIDTHxHEIGHT in pixels, one of the model's sizes; its default size if left out."
_STEPS = "The number of denoising steps; by default what the model's folder or its pipeline says."
_GUIDANCE = (
    "The guidance scale: how strongly the prompt is followed, on the scale of the model's pipeline. "
    "With guidance each step is two passes."
)
_STEP_CACHE = (
    "Skip all blocks but the first of a pass if the first block's output has changed by less than "
    "this share since the last full pass, like 0.1. Changes the result; off by default."
)
_SEED = (
    "The random seed of the first image or video; number i uses seed + i. By default a random one, which is printed."
)
_COUNT = "The number of images or videos."
_KEEP = "Keep the latents next to the file. They are always saved before decoding, and otherwise deleted afterwards."
_LATENTS = "Decode saved latents instead of generating; give several, or repeat the option. Loads the VAE only."
_DEVICE = "The device to run on: cpu, cuda, cuda:N for GPU number N, or auto for a GPU if there is one."
_DTYPE = "The dtype of the denoiser: fp32, bf16, or auto for the one it is stored in (the default)."
_COMPILE = (
    "Compile the denoiser's blocks with torch.compile first: takes a minute or more, needs a C++ "
    "compiler, and changes the last bits of the result."
)
_CFG_PARALLEL = (
    "Run one of the two passes of each guided step in a second process, with half of the threads "
    "each. The result is the same; the weights are loaded twice."
)
_REQUEST = "Request"


def request_option(text: str, *names: str, **more: Any) -> Any:
    """Return a command-line option listed under the heading of the generation request."""
    return typer.Option(*names, help=text, rich_help_panel=_REQUEST, **more)


Pipeline = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, callback=options.report_model_choice)]
Prompt = Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)]
Negative = Annotated[str | None, request_option(_NEGATIVE, "--negative", metavar="TEXT")]
PixelSize = Annotated[str | None, request_option(_SIZE, "--size", metavar="WxH")]
Steps = Annotated[int | None, request_option(_STEPS, "--steps")]
Guidance = Annotated[float | None, request_option(_GUIDANCE, "--guidance")]
StepCache = Annotated[float | None, request_option(_STEP_CACHE, "--step-cache", metavar="THRESHOLD")]
SecondGuidance = Annotated[float | None, request_option(options.SECOND_GUIDANCE, "--second-guidance")]
Seed = Annotated[int | None, request_option(_SEED, "--seed")]
Count = Annotated[int, request_option(_COUNT, "-n", "--n")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
KeepLatents = Annotated[bool, typer.Option("--keep-latents", help=_KEEP)]
Latents = Annotated[list[Path] | None, typer.Option("--latents", help=_LATENTS, metavar="FILE")]
Compile = Annotated[bool, typer.Option("--compile", help=_COMPILE)]
CfgParallel = Annotated[bool, typer.Option("--cfg-parallel", help=_CFG_PARALLEL)]
Device = Annotated[str, typer.Option("--device", help=_DEVICE)]
DType = Annotated[str | None, typer.Option("--dtype", help=_DTYPE, metavar="NAME")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors on stderr.")]


def output(text: str) -> Any:
    """Return the command-line option for the output file."""
    return typer.Option("-o", "--output", help=text, metavar="FILE")
