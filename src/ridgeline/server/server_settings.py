"""The settings of a server: its address, who may use it, and every limit that it enforces on requests."""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from ridgeline.core.text.tools import format_named

_LIMIT = "limit"  # key in the metadata of a field
_MAX_VALUE = 2**31 - 1
_MAX_DISK = 2**50

Models = Literal["all", "language", "diffusion"]
"""The kinds of models."""


@dataclass(frozen=True, slots=True)
class ServerLimit:
    """A limit of a server, in addition to the name, the type and the default of its field."""

    option: str
    """The option of `ridgeline serve` that sets the limit."""
    help: str
    """The help text of the option, and the description of the limit."""
    models: Models = "all"
    """The models that the limit applies to."""
    internal: bool = False
    """Whether /v1/models leaves the limit out, because it concerns the operator and not the clients."""
    zero: bool = False
    """Whether 0 is allowed: no stop strings, no waiting, no minimum rate."""
    highest: int = _MAX_VALUE
    """The maximum value."""
    key: str = ""
    """The key in /v1/models, if it is not the name of the field."""

    def check(self, name: str, value: float) -> None:
        """Raise ValueError for a value of the limit that is out of range."""
        lowest = 0 if self.zero else 1 if isinstance(value, int) else 1e-3
        if not (math.isfinite(value) and lowest <= value <= self.highest):
            raise ValueError(f"{name} is {value}: give {lowest} to {self.highest}")


def _limit(default: float | None, option: str, text: str, **more: Any) -> Any:
    """Return a field of ServerSettings that is a limit; `more` has further fields of ServerLimit."""
    return field(default=default, metadata={_LIMIT: ServerLimit(option, text, **more)})


