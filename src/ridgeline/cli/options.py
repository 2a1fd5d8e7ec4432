"""Options that several commands share. Nothing here needs the engine: a plan should not wait for it."""

from typing import Annotated

import typer

from ridgeline.host import check_threads

_MODEL = "A checkpoint folder, a built-in model (tales), or with --dummy-weights any config.json or catalogue name."
_PROMPT = "The text to continue, or the message to answer where the model has a chat template; - reads standard input."
_THREADS = "Threads to compute with; by default all cores, and one for a small model."

Model = Annotated[str, typer.Argument(help=_MODEL)]
Prompt = Annotated[str, typer.Argument(help=_PROMPT)]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="A system message, for models with a chat template.")]
DummyWeights = Annotated[bool, typer.Option("--dummy-weights", help="Random weights: speed, no sense.")]
Threads = Annotated[
    int | None,
    typer.Option(
        help=_THREADS, rich_help_panel="Engine", callback=lambda n: None if n is None else check_threads(n, "--threads")
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
