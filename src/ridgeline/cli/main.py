"""The `ridgeline` command: its subcommands, and what becomes of errors."""

import os
import sys
from importlib import import_module
from typing import Annotated, cast

import typer

from ridgeline import __version__
from ridgeline.models.fields import DivisionRefused, ModelRefused

USAGE, REFUSED, INTERRUPTED = 2, 3, 130

# Each is the function (or, with commands of its own, the app) of that name in the module of that name. Only the one
# that is asked for is imported: a plan should not wait for what traces and calibrates.
COMMANDS = ("run", "plan", "trace", "calibrate", "show", "tokenize", "env", "lab")

# The library's own base of "missing argument" and its kin; which package holds it has changed between its versions.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)


def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """An inference engine that knows its own limits. Results go to stdout, everything else to stderr."""
    if version:
        print(__version__)
        raise typer.Exit


def build_app(names: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """The command line with these subcommands."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_top)
    for name in names:
        command = getattr(import_module(f"ridgeline.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def main() -> None:
    """Run a command; an error is one line on stderr and an exit code: 2 usage, 3 model refused, 130 interrupted."""
    arguments = sys.argv[1:] or ["--help"]
    app = build_app((arguments[0],) if arguments[0] in COMMANDS else COMMANDS)
    try:
        code = app(arguments, standalone_mode=False)
    except _UsageError as error:
        _fail(f"{error.format_message()} (see ridgeline --help)", USAGE)
    except DivisionRefused as error:
        _fail(error, USAGE)
    except ModelRefused as error:
        _fail(error, REFUSED)
    except (ValueError, OSError) as error:
        _fail(error, USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # The reader has seen enough (`| head`): no error, and nothing more to be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(error: Exception | str, code: int) -> None:
    print(f"ridgeline: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