_text_limit, _media_limit = partial(_limit, models="language"), partial(_limit, models="diffusion")


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
    open_objects: bool = False
    """Whether objects of a JSON schema may have properties that it does not name, if it does not forbid them."""
    tool_parser: str | None = None
    """The tool-call format of a model whose chat template does not reveal it."""
    access_log: bool = True
    """Whether to log one line per HTTP request, except health checks."""
    log_format: str = "text"
    """The log format: `text`, or `json` for one JSON object per line."""
    metrics_alias: str | None = None
    """The project whose metric names are exported as well: `vllm`, or None."""
    record: str | None = None
    """The path of a new file to record the traffic in, without any text."""
    priced: str = ""
    """The device that steps are priced for if no model runs, which a response header names; "" if a model runs."""

    choices: int = _limit(8, "--max-choices", "The maximum number of choices (n) per request.")
    prompts: int = _text_limit(32, "--max-prompts", "The maximum number of prompts per completion request.")
    stops: int = _text_limit(4, "--max-stops", "The maximum number of stop strings per request.", zero=True)
    stop_bytes: int = _text_limit(256, "--max-stop-size", "The maximum size of a stop string.")
    top_logprobs: int = _text_limit(
        20, "--max-top-logprobs", "The maximum number of alternatives per token (top_logprobs).", zero=True
    )
    logit_bias: int = _text_limit(300, "--max-logit-bias", "The maximum number of logit_bias entries.", zero=True)
    messages: int = _text_limit(1024, "--max-messages", "The maximum number of messages in a conversation.")
    tools: int = _text_limit(128, "--max-tools", "The maximum number of tools per request.", zero=True)
    cache_salt_bytes: int = _text_limit(
        256, "--max-cache-salt", "The maximum size of a request's cache_salt.", zero=True
    )
    template_factor: int = _text_limit(
        32,
        "--max-template-factor",
        "The maximum size of a rendered prompt, in bytes per position of the context.",
        internal=True,
    )

    body_bytes: int = _limit(4 << 20, "--max-body", "The maximum size of a request body.")
    upload_bytes: int = _text_limit(25 << 20, "--max-upload", "The maximum size of an upload with an audio file.")
    image_bytes: int = _media_limit(
        256 << 20,
        "--max-image-memory",
        "The memory for the images of all running requests: their files (n x size of each), and the frames of GIF and "
        "WebP.",
        key="picture_bytes",
    )
    video_storage_bytes: int = _media_limit(
        1 << 30,
        "--max-video-storage",
        "The disk space for finished videos; the oldest are deleted first.",
        key="clip_bytes",
        highest=_MAX_DISK,
    )
    video_lifetime_seconds: float = _media_limit(
        3600.0, "--video-lifetime", "The time after which a finished video is deleted.", key="clip_seconds"
    )
    json_depth: int = _limit(64, "--max-json-depth", "The maximum nesting depth of a JSON body.")

    schema_bytes: int = _text_limit(16 << 10, "--max-schema", "The maximum size of a JSON schema or grammar.")
    schema_depth: int = _text_limit(32, "--max-schema-depth", "The maximum nesting depth of a JSON schema.")
    compile_seconds: float = _text_limit(
        2.0, "--grammar-timeout", "The time limit for compiling a new schema or grammar."
    )
    compile_bytes: int = _text_limit(
        256 << 20, "--grammar-memory", "The memory limit for compiling a new schema or grammar.", internal=True
    )
    """The bytes that compiling a grammar may take, in the process that compiles new grammars on trial."""
    grammar_cache_bytes: int = _text_limit(
        64 << 20,
        "--grammar-cache",
        "The memory for compiled grammars that are kept for later requests.",
        internal=True,
        zero=True,
    )

    headers: int = _limit(100, "--max-headers", "The maximum number of headers per request.")
    header_bytes: int = _limit(32 << 10, "--max-header-size", "The maximum size of all headers of a request.")
    """The maximum size of all headers of a request in bytes, its target included."""
    header_seconds: float = _limit(
        5.0, "--header-timeout", "The time limit for a request's headers, from their first byte to the last."
    )
    body_seconds: float = _limit(
        30.0, "--body-timeout", "The time limit for a request's body, from its first byte to the last."
    )
    body_rate: int = _limit(
        1024,
        "--min-body-rate",
        "The minimum rate, in bytes per second, of a body that arrives slowly.",
        internal=True,
        zero=True,
    )
    """The minimum average bytes per second of a body, once `header_seconds` have passed."""
    idle_seconds: float = _limit(60.0, "--idle-timeout", "The time after which an idle connection is closed.")
    """The seconds after which a connection without a request, the first or the next one, is closed."""
    send_buffer_bytes: int = _limit(
        256 << 10, "--send-buffer", "The unread data per client at which its response pauses."
    )
    """The bytes that a client may leave unread before its response pauses, or its stream ends.

    A client that then reads less than `body_rate` times `body_seconds` within `body_seconds` is disconnected.
    """
    connections: int | None = _limit(
        None,
        "--max-connections",
        "The maximum number of connections; by default what the limit of open files allows.",
        internal=True,
    )

    queued_requests: int | None = _limit(
        None,
        "--max-queued-requests",
        "The maximum number of waiting requests; by default 4 times --max-requests. For diffusion pipelines it counts "
        "all requests in the server, 16 by default.",
        internal=True,
        zero=True,
    )
    """The maximum number of waiting requests; each choice of a request counts as one."""
    queued_tokens: int | None = _text_limit(
        None,
        "--max-queued-tokens",
        "The maximum number of waiting prompt tokens; by default 2 times the KV cache's capacity.",
        internal=True,
        zero=True,
    )
    queue_seconds: float = _limit(60.0, "--queue-timeout", "The maximum time that a request waits for its first step.")
    """The seconds that a request waits at most; video jobs, whose clients do not wait, have no such limit."""
    total_seconds: float = _limit(600.0, "--request-timeout", "The maximum time of a request in total.")
    """The maximum seconds from a request's admission to its end; video jobs have no such limit."""

    drain_seconds: float = _limit(
        30.0,
        "--drain-timeout",
        "The time that running requests have to finish after the first signal.",
        internal=True,
        zero=True,
    )
    stalled_seconds: float = _limit(
        60.0,
        "--stall-timeout",
        "The time without a step, while there is work, after which /health/live fails.",
        internal=True,
    )
    trace_bytes: int = _text_limit(
        32 << 20, "--trace-memory", "The memory for the traces of finished requests.", internal=True, zero=True
    )

    def __post_init__(self) -> None:
        for name, limit in server_limits().items():
            if (value := getattr(self, name)) is not None:
                limit.check(name, value)
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
        public = ((name, limit) for name, limit in server_limits().items() if not limit.internal)
        return {limit.key or name: getattr(self, name) for name, limit in public}

    def template_bytes(self, context: int) -> int:
        """Return the most bytes of a rendered prompt for a model with a context of this many positions."""
        return context * self.template_factor


def server_limits() -> dict[str, ServerLimit]:
    """Return the limits of ServerSettings by the names of their fields."""
    return {each.name: each.metadata[_LIMIT] for each in fields(ServerSettings) if _LIMIT in each.metadata}


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
