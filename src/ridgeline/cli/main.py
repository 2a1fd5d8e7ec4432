"""The `ridgeline` command: its subcommands, and what becomes of errors."""

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

# Each is the function (or, with commands of its own, the app) of that name in the module of that name; beside it stands
# what it says of itself. Only the one that is asked for is imported: a plan should not wait for what traces and
# calibrates, nor the list of all for torch.
COMMANDS = {
    "run": "Generate text: streams to stdout, then says on stderr what prefill and decode took.",
    "chat": "Talk with a model: its history is kept, each answer is followed by what it took.",
    "translate": "Translate texts: each goes through the encoder once, and its answer is a line on stdout.",
    "embed": "Turn texts into vectors that are near each other where the texts mean the like.",
    "serve": "Serve models over HTTP: OpenAI's chat and completions, pictures and clips, or both; metrics, health.",
    "image": "Draw pictures of a prompt: says what they will take, shows each step, and writes a file for each.",
    "video": "Draw clips of a prompt: says what they will take, shows each step, and writes a file for each.",
    "transcribe": "Write down what is said in files of speech, window by window; several files side by side.",
    "plan": "Predict memory, speed, users and cost of a model on a card, as floor, bound and expected.",
    "simulate": "Let traffic come to a model on a card that need not be here: who waits, how long, what limits, what "
    "it costs.",
    "trace": "Follow one request through the model: text, ids, every op with its cost, bound, expected and measured "
    "seconds,\nthe candidates, the token, and where the time went. Of a pipeline that draws pictures: its texts "
    "encoded, one step\nof its denoiser and its decode.",
    "calibrate": "Measure this machine in three minutes: bandwidth by working set, matrix products, and every "
    "operation where it\nstands in a model; then fit six constants to each class of kernels.",
    "show": "Take a config.json apart: the name, the sizes, and where the parameters are. Reads no weights.",
    "check": "Look whether a model's folder or GGUF file is sound before anything depends on it: a line for each thing "
    "that is\nwrong, with its fix.",
    "quantize": "Write a checkpoint anew with its matrices in a narrower format, in the layout of compressed-tensors, "
    "which other\nengines read.",
    "tokenize": "Show the tokens of a text: id, piece, bytes, and how many characters a token holds on average.",
    "env": "Say what this machine is and which versions are installed: what a bug report needs.",
    "completion": "Print the script with which a shell completes commands and options.",
    "quiz": "Ask the questions of a chapter, and say of each answer whether it is right, and why.",
    "guide": "Open the guide in a browser, or say where it is or how it is made.",
    "lab": "Experiments, each under a minute: run them, then read their code; and exercises to write some yourself.",
    "page": "The page in a browser as one file, and what it is fed with: prices as tables.",
    "bench": "Measure a server under load, or the engine against the roofs of this machine.",
}

# The library's own base of "missing argument" and its kin; which package holds it has changed between its versions.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

_TRACEBACK = "--traceback"


def _top(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[
        bool, typer.Option(_TRACEBACK, help="Before all else: show in the code where an error comes from.")
    ] = False,  # main has to know before there is a command line
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(first_lines())


def build_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these subcommands."""
    from ridgeline.cli.command import Command, configurable  # no list of commands waits for what reads one

    app = _empty_app()
    for name in names:
        command = getattr(import_module(f"ridgeline.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(_configurable_group(command), name=name, cls=PlainGroup)
        else:
            app.command(name, cls=Command)(configurable(command))
    return app


def build_list() -> typer.Typer:
    """The command line for who names no command: it knows what each is called, and what it says of itself."""
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
    raise AssertionError("a command that is named is built")


def _configurable_group(group: typer.Typer) -> typer.Typer:
    """The group with every command of it read as a `Command`."""
    from ridgeline.cli.command import Command, configurable

    whole = copy(group)
    whole.rich_markup_mode = None
    whole.registered_commands = [copy(command) for command in group.registered_commands]
    for command in whole.registered_commands:
        assert command.callback is not None
        command.cls, command.callback = Command, configurable(command.callback)
    return whole


def main() -> None:
    """Run a command; an error is one line on stderr and an exit code: 1 a fault of Ridgeline's own, 2 usage, 3 model
    refused, 4 no server there, 130 interrupted.
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
    """The exit code of a command that did what was asked. Whatever it raised, its output is written or has failed."""
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
    """What an error says and its exit code; of one that no user's mistake explains, that it is to be reported."""
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
        f"a fault of Ridgeline's own: {what}; please report it, with what `ridgeline {_TRACEBACK} ...` and "
        "`ridgeline env` print"
    ), FAILED


def _in_words(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    from ridgeline.cli.console import shortened

    if error.filename is None:
        return f"the output cannot be written: {error.strerror}; free some space or send it elsewhere"
    return f"{shortened(str(error.filename))}: {error.strerror}"


def _fail(message: str, code: int) -> NoReturn:
    from ridgeline.cli.console import one_line

    print(f"ridgeline: {one_line(message)}", file=sys.stderr)
    sys.exit(code)
