"""The limits of a server as command-line options, one per limit field of ServerSettings."""

from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from typing import Any

from ridgeline.cli.flags import given_flags, option_values, panel
from ridgeline.cli.options import parse_bytes, parse_seconds
from ridgeline.server.server_settings import ServerLimit, ServerSettings, server_limits

_BYTES, _SECONDS = "_bytes", "_seconds"

LIMITS: Mapping[str, ServerLimit] = server_limits()
"""The limits by the names of their fields of ServerSettings."""
_limit = panel("Limits")


def _amount(name: str, value: Any) -> Any:
    """Return a limit's value in the form that the command line accepts, such as `8MiB` or `30s`."""
    if name.endswith(_BYTES):
        unit = next((unit for unit in (20, 10) if value and value % (1 << unit) == 0), 0)
        return f"{value >> unit}{ {20: 'MiB', 10: 'KiB', 0: 'B'}[unit] }"
    return f"{value:g}s" if name.endswith(_SECONDS) else value


def _read(name: str, value: Any) -> Any:
    """Parse a limit from the command line.

    Raises:
        ValueError: If the value is malformed.
    """
    if name.endswith(_BYTES):
        return 0 if value == "0" else int(parse_bytes(value, LIMITS[name].option))
    if name.endswith(_SECONDS):
        return 0.0 if value == "0" else parse_seconds(value, LIMITS[name].option)
    return value


def _option(name: str, default: Any) -> tuple[str, Any, Any]:
    limit, kind = LIMITS[name], str if name.endswith((_BYTES, _SECONDS)) else int
    declared = _limit(limit.help, limit.option, default=_amount(name, default))
    return name, kind | None if default is None else kind, declared


_OPTIONS = [_option(each.name, each.default) for each in fields(ServerSettings) if each.name in LIMITS]

ServerLimitFlags: Any = make_dataclass("ServerLimitFlags", _OPTIONS, frozen=True)


def check_limits(flags: Any, model: str, *, writes: bool, draws: bool) -> None:
    """Raise ValueError for a limit that the user set but that applies to none of the served models.

    Args:
        flags: The limits from the command line.
        model: The name of a served model, for the message.
        writes: Whether the server has a language model.
        draws: Whether the server has a diffusion pipeline.
    """
    if writes and draws:
        return
    others, why = (
        ("language", f"language models, but {model} generates images")
        if draws
        else ("diffusion", f"diffusion pipelines, but {model} is a language model")
    )
    given = given_flags(flags)
    for limit in LIMITS.values():
        if limit.models == others and limit.option in given:
            raise ValueError(f"{limit.option} is for {why}; leave it out")


def limits_of(flags: Any) -> dict[str, Any]:
    """Return the limit fields of ServerSettings.

    Raises:
        ValueError: If a value is malformed.
    """
    return {name: _read(name, value) for name, value in option_values(flags).items()}
