"""`ridgeline quantize`: a plain checkpoint written anew with quantised weights."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, one_line, say, say_warnings
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.models.common.recipes import costly_format
from ridgeline.util.document.humanize import gb, say_gb

_MODEL = "A checkpoint folder, a built-in model, or an id in the Hugging Face cache."
_OUT = "The folder to write, which is not there yet."
_WEIGHTS = (
    "int8 (a scale a row), int4, int4-g64 or int4-g32 (groups of 128, 64, 32 with a zero), fp8, or w8a8 (int8, and "
    "rows of activations too)."
)
_FORCE = "Replace a model's folder that is there."


def quantize(
    model: Annotated[str, typer.Argument(help=_MODEL, callback=options.report_model_choice)],
    out: Annotated[Path, typer.Argument(help=_OUT, metavar="OUT")],
    weights: Annotated[str, typer.Option(help=_WEIGHTS, metavar="FORMAT")],
    force: Annotated[bool, typer.Option("--force", help=_FORCE)] = False,
) -> None:
    """Write a checkpoint anew with its matrices in a narrower format, in the layout of compressed-tensors, which other
    engines read.

    Numbers are those that --weights of the other commands makes while it loads: rounded to the nearest, without data.
    Embedding, head, norms and routers stay as they are; so does a matrix whose rows are no whole number of groups.
    Tokenizer, templates and licences are copied. The folder is there when all of it is written.
    """
    with loading_bar(model) as progress:
        done = quantise_folder(open_source(model), out, weights.lower(), force=force, progress=progress)
    print(
        one_line(
            f"{done.folder}: {done.matrices} matrices in {weights.lower()}, {say_gb(gb(done.before))} became "
            f"{say_gb(gb(done.after))}"
        )
    )
    say(f"left as they are: {', '.join(done.kept)}", style="dim")
    if said := costly_format(weights.lower()):
        say_warnings([said])
