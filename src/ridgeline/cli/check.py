"""`ridgeline check` verifies that a model's folder or GGUF file is sound."""

import dataclasses
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, one_line, print_json, say
from ridgeline.cli.process_setup import FAILED
from ridgeline.insight.check import CheckReport, check_model

_MODEL = "A checkpoint folder, a GGUF file, a built-in model, or an id in the Hugging Face cache."


def check(
    model: Annotated[str, typer.Argument(help=_MODEL, callback=options.report_model_choice)],
    as_json: options.Json = False,
) -> int:
    """Check whether a model folder or GGUF file is sound: one line per problem, with its fix.

    It checks the files (shards against their index, headers, sizes), the tensors (those that config.json needs, with
    their shapes and dtypes), every number in them (NaN, infinity, all-zero matrices; read piece by piece, so memory is
    not a limit), the tokenizer (texts survive a round trip, ids are the model's), special ids (inside the vocabulary,
    the same in config.json, generation_config.json and tokenizer), generation_config.json, the chat template (a system,
    a user and an assistant message), and if all of that is sound, eight tokens from the engine. Remarks that are no
    problems go to stderr. Exit codes: 0 sound, 1 there are problems, 3 there is no such model.
    """
    with loading_bar(model) as progress:
        report = check_model(model, progress)
    if as_json:
        print_json({"sound": report.sound, **dataclasses.asdict(report)})
    else:
        _print(report)
    return 0 if report.sound else FAILED


def _print(report: CheckReport) -> None:
    for note in report.notes:
        say(f"{note.part}: {note.problem}", style="dim")
    if report.sound:
        print(one_line(f"{report.name} is sound"))
        for part, fact in report.facts.items():
            print(f"  {part:18}{one_line(fact)}")
        return
    for finding in report.findings:
        print(one_line(f"{finding.part}: {finding.problem}"))
