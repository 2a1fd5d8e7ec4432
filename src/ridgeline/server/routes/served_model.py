"""ServedModel: what routes know of the model behind them."""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.core.text import ChatTemplate, Tokenizer
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.prompt_tokens import unknown_id
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_messages import VectorInfo
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.event_loop import offload_if_long
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import EngineClient


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under the names that it answers to; the first is what answers say.

    context: positions that a sequence may have. room: those of them that KV memory holds. vocabulary: how many token
    ids the model has. dtype: the number format of its weights. adapters: those that are loaded, by the names that
    requests choose them by. vectors: what its answers are, where they are no text. encoder: positions that its encoder
    takes of a prompt, 0 where it has none. hears: the encoder reads sound. created: when it was put up, in Unix
    seconds. others: by the names of the server's models of another sort, what is said to who asks them for text.
    """

    names: tuple[str, ...]
    texts: TextProcessor
    context: int
    room: int
    vocabulary: int
    dtype: str
    adapters: tuple[str, ...] = ()
    vectors: VectorInfo | None = None
    encoder: int = 0
    hears: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def all_names(self) -> tuple[str, ...]:
        """What a request may ask for: the model, and each adapter."""
        return (*self.names, *self.adapters)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.texts.tokenizer

    @property
    def defaults(self) -> SamplingParams:
        """The sampling of a request that states none."""
        return self.texts.server_defaults or self.texts.defaults

    def check_name(self, name: str) -> None:
        """Raises ApiError: 404 for a model that is not served, 400 for one of another sort. A request that names none
        means this one.
        """
        if name and name not in self.all_names:
            raise none_of_these(name, self.all_names, self.others)

    def adapter(self, name: str) -> str:
        """The adapter that a request for this name asks; "" for the model as it is."""
        return name if name in self.adapters else ""

    def called(self, name: str) -> str:
        """What the answer to a request for this name says that it is from."""
        return self.adapter(name) or self.name

    def check_generates(self) -> None:
        """Raises ApiError for a model that writes no text, or none for a text."""
        if self.hears:
            raise invalid("the model reads sound; ask /v1/audio/transcriptions", "model", code="unsupported_model")
        if self.vectors is not None:
            route = "/v1/rerank" if self.vectors.labels else "/v1/embeddings"
            raise invalid(f"the model writes no text; ask {route}", "model", code="unsupported_model")

    def template(self, *, tools: bool = False) -> ChatTemplate:
        """The chat template. Raises ApiError where the model has none."""
        if self.texts.templates is None:
            raise invalid(
                "the model has no chat template; give the server one (--chat-template FILE), or use /v1/completions",
                "messages",
                code="no_chat_template",
            )
        return self.texts.templates.pick(tools=tools)

    async def encode(self, text: str, *, add_special: bool = True, among: int = 0) -> list[int]:
        """Token ids of a text in which control tokens are text. among: characters of all that are encoded with it.
        Raises ApiError.
        """
        return await offload_if_long(max(len(text), among), lambda: self._encode(text, add_special))

    def _encode(self, text: str, add_special: bool) -> list[int]:
        try:
            self.tokenizer.check_length(text, self.context)
        except ValueError as error:
            raise invalid(str(error), "prompt", code="context_length_exceeded") from None
        try:
            return self.tokenizer.encode(text, add_special=add_special, parse_special=False)
        except ValueError as error:
            raise invalid(str(error), "prompt") from None

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises ApiError for ids that the model does not have."""
        unknown = unknown_id(ids, self.vocabulary)
        if unknown is not None:
            raise invalid(
                f"{param}: token id {unknown} is out of vocabulary; the model has ids 0 to {self.vocabulary - 1}", param
            )


def no_such_model(names: Iterable[str]) -> ApiError:
    """The answer to who asks for a model that is not among these names."""
    message = f"no such model is served here; this server has {', '.join(names)}"
    return ApiError(404, message, param="model", code="model_not_found")


def none_of_these(name: str, names: Iterable[str], others: Mapping[str, str]) -> ApiError:
    """The answer to who asks a route for a model that is none of its `names`. others: what is said of the server's
    other models, by theirs.
    """
    if name in others:
        return invalid(f"{name} {others[name]}", "model", code="unsupported_model")
    return no_such_model((*names, *others))


def served_model(llm: EngineClient, settings: ServerSettings, others: Mapping[str, str] | None = None) -> ServedModel:
    """The model of an engine, under the names of the settings. others: as ServedModel. Raises ValueError for an adapter
    that is called as a model is.
    """
    assert settings.models, "a server says which model it has"
    texts, info = llm.texts, llm.info
    for template in texts.templates.by_name.values() if texts.templates is not None else ():
        _ = template.probe.calls  # probed at load, so that the first request does not wait for it
    room = min(info.context, info.capacity)
    names, others = settings.models, others or {}
    if both := {*names, *others} & set(info.adapters):
        raise ValueError(f"{min(both)!r} is the name of the model and of an adapter; give the adapter another")
    encoder, hears = info.encoder_context, info.encoder_width > 0
    return ServedModel(
        *(names, texts, info.context, room, info.vocabulary, info.dtype, info.adapters, info.vectors, encoder, hears),
        others=others,
    )


def cache_salt(salt: str | None, settings: ServerSettings) -> bytes:
    """What separates the prefix cache of those who share a salt from everybody else's. Raises ApiError."""
    if salt is None:
        return b""
    data = salt.encode("utf-8", "surrogatepass")
    if not 0 < len(data) <= settings.cache_salt_bytes:
        raise invalid(f"cache_salt: it has 1 to {settings.cache_salt_bytes} bytes", "cache_salt")
    return hashlib.sha256(b"salt" + data).digest()
