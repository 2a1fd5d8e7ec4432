"""The option file of `--config FILE.toml`, whose values rank below command-line flags and above defaults.

A key is an option without its leading hyphens, under any of its names, or an argument such as `model`. Top-level keys
apply to the command that is run. A table such as [run] or [bench.serve] applies to the command of that name and
overrides them.
"""

import json
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.cli.aliases import OptionNames, Parameter, long_name
from ridgeline.util.untrusted import read_toml

SECRETS = ("api_key",)
"""The parameters whose value is never printed."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The options that a config file sets for one command."""

    path: Path
    values: Mapping[str, Any]
    """The values that the config file sets, by parameter name."""
    keys: Mapping[str, str]
    """The key in the config file that sets each parameter, by parameter name."""


def read_config_file(
    path: Path, command: Sequence[str], commands: Container[str], spellings: OptionNames
) -> ConfigFile:
    """Read the options of one command from a file.

    Args:
        path: The TOML file.
        command: The command's name, with one part per level of a group.
        commands: The names that are allowed as tables.
        spellings: The option names of the command.

    Raises:
        ValueError: If the file cannot be read, a key is not an option of the command, or a value is invalid.
    """
    values, keys = dict[str, Any](), dict[str, str]()
    for key, value in _entries(read_toml(path), command, commands):
        try:
            found = _parameter(key, value, spellings)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if found is not None:
            values[found[0]], keys[found[0]] = found[1], key
    return ConfigFile(path, values, keys)


def _entries(
    table: Mapping[str, Any], command: Sequence[str], commands: Container[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a config file that apply to a command, with their values; the command's own table comes last.

    Args:
        table: The table to read.
        command: The remaining parts of the command's name.
        commands: The names that are allowed as tables; None allows any.
    """
    deeper: Mapping[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and command and (commands is None or key in commands):
            deeper = value if key == command[0] else deeper
        else:
            yield key, value
    if deeper:
        yield from _entries(deeper, command[1:])


def _parameter(key: str, value: Any, spellings: OptionNames) -> tuple[str, Any] | None:
    """Return the parameter name and the value for a key, or None for an alias that has no effect."""
    name = key if key in spellings.by_name else "--" + key.replace("_", "-")
    if name == "--config":
        raise ValueError("a config file cannot name another one with config; leave it out")
    option = spellings.find(name)
    if option is None:
        raise (
            ValueError(f"the table [{key}] is not the name of a command; rename or remove it")
            if isinstance(value, dict)
            else spellings.nearest(name)
        )
    if _repeats(option.param):
        assert option.param is not None
        return str(option.param.name), [_text(key, name, each) for each in _listed(value)]
    meant = option.mean(_truth(key, value) if option.flag else _text(key, name, value))
    return None if meant is None else (str(meant[0].name), meant[1])


def _repeats(param: Parameter | None) -> bool:
    """Return whether a parameter is a repeatable option or an argument of several words."""
    return bool(getattr(param, "multiple", False)) or getattr(param, "nargs", 1) < 0


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {_toml(value)}; give true or false")
    return value


def _text(key: str, name: str, value: Any) -> str:
    """Return a string or number as it would be written on the command line."""
    if isinstance(value, bool | dict | list):
        raise ValueError(f"{key} is {_toml(value)}; give a string or a number, as for the option {name}")
    return str(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def print_config(params: Sequence[Any], values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Print every option with its value and its source, as a file for --config.

    Options without a value and secrets become comments, because a placeholder would be read back as a value.
    """
    for param in params:
        if param.name not in values:
            continue
        value = values[param.name]
        key = long_name(param).removeprefix("--")
        if value is None:
            print(f"# {key} is not set")
        elif param.name in SECRETS and value:
            print(f"# {key} is set but not shown")
        else:
            print(f"{key} = {_toml(value)}  # {sources[param.name]}")


def _toml(value: Any) -> str:
    """Return a value in TOML. Strings are those of JSON, except that a raw DEL character is escaped."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    plain = value if isinstance(value, bool | int | float) else str(value)
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
