"""A command of the command line: its options under the names that people bring, from flags, a file or by default."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ridgeline.cli.aliases import Spellings, respelt
from ridgeline.cli.config import print_config, read_config_file

_CONFIG = "A TOML file with options; those given as flags count before it."
_PRINT = "Print every option, its value and where that came from, and do nothing else."
_SOURCES = {"COMMANDLINE": "command line", "DEFAULT_MAP": "config", "ENVIRONMENT": "environment"}


_KINDS = {"int": "a whole number", "float": "a number"}
_LIBRARY = "Value error, "


class Command(TyperCommand):
    """Reads its arguments as `respelt`, and its --config, whose tables may have the names in the context's `obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the library does, with every option under our own name and defaults from the file."""
        spellings, path = Spellings(self.params), None  # type: ignore[arg-type]
        try:
            args = respelt(args, spellings)
            path = _config_path(args)
            if path is not None:
                ctx.default_map = read_config_file(path, ctx.command_path.split()[1:], ctx.obj, spellings)
        except ValueError as error:
            ctx.fail(str(error))
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is not None and error.message:  # one that is missing has no message of its own
                ctx.fail(_bad_value(error, path if _of_file(ctx, error.param) else None))
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command, or print what it would run with."""
        path = ctx.params.pop("config", None)
        if not ctx.params.pop("print_config", False):
            try:
                return super().invoke(ctx)
            except ValueError as error:
                if type(error) is ValueError and self._of_file(ctx, str(error)):
                    raise ValueError(f"{path}: {error}") from None
                raise
        sources = {name: ctx.get_parameter_source(name).name for name in ctx.params}
        print_config(
            self.params, ctx.params, {name: _SOURCES.get(source, "default") for name, source in sources.items()}
        )
        return None

    def _of_file(self, ctx: Any, message: str) -> bool:
        """Whether what is wrong is the value of an option that is from the file: `--context is ...`."""
        ours = [name for param in self.params if _of_file(ctx, param) for name in (param.name, *param.opts)]
        return any(message.startswith(f"{name} is ") for name in ours)


def _of_file(ctx: Any, param: Any) -> bool:
    """Whether an option has the value that the file of --config gives it."""
    source = ctx.get_parameter_source(param.name)
    return source is not None and _SOURCES.get(source.name) == "config"


def _bad_value(error: Any, path: Path | None) -> str:
    """What is wrong with the value of an option or an argument, in our words. path: the file that it is from."""
    param = error.param
    long = max(param.opts, key=len)
    where = f"{path}: " if path is not None else ""
    name = long.removeprefix("--") if path is not None else long
    found: list[Any] = getattr(error.__cause__, "errors", list)()  # of the library that converts values
    kind = _KINDS.get(found[0]["type"].partition("_")[0]) if found else None
    if kind is None:
        return f"{where}{name}: {error.message.removeprefix(_LIBRARY)}"
    return f"{where}{name} is {found[0]['input']!r}; give {kind}"


def _config_path(arguments: Sequence[str]) -> Path | None:
    """The file of --config, the last where it is given twice."""
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
    """The function of a command with the two options that every command has, which `Command` reads."""

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
