"""The description of the served model that all routes use."""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.core.text import ChatTemplate, Tokenizer
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.prompt_tokens import unknown_id
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_messages import EngineInfo
from ridgeline.server.errors import ApiError, as_invalid, invalid
from ridgeline.server.event_loop import offload_if_long
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import EngineClient

_SHOWN = 64
"""The most characters of a requested model name in an error."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model, its names and the properties that routes check requests against."""

    names: tuple[str, ...]
    """The names of the model; responses contain the first."""
    texts: TextProcessor
    """The tokenizer and the chat templates of the model."""
    info: EngineInfo
    """The description that the engine gave of the model when the server began."""
    created: int = field(default_factory=lambda: int(time.time()))
    """The time at which the server began to serve the model, in Unix seconds."""
    others: Mapping[str, str] = field(default_factory=dict)
    """The error text for text requests to other models of this server (image pipelines), by their names."""

    @property
    def name(self) -> str:
        """The model name in responses."""
        return self.names[0]

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names that a request may use: those of the model and of its adapters."""
        return (*self.names, *self.info.adapters)

    @property
    def max_sequence_positions(self) -> int:
        """The most positions of a sequence that also fit into the KV cache."""
        return min(self.info.context, self.info.capacity)

    @property
    def reads_audio(self) -> bool:
        """Whether the model's encoder reads audio instead of text."""
        return self.info.encoder_width > 0

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.texts.tokenizer

    @property
    def defaults(self) -> SamplingParams:
        """The sampling parameters of a request that sets none."""
        return self.texts.server_defaults or self.texts.defaults

    def check_name(self, name: str) -> None:
        """Check that a request names this model or one of its adapters; an empty name is accepted.

        Raises:
            ApiError: If the model is not served (404), or is of another kind (400).
        """
        if name and name not in self.all_names:
            raise none_of_these(name, self.all_names, self.others)

    def adapter(self, name: str) -> str:
        """Return the adapter that a model name selects; "" for the base model."""
        return name if name in self.info.adapters else ""

    def response_name(self, name: str) -> str:
        """Return the model name in the response to a request for this name."""
        return self.adapter(name) or self.name

    def check_generates(self) -> None:
        """Raise ApiError if the model does not generate text from text: a speech, embedding or rerank model."""
        if self.reads_audio:
            raise invalid(
                "the model transcribes speech: use /v1/audio/transcriptions", "model", code="unsupported_model"
            )
        if self.info.vectors is not None:
            route = "/v1/rerank" if self.info.vectors.labels else "/v1/embeddings"
            raise invalid(f"the model generates no text: use {route}", "model", code="unsupported_model")

    def template(self, *, tools: bool = False) -> ChatTemplate:
        """Return the chat template, for a conversation with or without tools.

        Raises:
            ApiError: If the model has no chat template, or several without a default.
        """
        if self.texts.templates is None:
            raise invalid(
                "messages: the model has no chat template; send a prompt to /v1/completions instead",
                "messages",
                code="no_chat_template",
            )
        try:
            return self.texts.templates.pick(tools=tools)
        except ValueError:
            raise invalid(
                "messages: the model has several chat templates and no default; send a prompt to /v1/completions",
                "messages",
                code="no_chat_template",
            ) from None

    async def encode(self, text: str, *, add_special: bool = True, among: int = 0) -> list[int]:
        """Return the token ids of a text, in which the spelling of a control token is ordinary text.

        Args:
            text: The text.
            add_special: Whether the tokenizer adds its own tokens (BOS).
            among: The characters of all texts that are encoded at the same time, which decides whether a thread is
                used.

        Raises:
            ApiError: If the text is too long for the context or cannot be encoded.
        """
        return await offload_if_long(max(len(text), among), lambda: self._encode(text, add_special))

    def _encode(self, text: str, add_special: bool) -> list[int]:
        with as_invalid("prompt", code="context_length_exceeded"):
            self.tokenizer.check_length(text, self.info.context)
        with as_invalid("prompt"):
            return self.tokenizer.encode(text, add_special=add_special, parse_special=False)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raise ApiError if a token id is not in the model's vocabulary."""
        unknown = unknown_id(ids, self.info.vocabulary)
        if unknown is not None:
            raise invalid(
                f"{param}: token id {unknown} is out of vocabulary; the model has ids 0 to {self.info.vocabulary - 1}",
                param,
            )


def no_such_model(name: str, names: Iterable[str]) -> ApiError:
    """Return the 404 error for a model that is not served, which lists the names of those that are."""
    message = f"no model {name[:_SHOWN]!r} is served here; the models of this server are {', '.join(names)}"
    return ApiError(404, message, param="model", code="model_not_found")


def none_of_these(name: str, names: Iterable[str], others: Mapping[str, str]) -> ApiError:
    """Return the error for a request that names none of a route's models: 400 for another kind of model, else 404.

    Args:
        name: The model that the request names.
        names: The models of the route.
        others: The error texts for the server's other models, by their names.
    """
    if name in others:
        return invalid(f"{name} {others[name]}", "model", code="unsupported_model")
    return no_such_model(name, (*names, *others))


def served_model(llm: EngineClient, settings: ServerSettings, others: Mapping[str, str] | None = None) -> ServedModel:
    """Return the description of an engine's model under the names in the settings.

    Args:
        llm: The engine.
        settings: The settings of the server.
        others: The error texts for the server's other models, as in `ServedModel`.

    Raises:
        ValueError: If an adapter has the same name as a model.
    """
    assert settings.models, "ServerSettings.models must name the served model"
    texts, info = llm.texts, llm.info
    for template in texts.templates.by_name.values() if texts.templates is not None else ():
        _ = template.probe.calls  # probed at load, so that the first request does not wait for it
    names, others = settings.models, others or {}
    if both := {*names, *others} & set(info.adapters):
        raise ValueError(
            f"{min(both)!r} is both the name of the model and of an adapter: give the adapter another name"
        )
    return ServedModel(names, texts, info, others=others)


def cache_salt(salt: str | None, settings: ServerSettings) -> bytes:
    """Return the hash of a request's `cache_salt`; only requests with the same salt share prefix-cache entries.

    Raises:
        ApiError: If the salt is empty or too long.
    """
    if salt is None:
        return b""
    data = salt.encode("utf-8", "surrogatepass")
    if not 0 < len(data) <= settings.cache_salt_bytes:
        raise invalid(f"cache_salt: give 1 to {settings.cache_salt_bytes} bytes", "cache_salt")
    return hashlib.sha256(b"salt" + data).digest()
