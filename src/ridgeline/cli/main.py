"""The `ridgeline` command: its subcommands, and the conversion of exceptions into exit codes."""

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from importlib import import_module
from typing import Annotated, NoReturn, cast

import typer

from ridgeline.cli.examples import TAGLINE, first_lines
from ridgeline.cli.help import WIDEST, PlainCommand, PlainGroup
from ridgeline.cli.process_setup import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    USAGE,
    abandon_output,
    finish_imports,
    signal_interrupts,
)
from ridgeline.util.version import __version__

# Each command is the function (or, for a group, the app) of its name in the module of its name, next to the first
# sentence of its help. Only the module of the requested command is imported: `plan` does not wait for the modules of
# `trace`, and the list of commands does not wait for torch.
COMMANDS = {
    "run": "Generate text: writes it to stdout, and the time of prefill and decode to stderr.",
    "chat": "Chat with a model in the terminal; each response is followed by its speed.",
    "translate": "Translate texts with an encoder-decoder model, one line on stdout for each.",
    "embed": "Compute embeddings of texts, or rank texts with a reranker.",
    "serve": "Serve models over HTTP with OpenAI's API: text, embeddings, speech, images and videos.",
    "image": "Generate images from a prompt: predicts the time, shows each step, and writes one file per image.",
    "video": "Generate videos from a prompt: predicts the time, shows each step, and writes one file per video.",
    "transcribe": "Transcribe or translate speech from audio files; several files run in one batch.",
    "plan": "Predict memory, latency, users and cost of a model on a device, without running it.",
    "simulate": "Simulate traffic to a model on any device: latency, limits and cost under load.",
    "trace": "Trace one request through the model, op by op, with predicted and measured times.",
    "calibrate": "Measure this machine in three minutes, so that predictions for it are accurate.",
    "show": "Show a model's architecture, sizes and parameter counts from its config.json, without its weights.",
    "check": "Check whether a model folder or GGUF file is sound: one line per problem, with its fix.",
    "quantize": "Write a quantized copy of a checkpoint in the compressed-tensors format, which other engines read.",
    "tokenize": "Show the tokens of a text: id, piece, bytes, and the mean number of characters per token.",
    "env": "Show this machine and the installed versions, as a bug report needs them.",
    "completion": "Print the shell script that completes commands and options.",
    "quiz": "Quiz yourself on a chapter of the guide; each answer is checked and explained.",
    "guide": "Open the guide in a browser, or say how to build it.",
    "lab": "Run experiments of under a minute each and read their code, or write exercises yourself.",
    "page": "Export the web page as one file, or print the tables that it computes with.",
    "bench": "Measure a server under load, or the engine compared with this machine's limits.",
}
MODULES = {"video": "image"}
"""The modules of the commands that are not in the module of their name."""

# The library's own base of "missing argument" and its kin; which package holds it has changed between its versions.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

_TRACEBACK = "--traceback"


def _top(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[
        bool, typer.Option(_TRACEBACK, help="Must come first: show the place in the code where an error comes from.")
    ] = False,  # main has to know before there is a command line
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(first_lines())


def build_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the `ridgeline` command line with the given subcommands."""
    from ridgeline.cli.command import Command, configurable  # no list of commands waits for what reads one

    app = _empty_app()
    for name in names:
        command = getattr(import_module(f"ridgeline.cli.{MODULES.get(name, name)}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(_configurable_group(command), name=name, cls=PlainGroup)
        else:
            app.command(name, cls=Command)(configurable(command))
    return app


def build_list() -> typer.Typer:
    """Return a command line that only knows the name and summary of each command, for use without a subcommand."""
    app = _empty_app()
    for name, summary in COMMANDS.items():
        app.command(name, cls=PlainCommand, help=summary)(_nothing)
    return app


def _empty_app() -> typer.Typer:
    app = typer.Typer(
        cls=PlainGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": WIDEST,
            "obj": tuple(COMMANDS),
        },
    )
    app.callback(invoke_without_command=True, help=f"{TAGLINE} Results go to stdout, everything else to stderr.")(_top)
    return app


def _nothing() -> None:
    raise AssertionError("Click gives the group the command that it names")


def _configurable_group(group: typer.Typer) -> typer.Typer:
    """Return a copy of a command group in which every command is a `Command`."""
    from ridgeline.cli.command import Command, configurable

    whole = copy(group)
    whole.rich_markup_mode = None
    whole.registered_commands = [copy(command) for command in group.registered_commands]
    for command in whole.registered_commands:
        assert command.callback is not None
        command.cls, command.callback = Command, configurable(command.callback)
    return whole


def main() -> None:
    """Run a command. An error prints one line on stderr and sets the exit code.

    Exit codes are 1 for an internal error of Ridgeline or a command that reports a failure (such as `check`), 2 for
    wrong usage, 3 for a refused model, 4 for an unreachable server and 130 for an interrupt.
    """
    arguments = sys.argv[1:]
    try:
        sys.exit(_run(arguments))
    except OSError as error:
        abandon_output()
        if isinstance(error, BrokenPipeError):  # the reader has seen enough (`| head`): no error
            sys.exit(0)
        _fail(_in_words(error), USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        abandon_output()
        sys.exit(0)
    except BaseException as error:  # a library may raise what is no Exception, as Rust's panics are
        if arguments[:1] == [_TRACEBACK]:
            raise
        _fail(*_known(error))


def _run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code, with all of its output flushed."""
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = build_app((name,)) if name in COMMANDS else build_list()
    finish_imports()
    signal_interrupts(quit_at_once=False)
    try:
        code = app(list(arguments), prog_name="ridgeline", standalone_mode=False)
    finally:
        sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _known(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code for an error.

    An error that no user mistake explains gets a request to report it.
    """
    from ridgeline.core.models.common.fields import DivisionRefused, ModelRefused  # what raised it has imported torch
    from ridgeline.util.host import out_of_memory

    if isinstance(error, _UsageError):
        command = error.ctx.command_path if error.ctx is not None else "ridgeline"
        return f"{error.format_message()} (see {command} --help)", USAGE
    if isinstance(error, ModelRefused) and not isinstance(error, DivisionRefused):
        return str(error), REFUSED
    if isinstance(error, ValueError):
        return str(error), USAGE
    if (refused := out_of_memory(error)) is not None:
        return refused, USAGE
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return (
        f"a bug in Ridgeline: {what}; please report it with the output of `ridgeline {_TRACEBACK} ...` and `ridgeline "
        "env`"
    ), FAILED


def _in_words(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    from ridgeline.cli.console import shortened

    if error.filename is None:
        return f"the output cannot be written: {error.strerror}; free some space or write it elsewhere"
    return f"{shortened(str(error.filename))}: {error.strerror}"


def _fail(message: str, code: int) -> NoReturn:
    from ridgeline.cli.console import one_line

    print(f"ridgeline: {one_line(message)}", file=sys.stderr)
    sys.exit(code)
