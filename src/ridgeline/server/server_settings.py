"""ServerSettings: where the server listens, who may ask it, and every limit that it holds them to."""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ridgeline.core.text.tools import format_named

MAX_VALUE = 2**31 - 1
_MAX_DISK = 2**50

# The limits that a request may meet: these are shown to clients (`public_limits`), the rest is the operator's business.
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
    """How a server is set up. All limits are flags of `ridgeline serve`. Raises ValueError for what makes no sense.

    host, port: where it listens; port 0 takes a free one. models: names that the model answers to; the first is what
    answers say. keys: API keys, one of which every route but /health wants; none wants none. insecure: listen beyond
    loopback without a key. allowed_origins: web origins whose pages may ask, `*` for all. allowed_hosts: names besides
    loopback's and `host` by which a keyless server on loopback may be called. strict: a field that nobody knows is an
    error. tool_parser: the format of tool calls, where it is not to be found in the chat template. access_log: a line
    for each request. log_format: `text`, or `json` for a JSON object a line. metrics_alias:
    `vllm` has the metrics that vLLM has told under its names as well. trace_bytes: of the traces of requests that have
    ended. record: a file that does not exist yet, for what traffic comes, without text. priced: the card that steps are
    priced for where no model runs, which every answer says; "" where one does.

    Of one request -- choices: `n`. prompts: of a completion request. stops, stop_bytes: stop strings and the bytes of
    each. top_logprobs, logit_bias, messages, tools: entries. cache_salt_bytes: of `cache_salt`. template_factor: bytes
    of a rendered template for each position of the context.

    Of JSON -- body_bytes: of a request's body. json_depth: nesting of lists and objects.

    Of speech -- upload_bytes: of a form with a file.

    Of pictures -- picture_bytes: that the files of all requests under way may have at most, n x size of each, and the
    frames of clips that are no MP4.

    Of clips -- clip_bytes: of the files of finished ones, the oldest of which go for the newest. clip_seconds: that one
    is kept.

    Of structured output -- schema_bytes, schema_depth: of its source. compile_seconds, compile_bytes: time and memory
    that the trial takes. grammar_cache_bytes: of compiled grammars kept.

    Of a connection -- headers, header_bytes: of a request. header_seconds, body_seconds: from the first byte of the
    headers to their last, and of the body. body_rate: bytes a second that a body must come at on average once
    header_seconds have passed. idle_seconds: between requests. send_buffer_bytes: that a client leaves unread before
    the answer waits for it; one that then reads slower than body_rate over body_seconds is cut off. connections: open
    at a time; None for no limit.

    Of the queue -- queued_requests: requests in the server that the engine has no place for; None for 4 times the
    largest batch; of pipelines all that are in the server, None for 16. queued_tokens: prompt tokens of all that wait;
    None for 2 times what KV memory holds. queue_seconds: that a request waits for its first step. total_seconds: that
    it takes in all. Neither holds for a clip, whose client does not wait.

    Of the process -- drain_seconds: that requests under way get to finish after SIGTERM. stalled_seconds: without a
    step, though there is work, after which /health/live is red.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    models: tuple[str, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    strict: bool = False
    tool_parser: str | None = None
    access_log: bool = True
    log_format: str = "text"
    metrics_alias: str | None = None
    trace_bytes: int = 32 << 20
    record: str | None = None
    priced: str = ""

    choices: int = 8
    prompts: int = 32
    stops: int = 4
    stop_bytes: int = 256
    top_logprobs: int = 20
    logit_bias: int = 300
    messages: int = 1024
    tools: int = 128
    cache_salt_bytes: int = 256
    template_factor: int = 32

    body_bytes: int = 4 << 20
    json_depth: int = 64
    upload_bytes: int = 25 << 20
    picture_bytes: int = 256 << 20
    clip_bytes: int = 1 << 30
    clip_seconds: float = 3600.0

    schema_bytes: int = 16 << 10
    schema_depth: int = 32
    compile_seconds: float = 2.0
    compile_bytes: int = 256 << 20
    grammar_cache_bytes: int = 64 << 20

    headers: int = 100
    header_bytes: int = 32 << 10
    header_seconds: float = 5.0
    body_seconds: float = 30.0
    body_rate: int = 1024
    idle_seconds: float = 60.0
    send_buffer_bytes: int = 256 << 10
    connections: int | None = None

    queued_requests: int | None = None
    queued_tokens: int | None = None
    queue_seconds: float = 60.0
    total_seconds: float = 600.0

    drain_seconds: float = 30.0
    stalled_seconds: float = 60.0

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_number(each.name, getattr(self, each.name))
        if self.tool_parser is not None:
            format_named(self.tool_parser)
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; give one from 1 to 65535, or 0 for a free one")
        for name, choices in (("log_format", ("text", "json")), ("metrics_alias", (None, "vllm"))):
            if getattr(self, name) not in choices:
                known = " or ".join(str(choice) for choice in choices if choice is not None)
                raise ValueError(f"{name} is {getattr(self, name)!r}; give {known}")
        for name in ("models", "keys", "allowed_origins", "allowed_hosts"):
            _check_names(name, getattr(self, name))
        if not all(key.isascii() and " " not in key for key in self.keys):
            raise ValueError("an API key has blanks or characters beyond ASCII, which no header carries; give another")
        for origin in self.allowed_origins:
            _check_origin(origin)
        if not (self.keys or self.insecure or is_loopback(self.host)):
            raise ValueError(
                f"host {self.host!r} can be reached from other machines: "
                "give an API key (--api-key-file), or --insecure to let everybody in"
            )

    def public_limits(self) -> Mapping[str, int | float]:
        """The limits that a request may meet, for /v1/models."""
        return {name: getattr(self, name) for name in _PUBLIC}

    def template_bytes(self, context: int) -> int:
        """Bytes that a rendered prompt may have, for a model of so many positions."""
        return context * self.template_factor


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost is taken to be reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# 0 is a value of its own for these: no stop strings, no waiting, no rate asked for.
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
    highest = _MAX_DISK if name == "clip_bytes" else MAX_VALUE
    if not (math.isfinite(value) and lowest <= value <= highest):
        raise ValueError(f"{name} is {value}; it must be from {lowest} to {highest}")


def _check_names(name: str, values: tuple[str, ...]) -> None:
    if not all(isinstance(value, str) and value and value.isprintable() and value == value.strip() for value in values):
        raise ValueError(f"{name} has an entry that is empty, or has blanks around it or characters that do not print")


_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def _check_origin(origin: str) -> None:
    """As a browser writes it: scheme, host, port; no path. Pages in an app or extension have schemes of their own."""
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(f"allowed origin {origin!r} is not a web origin; give one like http://host:port, or * for all")
