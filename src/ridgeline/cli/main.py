"""The `ridgeline` command: its subcommands, and what becomes of errors."""

import os
import sys

import typer

from ridgeline.cli.env import env
from ridgeline.cli.run import run
from ridgeline.cli.show import show
from ridgeline.cli.tokenize import tokenize
from ridgeline.models import ModelRefused

USAGE, REFUSED, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    help="An inference engine that knows its own limits. Results go to stdout, everything else to stderr.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, show, tokenize, env):
    app.command()(command)


def main() -> None:
    """Run a command; an error is one line on stderr and an exit code: 2 usage, 3 model refused, 130 interrupted."""
    try:
        app(standalone_mode=True)
    except ModelRefused as error:
        _fail(error, REFUSED)
    except ValueError as error:
        _fail(error, USAGE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _fail(error: Exception, code: int) -> None:
    print(f"ridgeline: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
