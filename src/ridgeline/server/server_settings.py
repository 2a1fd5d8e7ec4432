"""The settings of a server: its address, who may use it, and every limit that it enforces on requests."""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ridgeline.core.text.tools import format_named
from ridgeline.util.json_data import json_name, json_object

MAX_VALUE = 2**31 - 1
_MAX_DISK = 2**50

# The limits that a request may violate, by their keys in /v1/models (`public_limits`). All others concern the operator
# only.
_PUBLIC = (
    "choices",
    "prompts",
    "stops",
    "stop_bytes",
    "top_logprobs",
    "logit_bias",
    "messages",
    "tools",
    "cache_salt_bytes",
    "json_depth",
    "body_bytes",
    "upload_bytes",
    "picture_bytes",
    "clip_bytes",
    "clip_seconds",
    "schema_bytes",
    "schema_depth",
    "compile_seconds",
    "headers",
    "header_bytes",
    "header_seconds",
    "body_seconds",
    "idle_seconds",
    "queue_seconds",
    "total_seconds",
    "send_buffer_bytes",
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server; each limit is a flag of `ridgeline serve`.

    Raises:
        ValueError: If a setting is out of range or malformed.
    """

    host: str = "127.0.0.1"
    """The address on which the server listens."""
    port: int = 8000
    """The port on which the server listens; 0 picks a free one."""
    models: tuple[str, ...] = ()
    """The names under which requests select the model; responses contain the first. () means the model's own name."""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """The API keys that grant access; without any, no route requires a key.

    With keys, only health and the files of the web page are served without one.
    """
    insecure: bool = False
    """Whether the server may listen beyond loopback without an API key."""
    allowed_origins: tuple[str, ...] = ()
    """The web origins whose pages may send requests; `*` allows all."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a server on loopback without keys accepts besides loopback names and `host`."""
    strict: bool = False
    """Whether an unknown request field is an error."""
    tool_parser: str | None = None
    """The tool-call format of a model whose chat template does not reveal it."""
    access_log: bool = True
    """Whether to log one line per HTTP request, except health checks."""
    log_format: str = "text"
    """The log format: `text`, or `json` for one JSON object per line."""
    metrics_alias: str | None = None
    """The project whose metric names are exported as well: `vllm`, or None."""
    trace_bytes: int = 32 << 20
    """The memory for traces of finished requests, in bytes."""
    record: str | None = None
    """The path of a new file to record the traffic in, without any text."""
    priced: str = ""
    """The device that steps are priced for if no model runs, which a response header names; "" if a model runs."""

    choices: int = 8
    """The most choices (`n`) of a request."""
    prompts: int = 32
    """The most prompts of a completion request."""
    stops: int = 4
    """The most stop strings of a request."""
    stop_bytes: int = 256
    """The most bytes of a stop string."""
    top_logprobs: int = 20
    """The most alternatives reported per token, for prompt and output log-probabilities."""
    logit_bias: int = 300
    """The most entries of `logit_bias`."""
    messages: int = 1024
    """The most messages of a conversation."""
    tools: int = 128
    """The most tools of a request."""
    cache_salt_bytes: int = 256
    """The most bytes of `cache_salt`."""
    template_factor: int = 32
    """The most bytes of a rendered chat template per position of the context."""

    body_bytes: int = 4 << 20
    """The most bytes of a request body."""
    json_depth: int = 64
    """The deepest nesting of lists and objects in a request body."""
    upload_bytes: int = 25 << 20
    """The most bytes of an uploaded form with an audio file."""
    image_bytes: int = field(default=256 << 20, metadata=json_name("picture_bytes"))
    """The most bytes of image files (n x size) and of frames of GIF and WebP videos, over all requests in progress."""
    video_storage_bytes: int = field(default=1 << 30, metadata=json_name("clip_bytes"))
    """The most bytes of finished video files on disk; the oldest are deleted for new ones."""
    video_lifetime_seconds: float = field(default=3600.0, metadata=json_name("clip_seconds"))
    """The seconds for which a finished video is stored."""

    schema_bytes: int = 16 << 10
    """The most bytes of a JSON schema or grammar."""
    schema_depth: int = 32
    """The deepest nesting of a JSON schema."""
    compile_seconds: float = 2.0
    """The time limit for compiling a schema or grammar on trial, in seconds."""
    compile_bytes: int = 256 << 20
    """The memory limit of the process that compiles grammars on trial, in bytes."""
    grammar_cache_bytes: int = 64 << 20
    """The memory for cached compiled grammars, in bytes."""

    headers: int = 100
    """The most headers of a request."""
    header_bytes: int = 32 << 10
    """The most bytes of a request's target and headers together."""
    header_seconds: float = 5.0
    """The most seconds from the first byte of the headers to their last."""
    body_seconds: float = 30.0
    """The most seconds from the end of the headers to the last byte of the body."""
    body_rate: int = 1024
    """The least average bytes per second of a body, enforced once `header_seconds` have passed."""
    idle_seconds: float = 60.0
    """The most seconds that a connection may be idle, before its first request or between two."""
    send_buffer_bytes: int = 256 << 10
    """The bytes of a response that a client may leave unread before the server waits for it, or ends a stream.

    A client that then reads less than `body_rate` times `body_seconds` within `body_seconds` is disconnected.
    """
    connections: int | None = None
    """The most open connections; None derives it from the open-file limit of the process."""

    queued_requests: int | None = None
    """The most choices of requests that wait for a place in the engine; None allows 4 times the largest batch.

    For image and video pipelines it bounds all requests in the server, and None allows 16.
    """
    queued_tokens: int | None = None
    """The most prompt tokens of all waiting requests; None allows twice the capacity of the KV cache."""
    queue_seconds: float = 60.0
    """The most seconds that a request waits for its first step; not enforced on video jobs.

    The client of a video job does not wait for it.
    """
    total_seconds: float = 600.0
    """The most seconds from the admission of a request to its end; not enforced on video jobs."""

    drain_seconds: float = 30.0
    """The seconds that requests in progress get to finish after the first SIGTERM or SIGINT."""
    stalled_seconds: float = 60.0
    """The seconds without a step, while there are unfinished requests, after which /health/live fails."""

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_number(each.name, getattr(self, each.name))
        if self.tool_parser is not None:
            format_named(self.tool_parser)
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: give one from 1 to 65535, or 0 for a free one")
        for name, choices in (("log_format", ("text", "json")), ("metrics_alias", (None, "vllm"))):
            if getattr(self, name) not in choices:
                known = " or ".join(str(choice) for choice in choices if choice is not None)
                raise ValueError(f"{name} is {getattr(self, name)!r}; give {known}")
        for name, option in (
            ("models", "served_model_name"),
            ("keys", "api_key"),
            ("allowed_origins", "allowed_origins"),
            ("allowed_hosts", "allowed_hosts"),
        ):
            _check_names(option, getattr(self, name))
        if not all(key.isascii() and " " not in key for key in self.keys):
            raise ValueError(
                "an API key has spaces or non-ASCII characters, which HTTP headers cannot contain: give another"
            )
        for origin in self.allowed_origins:
            _check_origin(origin)
        if not (self.keys or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"host is {self.host!r}, which {_reach(self.host)}: give an API key (--api-key-file), or --insecure to "
                "allow access without a key"
            )

    def public_limits(self) -> Mapping[str, int | float]:
        """Return the limits that a request may violate, for /v1/models."""
        known = json_object(self)
        return {name: known[name] for name in _PUBLIC}

    def template_bytes(self, context: int) -> int:
        """Return the most bytes of a rendered prompt for a model with a context of this many positions."""
        return context * self.template_factor


def is_loopback(host: str) -> bool:
    """Return whether an address accepts connections from this machine only; names other than localhost do not count."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _reach(host: str) -> str:
    """Return who can reach a host that is not known to be this machine only."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return "is not known to be this machine only"
    return "other machines can reach"


# 0 is meaningful for these: no stop strings, no waiting, no minimum rate.
_MAY_BE_ZERO = frozenset(
    {
        "port",
        "stops",
        "top_logprobs",
        "logit_bias",
        "tools",
        "cache_salt_bytes",
        "body_rate",
        "queued_requests",
        "queued_tokens",
        "drain_seconds",
        "grammar_cache_bytes",
        "trace_bytes",
    }
)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    lowest = 0 if name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 1e-3
    highest = _MAX_DISK if name == "video_storage_bytes" else MAX_VALUE
    if not (math.isfinite(value) and lowest <= value <= highest):
        raise ValueError(f"{name} is {value}: give {lowest} to {highest}")


def _check_names(name: str, values: tuple[str, ...]) -> None:
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name} is empty; give at least one printable character")
        if not value.isprintable() or value != value.strip():
            raise ValueError(f"{name} has spaces around it or unprintable characters; remove them")


_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def _check_origin(origin: str) -> None:
    """Raise ValueError unless an origin has the form that browsers send: scheme, host and port, without a path.

    Pages of apps and browser extensions have schemes of their own.
    """
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(
            f"allowed origin {origin!r} is not a web origin: give one such as http://host:port, or * for all"
        )
