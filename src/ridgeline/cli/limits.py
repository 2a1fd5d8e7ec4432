"""The limits of a server as command-line options, one per limit field of ServerSettings."""

from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any

import typer

from ridgeline.cli.options import parse_bytes, parse_seconds
from ridgeline.server.server_settings import ServerSettings

_BYTES, _SECONDS = "_bytes", "_seconds"

LIMITS: Mapping[str, tuple[str, str]] = {
    "choices": ("--max-choices", "The maximum number of choices (n) per request."),
    "prompts": ("--max-prompts", "The maximum number of prompts per completion request."),
    "stops": ("--max-stops", "The maximum number of stop strings per request."),
    "stop_bytes": ("--max-stop-size", "The maximum size of a stop string."),
    "top_logprobs": ("--max-top-logprobs", "The maximum number of alternatives per token (top_logprobs)."),
    "logit_bias": ("--max-logit-bias", "The maximum number of logit_bias entries."),
    "messages": ("--max-messages", "The maximum number of messages in a conversation."),
    "tools": ("--max-tools", "The maximum number of tools per request."),
    "cache_salt_bytes": ("--max-cache-salt", "The maximum size of a request's cache_salt."),
    "template_factor": (
        "--max-template-factor",
        "The maximum size of a rendered prompt, in bytes per position of the context.",
    ),
    "body_bytes": ("--max-body", "The maximum size of a request body."),
    "upload_bytes": ("--max-upload", "The maximum size of an upload with an audio file."),
    "image_bytes": (
        "--max-image-memory",
        "The memory for the images of all running requests: their files (n x size of each), and the "
        "frames of GIF and WebP.",
    ),
    "video_storage_bytes": ("--max-video-storage", "The disk space for finished videos; the oldest are deleted first."),
    "video_lifetime_seconds": ("--video-lifetime", "The time after which a finished video is deleted."),
    "json_depth": ("--max-json-depth", "The maximum nesting depth of a JSON body."),
    "schema_bytes": ("--max-schema", "The maximum size of a JSON schema or grammar."),
    "schema_depth": ("--max-schema-depth", "The maximum nesting depth of a JSON schema."),
    "compile_seconds": ("--grammar-timeout", "The time limit for compiling a new schema or grammar."),
    "compile_bytes": ("--grammar-memory", "The memory limit for compiling a new schema or grammar."),
    "grammar_cache_bytes": ("--grammar-cache", "The memory for compiled grammars that are kept for later requests."),
    "headers": ("--max-headers", "The maximum number of headers per request."),
    "header_bytes": ("--max-header-size", "The maximum size of all headers of a request."),
    "header_seconds": (
        "--header-timeout",
        "The time limit for a request's headers, from their first byte to the last.",
    ),
    "body_seconds": ("--body-timeout", "The time limit for a request's body, from its first byte to the last."),
    "body_rate": ("--min-body-rate", "The minimum rate, in bytes per second, of a body that arrives slowly."),
    "idle_seconds": ("--idle-timeout", "The time after which an idle connection is closed."),
    "send_buffer_bytes": ("--send-buffer", "The unread data per client at which its response pauses."),
    "connections": (
        "--max-connections",
        "The maximum number of connections; by default what the limit of open files allows.",
    ),
    "queued_requests": (
        "--max-queued-requests",
        "The maximum number of waiting requests; by default 4 times --max-requests. For diffusion "
        "pipelines it counts all requests in the server, 16 by default.",
    ),
    "queued_tokens": (
        "--max-queued-tokens",
        "The maximum number of waiting prompt tokens; by default 2 times the KV cache's capacity.",
    ),
    "queue_seconds": ("--queue-timeout", "The maximum time that a request waits for its first step."),
    "total_seconds": ("--request-timeout", "The maximum time of a request in total."),
    "drain_seconds": ("--drain-timeout", "The time that running requests have to finish after the first signal."),
    "stalled_seconds": (
        "--stall-timeout",
        "The time without a step, while there is work, after which /health/live fails.",
    ),
    "trace_bytes": ("--trace-memory", "The memory for the traces of finished requests."),
}
"""The option name and the help text of each limit, by its field of ServerSettings."""

OF_PIPELINES = frozenset({"image_bytes", "video_storage_bytes", "video_lifetime_seconds"})
"""The server limits that only apply to diffusion pipelines."""
OF_TEXT = frozenset(
    {
        *("prompts", "stops", "stop_bytes", "top_logprobs", "logit_bias", "messages", "tools", "cache_salt_bytes"),
        *("template_factor", "upload_bytes", "schema_bytes", "schema_depth", "compile_seconds", "compile_bytes"),
        *("grammar_cache_bytes", "queued_tokens", "trace_bytes"),
    }
)
"""The server limits that only apply to language models."""


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
        return 0 if value == "0" else int(parse_bytes(value, LIMITS[name][0]))
    if name.endswith(_SECONDS):
        return 0.0 if value == "0" else parse_seconds(value, LIMITS[name][0])
    return value


def _field(name: str, default: Any) -> tuple[str, Any, Any]:
    option, text = LIMITS[name]
    kind: Any = str if name.endswith((_BYTES, _SECONDS)) else int
    declared = typer.Option(option, help=text, rich_help_panel="Limits")
    return name, Annotated[kind | None if default is None else kind, declared], field(default=_amount(name, default))


_DEFAULTS = {each.name: each.default for each in fields(ServerSettings)}

ServerLimitFlags: Any = make_dataclass("LimitFlags", [_field(name, _DEFAULTS[name]) for name in LIMITS], frozen=True)


def check_limits(flags: Any, model: str, *, writes: bool, draws: bool) -> None:
    """Raise ValueError for a limit that the user set but that applies to none of the served models.

    Args:
        flags: The limits from the command line.
        model: The name of a served model, for the message.
        writes: Whether the server has a language model.
        draws: Whether the server has a diffusion pipeline.
    """
    of_text, of_pipelines = (
        "language models, but {} generates images",
        "diffusion pipelines, but {} is a language model",
    )
    for names, why, served in ((OF_TEXT, of_text, writes), (OF_PIPELINES, of_pipelines, draws)):
        for name in () if served else sorted(names):
            if getattr(flags, name) != _amount(name, _DEFAULTS[name]):
                raise ValueError(f"{LIMITS[name][0]} is for {why.format(model)}; leave it out")


def limits_of(flags: Any) -> dict[str, Any]:
    """Return the limit fields of ServerSettings.

    Raises:
        ValueError: If a value is malformed.
    """
    return {name: _read(name, getattr(flags, name)) for name in LIMITS}
