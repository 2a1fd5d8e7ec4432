"""A command of the command line, whose options come from flags under several spellings, a TOML file or defaults."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typing_extensions import override

from ridgeline.cli.aliases import OptionNames, long_name, normalise_args
from ridgeline.cli.config import ConfigFile, print_config, read_config_file
from ridgeline.cli.examples import EXAMPLES
from ridgeline.cli.help import PlainCommand
from ridgeline.cli.options import CONFIG_HELP
from ridgeline.core.checkpoint.source import UnknownModel

_CONFIG = "A TOML file with options; options on the command line take precedence."
_PRINT = "Print every option with its value and where the value comes from, and stop."
_SOURCES = {"COMMANDLINE": "command line", "DEFAULT_MAP": "config", "ENVIRONMENT": "environment"}
_KINDS = {"int": "a whole number", "float": "a number"}
_LIBRARY = "Value error, "
_TEXTS = ("prompt", "text")  # arguments that are texts
_NAME = re.compile(r"(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w./-])")  # no part of a path, of a dotted name or of an option
_FILE = "ridgeline.config"  # key of the ConfigFile, if there is one, in the context's meta


class Command(PlainCommand):
    """A command that normalises its arguments (`normalise_args`) and reads options from a --config file.

    The context's `obj` lists the command names that the file may use as tables.
    """

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments with each option under its canonical name and with defaults from the --config file."""
        spellings = OptionNames(self.params)  # type: ignore[arg-type]
        try:
            args = normalise_args(args, spellings)
            path = _config_path(args)
            if path is not None:
                file = read_config_file(path, ctx.command_path.split()[1:], ctx.obj, spellings)
                ctx.default_map, ctx.meta[_FILE] = file.values, file
        except ValueError as error:
            ctx.fail(str(error))
        ctx.allow_extra_args = True  # to report them in our own wording
        with self._named_options(ctx):
            rest = super().parse_args(ctx, args)
        if rest:
            ctx.fail(f"unexpected argument {rest[0]!r}{self._quotes_hint()}")
        return rest

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command, or with --print-config print its options instead."""
        ctx.params.pop("config", None)
        if not ctx.params.pop("print_config", False):
            with self._named_options(ctx):
                return super().invoke(ctx)
        sources = {name: ctx.get_parameter_source(name).name for name in ctx.params}
        print_config(
            self.params, ctx.params, {name: _SOURCES.get(source, "default") for name, source in sources.items()}
        )
        return None

    @contextmanager
    def _named_options(self, ctx: Any) -> Iterator[None]:
        """Convert errors about an option's value inside the context, so that they name the option.

        A value from the --config file is named by the file and its key.
        """
        try:
            yield
        except typer.BadParameter as error:
            if error.param is None:
                raise
            if not error.message:  # Click's error for a missing parameter
                ctx.fail(_missing(ctx, error.param))
            ctx.fail(f"{_label(ctx, error.param)}{_bad_value(error)}")
        except UnknownModel as error:
            raise error if self._takes_configs(ctx) else error.with_weights() from None
        except ValueError as error:
            named = self._named(ctx, str(error))
            if type(error) is not ValueError or named == str(error):
                raise
            raise ValueError(named) from error

    def _takes_configs(self, ctx: Any) -> bool:
        """Return whether the command runs with these options for a config without weights."""
        without_weights = any(ctx.params.get(name) for name in ("dummy_weights", "priced"))
        return without_weights or any(getattr(param, "help", None) == CONFIG_HELP for param in self.params)

    def _quotes_hint(self) -> str:
        """Return the advice to quote a text, for a command whose last argument is one; else ""."""
        arguments = [str(param.name) for param in self.params if param.param_type_name == "argument"]
        return f"; put the {arguments[-1]} in quotes" if arguments and arguments[-1] in _TEXTS else ""

    def _named(self, ctx: Any, message: str) -> str:
        """Replace parameter names in a message by the labels of the options.

        A message about options starts with one: `NAME is ...` or `NAME has ...`. In it, every name with an underscore
        is replaced too, because such a name is no word. Other messages may be about keys of a file.
        """
        labels = {name: _label(ctx, param) for param in self.params for name in (str(param.name), *param.opts)}
        first, _, rest = message.partition(" ")
        if first in labels and rest.startswith(("is ", "has ")):
            message = f"{labels[first]} {rest}"
        elif first not in labels:
            return message
        return _NAME.sub(lambda found: labels.get(found[0], found[0]), message)


def _missing(ctx: Any, param: Any) -> str:
    """Return the error text for a missing argument or option, with an example command."""
    name = (param.metavar or str(param.name).upper()) if param.param_type_name == "argument" else long_name(param)
    example = EXAMPLES.get(" ".join(ctx.command_path.split()[1:]))
    return f"{name} is missing" + (f"; for example: {example}" if example else "")


def _label(ctx: Any, param: Any) -> str:
    """Return the name of an option, or the file and key if its value is from the --config file."""
    source = ctx.get_parameter_source(param.name)
    if source is None or _SOURCES.get(source.name) != "config":
        return long_name(param)
    file: ConfigFile = ctx.meta[_FILE]
    return f"{file.path}: {file.keys[param.name]}"


def _bad_value(error: Any) -> str:
    """Return what is wrong with the value of an option or argument, in Ridgeline's wording."""
    found: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic errors of value conversion
    kind = _KINDS.get(found[0]["type"].partition("_")[0]) if found else None
    return f": {error.message.removeprefix(_LIBRARY)}" if kind is None else f" is {found[0]['input']!r}; give {kind}"


def _config_path(arguments: Sequence[str]) -> Path | None:
    """Return the path that the last --config option in the arguments names, or None."""
    path = None
    for argument, after in zip(arguments, [*arguments[1:], None], strict=False):
        if argument == "--":
            break
        if argument == "--config" and after is not None:
            path = Path(after)
        elif argument.startswith("--config="):
            path = Path(argument.removeprefix("--config="))
    return path


def configurable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command's function with the options --config and --print-config added, which `Command` evaluates."""

    @wraps(function)
    def with_config(*, config: object = None, print_config: object = None, **values: Any) -> Any:
        return function(**values)

    own = signature(function, eval_str=True)
    both = [
        Parameter(
            "config",
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Path | None, _option("--config", _CONFIG)],
        ),
        Parameter(
            "print_config",
            Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, _option("--print-config", _PRINT)],
        ),
    ]
    with_config.__signature__ = own.replace(parameters=[*own.parameters.values(), *both])  # type: ignore[attr-defined]
    return with_config


def _option(name: str, text: str) -> Any:
    return typer.Option(
        name, help=text, metavar="FILE" if name == "--config" else None, rich_help_panel="Configuration"
    )
