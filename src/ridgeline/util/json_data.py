"""JSON data from result classes: by default the fields of a dataclass, otherwise the keys that its class declares.

A field has its own name in JSON, unless it is marked with `json_name`. A field that is renamed in the code keeps its
JSON key thereby. `json_shape` adds properties to the fields of a class or leaves fields out, and `json_select` reads
parts of a record. Both state what they read as `keys`, each of which is one of these:

- `users`: an attribute, under its JSON name
- `load.users`: an attribute of an attribute, under its JSON name; null if `load` is None, whose attributes must then
  have no JSON names of their own
- `most=load.users`: the same under the key `most`
- `*load`: all entries of a record or mapping, as if they were the record's own
- `?load` and `?most=load.users`: the same as without `?`, but left out if it is None
- `...` (the literal): all fields of the dataclass that no other key of `json_shape` reads
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from types import EllipsisType
from typing import Any, TypeVar

_KEY = "json_name"
_SHAPE = "_json_shape"
_T = TypeVar("_T")


def json_name(name: str) -> Mapping[str, str]:
    """Return the metadata of a dataclass field that has this key in JSON: `field(metadata=json_name("wall"))`."""
    return {_KEY: name}


def json_shape(*keys: str | EllipsisType, omit: Collection[str] = ()) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that states the JSON object of a class: `@json_shape(..., "context")` above `@dataclass`.

    Args:
        keys: What the object has, in this order.
        omit: The fields that `...` leaves out.
    """

    def declare(cls: type[_T]) -> type[_T]:
        read = {_parts(key)[2].partition(".")[0] for key in keys if isinstance(key, str)} | set(omit)
        for name in read:
            assert hasattr(cls, name) or name in cls.__annotations__, f"{cls.__name__} has no {name}"
        others = [each.name for each in fields(cls) if each.name not in read] if ... in keys else []  # type: ignore[arg-type]
        shape = [name for key in keys for name in ([key] if isinstance(key, str) else others)]
        setattr(cls, _SHAPE, tuple(shape))
        return cls

    return declare


def json_data(value: Any) -> Any:
    """Return a value with every record in it, at any depth, as a dict, and null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: json_data(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(entry) for entry in value]
    if not isinstance(value, type) and (is_dataclass(value) or hasattr(value, _SHAPE)):
        return json_object(value)
    return value


def json_object(record: Any) -> dict[str, Any]:
    """Return a record as a dict of the keys that its class declares, by default of its fields."""
    return json_select(record, *(getattr(record, _SHAPE, None) or (each.name for each in fields(record))))


def json_select(record: Any, *keys: str) -> dict[str, Any]:
    """Return the parts of a record that `keys` state as a dict, with the records in them as dicts, too."""
    selected: dict[str, Any] = {}
    for key in keys:
        mark, stated, path = _parts(key)
        name, value = _read(record, path)
        if mark == "*":
            selected |= json_data(value)
        elif not mark or value is not None:
            selected[stated or name] = json_data(value)
    return selected


def _parts(key: str) -> tuple[str, str, str]:
    """Return the mark (`*`, `?` or none) of a key, the JSON name that it states, if any, and its path."""
    name, _, path = key.lstrip("*?").rpartition("=")
    return key[0] if key[0] in "*?" else "", name, path


def _read(record: Any, path: str) -> tuple[str, Any]:
    """Return the JSON name of the last attribute of a path, and its value."""
    key = ""
    for name in path.split("."):
        stated = getattr(record, "__dataclass_fields__", {}).get(name)
        key = name if stated is None else stated.metadata.get(_KEY, name)
        record = None if record is None else getattr(record, name)
    return key, record
