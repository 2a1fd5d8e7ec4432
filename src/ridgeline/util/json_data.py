"""JSON data from result dataclasses.

A field has its own name in JSON, unless it is marked with `json_name`. A field that is renamed in the code keeps its
JSON key thereby.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_KEY = "json_name"


def json_name(name: str) -> Mapping[str, str]:
    """Return the metadata of a dataclass field that has this key in JSON: `field(metadata=json_name("wall"))`."""
    return {_KEY: name}


def json_data(value: Any) -> Any:
    """Return a value with every dataclass in it, at any depth, as a dict of its fields by their JSON keys."""
    if is_dataclass(value) and not isinstance(value, type):
        return json_object(value)
    if isinstance(value, Mapping):
        return {key: json_data(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(entry) for entry in value]
    return value


def json_object(record: Any) -> dict[str, Any]:
    """Return a dataclass as a dict of its fields by their JSON keys, with the dataclasses in them as dicts, too."""
    return {each.metadata.get(_KEY, each.name): json_data(getattr(record, each.name)) for each in fields(record)}
