"""Options that `ridgeline image` and `ridgeline video` have in common."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli import options

_MODEL = (
    "The folder of a pipeline, with a model_index.json, its id in the Hugging Face cache, or one that is built in: "
    "digits, digits-fast, digits-ar; digits-video makes clips."
)
_PROMPT = "What is to be seen; - reads standard input."
_NEGATIVE = "What is not to be seen; it acts where guidance does."
_SIZE = "WIDTHxHEIGHT in pixels, one of the model's; by default its usual one."
_STEPS = "Steps from noise to what is drawn; by default as the model's folder or its pipeline says."
_GUIDANCE = "How strongly the prompt is followed, as the model's pipeline states it; guided steps are two passes."
SECOND_GUIDANCE = (
    "Guidance of the second of two experts, which is asked when little noise is left; by default as the first's."
)
_STEP_CACHE = (
    "Skip all but the first block of a pass where what that block adds has changed by less than this part since the "
    "last whole pass, as 0.1; changes what is drawn, and is off where it is left out."
)
_SEED = "Of the first picture or clip: number i has seed + i; by default any, which is said."
_COUNT = "How many pictures or clips."
_KEEP = "Keep the latents, which are saved before they are decoded, beside the file; else they go once it is there."
_LATENTS = "Decode latents that were saved, and draw nothing; several, or repeated. Loads the VAE alone."
_DEVICE = "Where it is drawn: cpu, cuda, cuda:N for card N, or auto for a card where there is one."
_DTYPE = "fp32, bf16 or auto: what the denoiser runs in, by default what it is stored in."
_COMPILE = (
    "Have torch compile the denoiser's blocks first: it takes a minute or more, needs a C++ compiler, and changes the "
    "last bits of what is drawn."
)
_CFG_PARALLEL = (
    "Have a second process run one of the two passes of each guided step, each with half of the threads; what is drawn "
    "is the same, and weights are loaded twice."
)
_REQUEST = "Request"


def request_option(text: str, *names: str, **more: Any) -> Any:
    """An option of what is to be drawn."""
    return typer.Option(*names, help=text, rich_help_panel=_REQUEST, **more)


Pipeline = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, callback=options.report_model_choice)]
Prompt = Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)]
Negative = Annotated[str | None, request_option(_NEGATIVE, "--negative", metavar="TEXT")]
PixelSize = Annotated[str | None, request_option(_SIZE, "--size", metavar="WxH")]
Steps = Annotated[int | None, request_option(_STEPS, "--steps")]
Guidance = Annotated[float | None, request_option(_GUIDANCE, "--guidance")]
StepCache = Annotated[float | None, request_option(_STEP_CACHE, "--step-cache", metavar="THRESHOLD")]
SecondGuidance = Annotated[float | None, request_option(SECOND_GUIDANCE, "--second-guidance")]
Seed = Annotated[int | None, request_option(_SEED, "--seed")]
Count = Annotated[int, request_option(_COUNT, "-n", "--n")]
Force = Annotated[bool, typer.Option("--force", help="Write over files that are there.")]
KeepLatents = Annotated[bool, typer.Option("--keep-latents", help=_KEEP)]
Latents = Annotated[list[Path] | None, typer.Option("--latents", help=_LATENTS, metavar="FILE")]
Compile = Annotated[bool, typer.Option("--compile", help=_COMPILE)]
CfgParallel = Annotated[bool, typer.Option("--cfg-parallel", help=_CFG_PARALLEL)]
Device = Annotated[str, typer.Option("--device", help=_DEVICE)]
DType = Annotated[str | None, typer.Option("--dtype", help=_DTYPE, metavar="NAME")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but what goes wrong.")]


def output(text: str) -> Any:
    """Where what is drawn goes."""
    return typer.Option("-o", "--output", help=text, metavar="FILE")
