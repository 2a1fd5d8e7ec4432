"""The pages that --help prints, in plain text: options under the names of their panels, each command with all that it
says of itself. The library draws boxes instead; to do so it imports several times what it is.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

WIDEST = 100
"""Columns of a page at most: longer lines are hard to read."""


class PlainCommand(TyperCommand):
    """A command whose help is such a page."""

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Its arguments, then its options, panel by panel."""
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands whose help is such a page, and which lists its commands if none is given."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print what there is, on stdout, where the library has an error for a command that is missing."""
        if not args and not self.invoke_without_command:
            typer.echo(self._overview(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Its options, then its commands."""
        _write_parameters(self, ctx, formatter)
        self._write_commands(formatter)

    def _overview(self, ctx: Any) -> str:
        """Return all that the group says of itself, its commands, and its last lines."""
        formatter = ctx.make_formatter()
        formatter.write_text(self.help or "")
        self._write_commands(formatter)
        self.format_epilog(ctx, formatter)
        return str(formatter.getvalue()).rstrip("\n")

    def _write_commands(self, formatter: Any) -> None:
        with _section(formatter, "Commands"):
            formatter.write_dl([(_name(name), _summary(command)) for name, command in self.commands.items()])


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """A section for the arguments, for the options that no panel has, and for each panel, in the order in which the
    command has the first of each.
    """
    shown = [(_panel(param), param.get_help_record(ctx)) for param in command.get_params(ctx)]
    panels = list(dict.fromkeys(["Arguments", "Options", *(panel for panel, _ in shown)]))
    for panel, entries in groupby(sorted(shown, key=lambda entry: panels.index(entry[0])), lambda entry: entry[0]):
        rows = [(_name(record[0]), record[1]) for _, record in entries if record is not None]
        if rows:
            with _section(formatter, panel):
                formatter.write_dl(rows)


def _panel(param: Any) -> str:
    """The section that a parameter is in."""
    kind = "Arguments" if param.param_type_name == "argument" else "Options"
    return getattr(param, "rich_help_panel", None) or kind


def _summary(command: Any) -> str:
    """The first paragraph of what a command says of itself."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


@contextmanager
def _section(formatter: Any, title: str) -> Iterator[None]:
    """A heading, and what is written inside below it, indented."""
    formatter.write_paragraph()
    formatter.write(_styled(f"{title}:", bold=True) + "\n")
    with formatter.indentation():
        yield


def _name(name: str) -> str:
    return _styled(name, fg="cyan")


def _styled(text: str, **style: Any) -> str:
    """For terminals, unless their user wants no colours (https://no-color.org); elsewhere the library takes it out."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)
