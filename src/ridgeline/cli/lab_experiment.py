"""`ridgeline lab NAME` of the experiments that say beforehand what they expect."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from ridgeline.cli import options
from ridgeline.document.page import Document
from ridgeline.document.terminal import show
from ridgeline.files import check_writable
from ridgeline.lab.experiment import Experiment

Write = Callable[[Path, Document], None]


def checked(path: Path | None) -> Path | None:
    """Refuse a picture file that could not be written, before the experiment runs."""
    if path is not None:
        check_writable(path)
    return path


Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Write the picture to this file.", callback=checked)
]


def command_of(experiment: Experiment, write: Write) -> Callable[..., None]:
    """The command that runs an experiment; `write` puts the picture of a document into a file."""

    def run(svg: Svg = None, as_json: options.Json = False) -> None:
        if not as_json:
            show(experiment.announcement())
        torch.set_num_threads(1)  # of a small model; and the same digits on every machine
        outcome = experiment.run()
        page = experiment.report(outcome)
        if svg is not None:
            write(svg, page)
        if as_json:
            print(json.dumps(experiment.as_json(outcome)))
        else:
            print()
            show(page)
        if not outcome.as_expected:
            raise typer.Exit(1)

    run.__doc__ = (
        f"{experiment.question}\n\nSays what it expects, then measures; exit code 1 if something did not hold."
    )
    return run
