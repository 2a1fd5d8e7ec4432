"""The plain-text pages that --help prints: options by panel, and each command with its full summary.

Typer's own help draws boxes and multiplies the import time by using Rich.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import groupby
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from ridgeline.cli.examples import help_examples

WIDEST = 100
"""The maximum width of a help page in columns, for readability."""


class PlainCommand(TyperCommand):
    """A command with a plain-text help page."""

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the arguments, then that of the options panel by panel."""
        _write_parameters(self, ctx, formatter)

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the command, each on a line of its own so that it can be copied."""
        shown = help_examples(" ".join(ctx.command_path.split()[1:]))
        widest = max(len(command) for command, _ in shown)
        with _section(formatter, "Examples"):
            for command, comment in shown:
                formatter.write(f"  {command:{widest}}  # {comment}\n")


class PlainGroup(TyperGroup):
    """A command group with a plain-text help page, which lists its commands if none is given."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, or print an overview on stdout if there are none, for which Click reports an error."""
        if not args and not self.invoke_without_command:
            typer.echo(self._overview(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, or report an unknown name with similar ones or all of them."""
        name = str(args[0])
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = get_close_matches(name, shown_commands(self), 3)
            group = ctx.command_path.removeprefix("ridgeline").strip()
            known = f"; {group} has {_listed(shown_commands(self))}" if group else ""
            meant = f"; did you mean {' or '.join(near)}?" if near else known
            ctx.fail(f"no such command: {name}{meant}")
        return super().resolve_command(ctx, args)

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group's options, then the list of its commands."""
        _write_parameters(self, ctx, formatter)
        self._write_commands(formatter)

    def _overview(self, ctx: Any) -> str:
        """Return the group's help text, its commands and its epilog."""
        formatter = ctx.make_formatter()
        formatter.write_text(self.help or "")
        self._write_commands(formatter)
        self.format_epilog(ctx, formatter)
        return str(formatter.getvalue()).rstrip("\n")

    def _write_commands(self, formatter: Any) -> None:
        with _section(formatter, "Commands"):
            formatter.write_dl([(_name(name), _summary(command)) for name, command in shown_commands(self).items()])


def shown_commands(group: Any) -> dict[str, Any]:
    """Return the commands of a group by name, without hidden ones, such as old names of a command."""
    return {name: command for name, command in group.commands.items() if not command.hidden}


def _listed(names: Iterable[str]) -> str:
    """Return names as a list in a sentence: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write a section for the arguments, for options without a panel, and for each panel in order of appearance."""
    shown = [(_panel(param), param.get_help_record(ctx)) for param in command.get_params(ctx)]
    panels = list(dict.fromkeys(["Arguments", "Options", *(panel for panel, _ in shown)]))
    for panel, entries in groupby(sorted(shown, key=lambda entry: panels.index(entry[0])), lambda entry: entry[0]):
        rows = [(_name(record[0]), record[1]) for _, record in entries if record is not None]
        if rows:
            with _section(formatter, panel):
                formatter.write_dl(rows)


def _panel(param: Any) -> str:
    """Return the section of the help page to which a parameter belongs."""
    kind = "Arguments" if param.param_type_name == "argument" else "Options"
    return getattr(param, "rich_help_panel", None) or kind


def _summary(command: Any) -> str:
    """Return the first paragraph of a command's help text."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


@contextmanager
def _section(formatter: Any, title: str) -> Iterator[None]:
    """Write a heading of a help page and indent what is written inside the context."""
    formatter.write_paragraph()
    formatter.write(_styled(f"{title}:", bold=True) + "\n")
    with formatter.indentation():
        yield


def _name(name: str) -> str:
    return _styled(name, fg="cyan")


def _styled(text: str, **style: Any) -> str:
    """Return the text with terminal styles, unless NO_COLOR is set (https://no-color.org).

    Click strips the styles if the output is no terminal.
    """
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)
