"""The limits of a server as options: one for each of ServerSettings that is a limit."""

from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any

import typer

from ridgeline.cli.options import parse_bytes, parse_seconds
from ridgeline.server.server_settings import ServerSettings

_BYTES, _SECONDS = "_bytes", "_seconds"

LIMITS: Mapping[str, tuple[str, str]] = {
    "choices": ("--max-choices", "Choices (n) of a request."),
    "prompts": ("--max-prompts", "Prompts of a completion request."),
    "stops": ("--max-stops", "Stop strings of a request."),
    "stop_bytes": ("--max-stop-size", "A stop string."),
    "top_logprobs": ("--max-top-logprobs", "Alternatives beside each token's log-probability."),
    "logit_bias": ("--max-logit-bias", "Entries of logit_bias."),
    "messages": ("--max-messages", "Messages of a conversation."),
    "tools": ("--max-tools", "Tools of a request."),
    "cache_salt_bytes": ("--max-cache-salt", "cache_salt of a request."),
    "template_factor": ("--max-template-factor", "Bytes of a rendered prompt for each position of the context."),
    "body_bytes": ("--max-body", "A request's body."),
    "upload_bytes": ("--max-upload", "A form with a file of speech."),
    "picture_bytes": (
        "--max-picture-memory",
        "Pictures of all requests under way, as files (n x size of each), and frames of GIF and WebP.",
    ),
    "clip_bytes": ("--max-clip-storage", "Files of finished clips; the oldest go for the newest."),
    "clip_seconds": ("--clip-lifetime", "That the file of a finished clip is kept."),
    "json_depth": ("--max-json-depth", "Nesting of a body's JSON."),
    "schema_bytes": ("--max-schema", "A JSON schema or grammar of a request."),
    "schema_depth": ("--max-schema-depth", "Nesting of a JSON schema."),
    "compile_seconds": ("--grammar-timeout", "For the trial of a schema or grammar."),
    "compile_bytes": ("--grammar-memory", "Memory for that trial."),
    "grammar_cache_bytes": ("--grammar-cache", "Compiled grammars that are kept."),
    "headers": ("--max-headers", "Headers of a request."),
    "header_bytes": ("--max-header-size", "All headers of a request."),
    "header_seconds": ("--header-timeout", "From the first byte of the headers to their last."),
    "body_seconds": ("--body-timeout", "From the first byte of the body to its last."),
    "body_rate": ("--min-body-rate", "Bytes a second that a slow body must come at."),
    "idle_seconds": ("--idle-timeout", "Between two requests of a connection."),
    "send_buffer_bytes": ("--send-buffer", "What a client may leave unread before its answer waits."),
    "connections": ("--max-connections", "Open connections; by default what the process's open files allow."),
    "queued_requests": (
        "--max-queued-requests",
        "Requests that wait, by default 4 times --max-requests; of pipelines all in the server, by default 16.",
    ),
    "queued_tokens": ("--max-queued-tokens", "Their prompt tokens; by default 2 times what KV memory holds."),
    "queue_seconds": ("--queue-timeout", "That a request waits for its first step."),
    "total_seconds": ("--request-timeout", "That a request takes in all."),
    "drain_seconds": ("--drain-timeout", "That requests under way get after the first signal."),
    "stalled_seconds": ("--stall-timeout", "Without a step, though there is work, until /health/live is red."),
    "trace_bytes": ("--trace-memory", "Traces of requests that have ended."),
}
"""By the field: the option, and what it bounds."""

OF_PIPELINES = frozenset({"picture_bytes", "clip_bytes", "clip_seconds"})
OF_TEXT = frozenset(
    {
        *("prompts", "stops", "stop_bytes", "top_logprobs", "logit_bias", "messages", "tools", "cache_salt_bytes"),
        *("template_factor", "upload_bytes", "schema_bytes", "schema_depth", "compile_seconds", "compile_bytes"),
        *("grammar_cache_bytes", "queued_tokens", "trace_bytes"),
    }
)
"""Those that only models of one sort can meet."""


def _amount(name: str, value: Any) -> Any:
    """A default as it is written on the command line."""
    if name.endswith(_BYTES):
        unit = next((unit for unit in (20, 10) if value and value % (1 << unit) == 0), 0)
        return f"{value >> unit}{ {20: 'MiB', 10: 'KiB', 0: 'B'}[unit] }"
    return f"{value:g}s" if name.endswith(_SECONDS) else value


def _read(name: str, value: Any) -> Any:
    """What was written, as the settings have it. Raises ValueError."""
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
    """Refuse limits that no request can meet. model: one that is served. writes, draws: whether a language model is
    served, and a pipeline. Raises ValueError.
    """
    of_text, of_pipelines = "language models, and {} draws pictures", "pipelines, and {} is a language model"
    for names, why, served in ((OF_TEXT, of_text, writes), (OF_PIPELINES, of_pipelines, draws)):
        for name in () if served else sorted(names):
            if getattr(flags, name) != _amount(name, _DEFAULTS[name]):
                raise ValueError(f"{LIMITS[name][0]} is of {why.format(model)}; leave it out")


def limits_of(flags: Any) -> dict[str, Any]:
    """The fields of ServerSettings that are limits. Raises ValueError for what is no amount."""
    return {name: _read(name, getattr(flags, name)) for name in LIMITS}
