"""Texts: a model's side of text. What makes ids of prompts and text of ids, apart from the engine, which knows ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.embedding_config import EmbeddingConfig, read_embedding
from ridgeline.core.checkpoint.source import as_source
from ridgeline.core.checkpoint.source_tokenizer import templates_of, tokenizer_of
from ridgeline.core.models import ModelRefused, family_of
from ridgeline.core.text import ChatTemplates, Tokenizer, read_template, tags_of
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.params import SamplingParams, unfollowed_keys
from ridgeline.engine.prompt_tokens import token_ids

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

_EMPTY = "the prompt is empty; give at least one character or one token id"


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """A tokenizer and what goes with it.

    templates: None where the model has no chat template. defaults: sampling as the folder's generation_config.json has
    it. most_tokens: what that file has for the tokens of an answer, None where it does not say. unfollowed: what it
    asks for beyond that. reasoning: the tags between which the model writes its thoughts; () for none, None for those
    that its templates write. start: what a decoder begins with whose encoder reads the prompt; () where the prompt is
    what is continued. embedding: how the folder says that a text becomes a vector; None where it does not.
    """

    tokenizer: Tokenizer
    templates: ChatTemplates | None
    defaults: SamplingParams
    unfollowed: tuple[str, ...] = ()
    most_tokens: int | None = None
    reasoning: tuple[str, ...] | None = None
    start: tuple[int, ...] = ()
    embedding: EmbeddingConfig | None = None
    server_defaults: SamplingParams | None = None
    """The server's sampling for a request that states none; None for `defaults`. If the file has no `do_sample`, this
    is the file's temperature or 1, as in vLLM and OpenAI, while `defaults` is greedy, as in transformers."""

    def decoder_prompt(self, ids: Sequence[int]) -> Sequence[int]:
        """What is continued where a prompt has these ids."""
        return self.start or ids

    def check_request(self, spec: GenerationRequest) -> None:
        """Check what is known of a request before the engine has it. Raises ValueError for an empty prompt, and as
        `check`.
        """
        self.check(spec.params)
        if not spec.prompt:
            raise ValueError(_EMPTY)

    def for_engine(self, spec: GenerationRequest) -> GenerationRequest:
        """Return a request as the engine runs it; mostly the same object.

        Where an encoder reads the prompt, the engine gets it as the encoder's input. Stop strings are the transcript's.
        """
        changes: dict[str, Any] = {}
        if self.start:
            changes = {"prompt": self.start, "encoder": spec.encoder or spec.prompt}
        if spec.params.stop:
            changes["params"] = replace(spec.params, stop=())
        return structs.replace(spec, **changes) if changes else spec

    def check(self, params: SamplingParams) -> None:
        """Raises ValueError for what a model of this sort cannot say of a prompt."""
        if self.start and params.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs is not for prompts that an encoder reads, which predicts none of them")

    def new_output_processor(self) -> OutputProcessor:
        """A transcript for this model's tokens; reasoning is split off where its template writes the tags."""
        return OutputProcessor(self.tokenizer, self.reasoning_tags)

    @property
    def reasoning_tags(self) -> tuple[str, str] | None:
        """The thinking tags that are stated, or else that one of the model's templates writes; None for none."""
        if self.reasoning is not None:
            return (self.reasoning[0], self.reasoning[1]) if self.reasoning else None
        by_name = self.templates.by_name if self.templates is not None else {}
        found = (tags_of(template.source) for template in by_name.values())
        return next((tags for tags in found if tags is not None), None)

    def encode(self, prompt: Prompt, context: int) -> list[int]:
        """Token ids of a prompt for a model of so many positions; ids stay as they are. Control tokens written in the
        text are text. Raises ValueError for an empty prompt, and for a text far longer than the context.
        """
        ids = prompt if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise ValueError(_EMPTY)
        if not isinstance(ids, str):
            return list(ids)
        self.tokenizer.check_length(ids, context)  # megabytes take seconds to encode, and a hundred times their memory
        return self.tokenizer.encode(ids, parse_special=False)

    def encode_chat(self, messages: Messages, context: int, **template: Any) -> list[int]:
        """Token ids of a conversation, ready to be answered; `template`: variables that the chat template reads. Raises
        ValueError if the model has none, or it refuses the messages.
        """
        if self.templates is None:
            raise ValueError("the model has no chat template; use generate with a prompt of your own")
        if not isinstance(messages, Sequence) or not all(isinstance(each, Mapping) for each in messages):
            raise ValueError('a conversation is a list of messages like {"role": "user", "content": "hi"}; give that')
        picked = self.templates.pick(tools=bool(template.get("tools")))
        return picked.encode(messages, most_tokens=context, **template).ids


def load_text_processor(
    model: ModelSource | str,
    *,
    or_bytes: bool = False,
    chat_template: str | None = None,
    reasoning: tuple[str, ...] | None = None,
) -> TextProcessor:
    """The texts of a model (a source, or a name as `open_source` takes it), without its weights. or_bytes: bytes where
    there is no tokenizer. chat_template: a file with one, instead of the folder's. reasoning: as in Texts. Raises
    ModelRefused (a ValueError) in one line, ValueError for a file that holds no template.
    """
    source = as_source(model)
    embedding = read_embedding(source)
    tokenizer = tokenizer_of(source, or_bytes=or_bytes)
    if chat_template is None:
        templates = templates_of(source, tokenizer)
    else:
        templates = read_template(Path(chat_template), tokenizer)
    _check(templates, chat_template or str(source.folder))
    try:
        defaults = SamplingParams.from_generation_config(source.generation)
        server_defaults = defaults
        if source.generation.get("do_sample") is None:
            server_defaults = SamplingParams.from_generation_config({**source.generation, "do_sample": True})
    except ValueError as error:
        raise ModelRefused(f"{source.folder}/generation_config.json: {error}") from None
    most_tokens = None if source.generation.get("max_new_tokens") is None else defaults.max_tokens
    return TextProcessor(
        tokenizer,
        templates,
        defaults,
        unfollowed_keys(source.generation),
        most_tokens,
        reasoning,
        _start(source),
        embedding,
        server_defaults,
    )


def _start(source: ModelSource) -> tuple[int, ...]:
    """The token that an encoder-decoder's text begins with; () for other models. Raises ModelRefused where none is
    stated.
    """
    if not family_of(source.config).encodes:
        return ()
    stated = [
        values.get(name)
        for name in ("decoder_start_token_id", "bos_token_id")
        for values in (source.generation, source.config.values)
    ]
    start = next((value for value in stated if value is not None), None)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise source.config.refuse(f"decoder_start_token_id is {start!r}; give the id that the decoder begins with")
    return (start,)


def _check(templates: ChatTemplates | None, where: str) -> None:
    """Raises ModelRefused, saying where they are from, for templates that no conversation should meet."""
    for template in () if templates is None else templates.by_name.values():
        try:
            template.check()
        except ModelRefused as error:
            raise ModelRefused(f"{where}: {error}") from None


def checked(params: Any) -> SamplingParams:
    """`params`, if it is a SamplingParams. Raises ValueError for anything else."""
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params is a {type(params).__name__}; give a SamplingParams")
    return params
