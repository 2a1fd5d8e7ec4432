"""The fields of requests as msgspec structs, and the rules for all other fields.

A field belongs to one of four groups. The structs in this module define the supported fields, with types and bounds.
`NEUTRAL` fields are accepted, because they change no response. `REFUSED` fields would change the response and are not
supported, so they are an error unless their value is the default behavior. All others are unknown: the response lists
them as ignored, or a strict server rejects them.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ridgeline.server.errors import invalid
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.type_errors import explain_type

Strings = str | list[str]


class StreamOptions(msgspec.Struct, frozen=True):
    """OpenAI's options of a streamed response."""

    include_usage: bool = False
    """Whether a last chunk without choices has the token usage."""
    continuous_usage_stats: bool = False
    """Whether every chunk has the token usage so far."""
    include_obfuscation: bool = False
    """Whether chunks are padded to hide the length of their text (stream_chunks.py)."""


class GenerationFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that completion and chat requests share; a sampling field that is None has the model's default.

    The defaults come from the model's generation_config.json. The default of `max_tokens` depends on the route.
    """

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1)] = 1
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Strings | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    thinking_token_budget: int | None = None

    prompt_logprobs: Annotated[int, Meta(ge=0)] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    return_progress: bool = False
    cache_salt: str | None = None
    service_tier: str | None = None
    """The service class of the request, which recordings store; all classes are served alike."""


class CompletionFields(GenerationFields, kw_only=True, frozen=True):
    """The fields of a /v1/completions request."""

    prompt: Any = None
    """The prompt in one of four forms; checked in completions.py, whose error messages are better than msgspec's."""
    add_special_tokens: bool = True
    echo: bool = False
    logprobs: Annotated[int, Meta(ge=0)] | None = None


class ChatFields(GenerationFields, kw_only=True, frozen=True):
    """The fields of a /v1/chat/completions request, and of its /render variant, which generates nothing."""

    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    """Whether the tokenizer's own tokens (BOS) are added to the output of the template."""
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    include_reasoning: bool = True


class TokenizeFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a /tokenize request: a prompt, or a conversation."""

    model: str = ""
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer's own tokens (BOS) are added; None means yes for a prompt and no for a conversation."""
    return_token_strs: bool = False
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


Conversation = ChatFields | TokenizeFields
"""The request fields from which the chat template renders a prompt."""


class DetokenizeFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a /detokenize request."""

    model: str = ""
    tokens: list[int] = []


NEUTRAL = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "session_id",
        "truncation_side",
    }
)
"""The request fields that are accepted with any value because they change no response."""

REFUSED: Mapping[str, tuple[object, ...]] = {
    "access_programs": (),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "audio": (),
    "background": (False,),
    "background_options": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "context_management": (),
    "continue_final_message": (False,),
    "conversation": (),
    "documents": ([],),
    "ec_transfer_params": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "image": (),
    "input_reference": (),
    "include": ([],),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "max_completion_tokens": (),
    "max_tool_calls": (),
    "media_io_kwargs": ({},),
    "messages": (),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "previous_response_id": (),
    "priority": (0,),
    "prompt": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "repetition_detection": (),
    "return_mm_kwargs": (True, False),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "routed_experts_prompt_start": (0,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "stream_interval": (1,),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (),
    "truncate_prompt_tokens": (),
    "truncation": ("disabled",),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "web_search_options": (),
}
"""The unsupported fields of OpenAI and vLLM, with the values that request nothing special (null always does).

A route whose struct has a field of this list supports it.
"""

_ROUTES = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}
"""The routes of the fields with the input of a request, for requests that another route got."""

_INPUTS = ("prompt", "messages", "input", "query")
"""The fields that hold what a request is about; each route has one of them."""

_CAPS: tuple[tuple[str, str], ...] = (
    ("n", "choices"),
    ("top_logprobs", "top_logprobs"),
    ("prompt_logprobs", "top_logprobs"),
    ("logit_bias", "logit_bias"),
    ("messages", "messages"),
    ("tools", "tools"),
    ("stop", "stops"),
)
"""The fields whose value or number of entries is bounded, with the setting that bounds each."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def read_fields(
    body: object, kind: type[_Struct], settings: ServerSettings, *, text: bool = False
) -> tuple[_Struct, tuple[str, ...]]:
    """Convert a request body to the struct of its route; return it with the names of the unknown fields.

    Args:
        body: The decoded body.
        kind: The struct of the route.
        settings: The limits of the server.
        text: Whether values are text, as in a form, and are converted to numbers if necessary.

    Raises:
        ApiError: If a field is invalid; the error names the field.
    """
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    given = {name: value for name, value in body.items() if value is not None}
    unknown = _unknown(given, {field.name for field in msgspec.structs.fields(kind)})
    if unknown and settings.strict:
        raise invalid(f"unknown field {unknown[0]!r}", unknown[0], code="unknown_field")
    _check_caps(given, settings)
    try:
        fields = msgspec.convert(given, kind, str_keys=True, strict=not text)
    except msgspec.ValidationError as error:
        place, message = explain_type(error, given, kind, text=text)
        raise invalid(message, re.split(r"[.\[]", place)[0] or None) from None
    if isinstance(fields, GenerationFields):
        if fields.stream_options is not None and not fields.stream:
            raise invalid("stream_options: they need stream: true", "stream_options")
        _check_stops(stop_strings(fields.stop), settings)
    if isinstance(fields, CompletionFields) and (fields.logprobs or 0) > settings.top_logprobs:
        raise invalid(f"logprobs: give at most {settings.top_logprobs}", "logprobs")
    return fields, unknown


def _unknown(given: Mapping[str, object], taken: set[str]) -> tuple[str, ...]:
    """Return the names of the unknown fields, or raise ApiError for an unsupported one."""
    unknown = []
    for name, value in given.items():
        if name in taken or name in NEUTRAL:
            continue
        if name not in REFUSED:
            unknown.append(name)
        elif value not in REFUSED[name]:
            raise invalid(f"{name} {_unsupported(name, taken)}", name, code="unsupported_field")
    return tuple(unknown)


def _unsupported(name: str, taken: set[str]) -> str:
    """Return the problem of an unsupported field, and the fix: the route's own field if another route has this one."""
    own = next((each for each in _INPUTS if each in taken), None)
    if name in _ROUTES and own is not None:
        return f"belongs to {_ROUTES[name]}; give {own} here"
    return "is not supported here; leave it out"


def _check_caps(given: Mapping[str, object], settings: ServerSettings) -> None:
    """Check the sizes of fields before their types, because checking the types of 200,000 entries takes a second."""
    for name, limit in _CAPS:
        value, most = given.get(name), getattr(settings, limit)
        size = len(value) if isinstance(value, dict | list) else value if isinstance(value, int) else 0
        if size > most:
            raise invalid(f"{name}: the limit is {most}, but the request has {size}", name)


def stop_strings(stop: Strings | None) -> tuple[str, ...]:
    """Return the stop strings of a request, which may also give a single one."""
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def _check_stops(stops: tuple[str, ...], settings: ServerSettings) -> None:
    if len(stops) > settings.stops:
        raise invalid(f"stop: give at most {settings.stops} strings", "stop")
    for stop in stops:
        if not 0 < len(stop.encode("utf-8", "replace")) <= settings.stop_bytes:
            raise invalid(f"stop: each string must have 1 to {settings.stop_bytes} bytes", "stop")
