"""`ridgeline quantize` writes a plain checkpoint again with quantised weights."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, one_line, say, say_warnings
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.models.common.recipes import quality_warning
from ridgeline.util.document.humanize import gb, say_gb

_MODEL = "A checkpoint folder, a built-in model, or an id in the Hugging Face cache."
_OUT = "The folder to write; it must not exist yet."
_WEIGHTS = (
    "int8 (one scale per row), int4, int4-g64 or int4-g32 (groups of 128, 64 or 32 with a zero "
    "point), fp8, or w8a8 (int8 weights and activations)."
)
_FORCE = "Replace an existing model folder."


def quantize(
    model: Annotated[str, typer.Argument(help=_MODEL, callback=options.report_model_choice)],
    out: Annotated[Path, typer.Argument(help=_OUT, metavar="OUT")],
    weights: Annotated[str, typer.Option(help=_WEIGHTS, metavar="FORMAT")],
    force: Annotated[bool, typer.Option("--force", help=_FORCE)] = False,
) -> None:
    """Write a quantized copy of a checkpoint in the compressed-tensors format, which other engines read.

    The weights are the same as with --weights of the other commands: rounded to nearest, without calibration data.
    Embedding, LM head, norms and routers are not quantized, and neither is a matrix whose rows are not a whole number
    of groups. Tokenizer, templates and licences are copied. The folder appears only when it is complete.
    """
    with loading_bar(model) as progress:
        done = quantise_folder(open_source(model), out, weights.lower(), force=force, progress=progress)
    print(
        one_line(
            f"{done.folder}: {done.matrices} matrices quantized to {weights.lower()}, from "
            f"{say_gb(gb(done.before))} to "
            f"{say_gb(gb(done.after))}"
        )
    )
    say(f"not quantized: {', '.join(done.kept)}", style="dim")
    if warning := quality_warning(weights.lower()):
        say_warnings([warning])
