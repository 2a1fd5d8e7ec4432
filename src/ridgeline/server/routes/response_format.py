"""The structured-output constraint of a request, read from the fields that can set one, and its size limits."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.errors import invalid
from ridgeline.server.routes.closed_schema import closed
from ridgeline.server.routes.request_fields import GenerationFields
from ridgeline.server.server_settings import ServerSettings

MAX_SIZE = 1_000_000
"""The largest length or count that a schema may state."""
_SIZES = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "text": ("type",),
    "json_object": ("type", "schema"),
    "json_schema": ("type", "json_schema"),
}
"""The entries that each type of response_format may have; llama.cpp and Together define `schema` of `json_object`."""
_JSON_SCHEMA = ("name", "description", "schema", "strict")
_KINDS = frozenset({"json", "json_object", "regex", "choice", "grammar"})


def read_output_constraint(fields: GenerationFields, settings: ServerSettings) -> tuple[StructuredOutputs | None, str]:
    """Return the structured-output constraint of a request and the field that sets it; (None, "") without one.

    The constraint is not compiled yet.

    Raises:
        ApiError: If two fields set one, or it is invalid.
    """
    constraints: dict[str, dict[str, Any]] = {}
    if fields.response_format is not None and (form := _response_format(fields.response_format)):
        constraints["response_format"] = form
    if fields.structured_outputs is not None:
        constraints["structured_outputs"] = _structured_outputs(fields.structured_outputs)
    for name in ("json", "regex", "choice", "grammar"):
        if (value := getattr(fields, f"guided_{name}")) is not None:
            constraints[f"guided_{name}"] = {name: value}
    if not constraints:
        return None, ""
    (name, form), *others = constraints.items()
    if others:
        raise invalid(f"{name}: {others[0][0]} constrains the output too: give only one of them", name)
    strict = name == "response_format" and _is_strict(fields.response_format or {})
    return check_output_constraint(form, name, settings, strict=strict), name


def _is_strict(response_format: Mapping[str, Any]) -> bool:
    """Return whether a response format says `strict: true` of its schema."""
    inner = response_format.get("json_schema")
    return isinstance(inner, dict) and inner.get("strict") is True


def check_output_constraint(
    form: Mapping[str, Any], name: str, settings: ServerSettings, *, strict: bool = False
) -> StructuredOutputs:
    """Return a structured-output constraint after checking its size and depth; the objects of a schema are closed.

    Args:
        form: The arguments of `StructuredOutputs`.
        name: The request field for error messages.
        settings: The limits of the server.
        strict: Whether the request asks for a strict schema.

    Raises:
        ApiError: If the constraint is invalid or too large; the error names the field.
    """
    schema = form.get("json")
    if schema is not None:
        if isinstance(schema, str):
            _check_size([schema], name, settings)  # before decoding
        decoded = check_schema(_decoded(schema, name), name, settings)
        form = {**form, "json": decoded if settings.open_objects else closed(decoded, strict=strict)}
    try:
        outputs = StructuredOutputs(**form)
    except ValueError as error:
        raise invalid(str(error).replace("structured_outputs", name, 1), name) from None
    _check_size((outputs.json, outputs.regex, outputs.grammar, *(outputs.choice or ())), name, settings)
    return outputs


def _check_size(texts: Iterable[object], name: str, settings: ServerSettings) -> None:
    """Raise ApiError that names the field if the texts of a constraint are too long."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts if isinstance(text, str))
    if size > settings.schema_bytes:
        raise invalid(f"{name}: it has {size} bytes, but the limit is {settings.schema_bytes}: shorten it", name)


def _response_format(constraints: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = constraints.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise invalid(f"response_format.type: give one of {', '.join(_FORMATS)}", "response_format")
    _refuse_others(constraints, _FORMATS[kind], "response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = constraints.get("schema")
        return {"json_object": True} if schema is None else {"json": _of_objects(schema)}
    inner = constraints.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(schema, dict):
        raise invalid("response_format.json_schema.schema: give a JSON schema", "response_format")
    _refuse_others(inner, _JSON_SCHEMA, "response_format.json_schema")
    return {"json": schema}


def _of_objects(schema: object) -> dict[str, Any]:
    """Return the schema with `type` set to object unless it has a type; raise ApiError if it is no schema."""
    if not isinstance(schema, dict):
        raise invalid("response_format.schema: give a JSON schema", "response_format")
    return {"type": "object", **schema}


def _refuse_others(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise ApiError for an unknown entry of a response format, because the response would silently lack its effect."""
    for name, value in given.items():
        if name not in known and value is not None:
            raise invalid(f"{where}.{name} is not supported here; leave it out", "response_format")


def _structured_outputs(constraints: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in constraints.items() if value is not None and value is not False}
    unknown = sorted(given.keys() - _KINDS)
    if unknown:
        raise invalid(
            f"structured_outputs: {unknown[0]!r} is not supported; give one of {', '.join(sorted(_KINDS))}",
            "structured_outputs",
        )
    return given


def _decoded(schema: object, name: str) -> object:
    """Return a schema as a Python value; it may be given as JSON text."""
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise invalid(f"{name}: the schema is not valid JSON", name) from None


def check_schema(schema: object, name: str, settings: ServerSettings, most_bytes: int | None = None) -> dict[str, Any]:
    """Return a JSON schema after checking it against the server's limits.

    Args:
        schema: The decoded schema.
        name: The request field for error messages.
        settings: The limits of the server.
        most_bytes: The most bytes of the schema as JSON text; None for no limit.

    Raises:
        ApiError: If the schema is invalid or exceeds a limit; the error names the field.
    """
    if not isinstance(schema, dict):
        raise invalid(f"{name}: a JSON schema must be an object", name)
    for depth, key, value in _entries(schema):
        if depth > settings.schema_depth:
            raise invalid(f"{name}: the schema is nested deeper than {settings.schema_depth} levels", name)
        if key == "$ref" and isinstance(value, str) and not value.startswith("#"):
            raise invalid(
                f"{name}: a $ref points outside the schema, and the server fetches nothing: include the definition "
                "in the schema",
                name,
            )
        if key in _SIZES and isinstance(value, int | float) and value > MAX_SIZE:
            raise invalid(f"{name}: {key} is more than {MAX_SIZE}", name)
    if most_bytes is not None and len(msgspec.json.encode(schema)) > most_bytes:
        raise invalid(f"{name}: a schema has more than {most_bytes} bytes: shorten it", name)
    return schema


def _entries(value: object) -> Iterator[tuple[int, str, object]]:
    """Yield every entry of every object in a value with its depth, without recursion because the value is untrusted."""
    left: list[tuple[int, object]] = [(1, value)]
    while left:
        depth, value = left.pop()
        entries = value.items() if isinstance(value, dict) else ()
        yield from ((depth, key, inner) for key, inner in entries)
        inner_values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(depth + 1, inner) for inner in inner_values if isinstance(inner, dict | list)]
