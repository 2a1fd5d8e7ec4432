"""`--config FILE.toml`: options from a file, under those that are given as flags and over the defaults.

A key is an option without its hyphens, under any of its names, or an argument like `model`. Keys at the top are for the
command that is run; a table is for the command of its name ([run], [serve], [bench.serve]) and counts before them.
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
"""Parameters whose value is shown to nobody."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says to one command: values of its parameters by their names, and the keys that the file has for
    them.
    """

    path: Path
    values: Mapping[str, Any]
    keys: Mapping[str, str]


def read_config_file(
    path: Path, command: Sequence[str], commands: Container[str], spellings: OptionNames
) -> ConfigFile:
    """The file for a command. command: its name, in parts where it is a group's. commands: all names that a table may
    have.

    Raises ValueError for a file that cannot be read, a key that is no option of the command, a value it cannot have.
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
    """Keys with their values, those of the command's own table last. commands: None for those of any group."""
    deeper: Mapping[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and command and (commands is None or key in commands):
            deeper = value if key == command[0] else deeper
        else:
            yield key, value
    if deeper:
        yield from _entries(deeper, command[1:])


def _parameter(key: str, value: Any, spellings: OptionNames) -> tuple[str, Any] | None:
    """The name of the parameter that a key stands for, and its value; None for an alias that asks for what is so."""
    name = key if key in spellings.by_name else "--" + key.replace("_", "-")
    if name == "--config":
        raise ValueError("config is for the command line: a file names no other; leave it out")
    option = spellings.find(name)
    if option is None:
        raise ValueError(f"the table [{key}] is no command's") if isinstance(value, dict) else spellings.nearest(name)
    if _repeats(option.param):
        assert option.param is not None
        return str(option.param.name), [_text(key, name, each) for each in _listed(value)]
    meant = option.mean(_truth(key, value) if option.flag else _text(key, name, value))
    return None if meant is None else (str(meant[0].name), meant[1])


def _repeats(param: Parameter | None) -> bool:
    """Whether it is an option that may be repeated, or an argument of several words."""
    return bool(getattr(param, "multiple", False)) or getattr(param, "nargs", 1) < 0


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {_toml(value)}; give true or false")
    return value


def _text(key: str, name: str, value: Any) -> str:
    """A string or a number as it would stand on the command line."""
    if isinstance(value, bool | dict | list):
        raise ValueError(f"{key} is {_toml(value)}; give it as the option {name} has it")
    return str(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def print_config(params: Sequence[Any], values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Every option with its value and where that came from: a file for --config. What has no value is a comment, and
    so is a secret: whatever stood in its place would be read back as one.
    """
    for param in params:
        if param.name not in values:
            continue
        value = values[param.name]
        key = long_name(param).removeprefix("--")
        if value is None:
            print(f"# {key} is not set")
        elif param.name in SECRETS and value:
            print(f"# {key} is not shown")
        else:
            print(f"{key} = {_toml(value)}  # {sources[param.name]}")


def _toml(value: Any) -> str:
    """JSON's strings, numbers, truths and lists are TOML's too, but for surrogates and a bare DEL."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    plain = value if isinstance(value, bool | int | float) else str(value)
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
