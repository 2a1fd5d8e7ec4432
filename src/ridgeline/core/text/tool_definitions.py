"""Definitions of tools with the keys that a chat template needs, which are optional in OpenAI's interface."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

OPTIONAL_KEYS: Final[Mapping[str, Any]] = MappingProxyType(
    {"description": "", "parameters": {"type": "object", "properties": {}}}
)
"""The keys that a function may lack, with values that mean the same as no value."""


def with_needed_keys(tool: Mapping[str, Any], needed: Collection[str]) -> Mapping[str, Any]:
    """Return a tool whose function has the needed ones of `OPTIONAL_KEYS`.

    A template that needs `parameters` may also need their type and properties.
    """
    function = tool.get("function")
    if not needed or not isinstance(function, Mapping):
        return tool
    added = {key: OPTIONAL_KEYS[key] for key in needed if function.get(key) is None}
    given = function.get("parameters")
    if "parameters" in needed and isinstance(given, Mapping):
        added["parameters"] = {**given, **{k: v for k, v in OPTIONAL_KEYS["parameters"].items() if k not in given}}
    return {**tool, "function": {**function, **added}}
