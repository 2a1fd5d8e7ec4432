"""The `ridgeline` command: its subcommands, and what becomes of errors."""

import os
import sys
from typing import Annotated, cast

import typer

from ridgeline import __version__
from ridgeline.cli.calibrate import calibrate
from ridgeline.cli.env import env
from ridgeline.cli.lab import lab
from ridgeline.cli.plan import plan
from ridgeline.cli.run import run
from ridgeline.cli.show import show
from ridgeline.cli.tokenize import tokenize
from ridgeline.cli.trace import trace
from ridgeline.models import ModelRefused

USAGE, REFUSED, INTERRUPTED = 2, 3, 130

# The library's own base of "missing argument" and its kin; which package holds it has changed between its versions.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """An inference engine that knows its own limits. Results go to stdout, everything else to stderr."""
    if version:
        print(__version__)
        raise typer.Exit


for command in (run, plan, trace, calibrate, show, tokenize, env):
    app.command()(command)
app.add_typer(lab, name="lab")


def main() -> None:
    """Run a command; an error is one line on stderr and an exit code: 2 usage, 3 model refused, 130 interrupted."""
    try:
        app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except _UsageError as error:
        _fail(f"{error.format_message()} (see ridgeline --help)", USAGE)
    except ModelRefused as error:
        _fail(error, REFUSED)
    except ValueError as error:
        _fail(error, USAGE)
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(error, USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)


def _fail(error: Exception | str, code: int) -> None:
    print(f"ridgeline: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
