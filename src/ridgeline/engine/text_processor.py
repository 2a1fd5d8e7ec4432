"""The text side of a model, next to the engine, which knows only ids: prompts to ids, and output back to text."""

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
from ridgeline.core.text import (
    ChatTemplates,
    ReasoningFormat,
    Tokenizer,
    read_template,
    reasoning_format_named,
    reasoning_format_of,
)
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.params import SamplingParams, ignored_keys
from ridgeline.engine.prompt_tokens import token_ids

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

_EMPTY = "the prompt is empty; give at least one character or one token id"


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """A model's tokenizer, chat templates and sampling defaults."""

    tokenizer: Tokenizer
    """The tokenizer of the model."""
    templates: ChatTemplates | None
    """The chat templates; None if the model has none."""
    defaults: SamplingParams
    """The sampling parameters in the checkpoint's generation_config.json."""
    ignored_keys: tuple[str, ...] = ()
    """The keys of generation_config.json that have no effect here."""
    max_new_tokens: int | None = None
    """The number of response tokens that generation_config.json sets; None if it sets none."""
    reasoning: str | None = None
    """The name of the format of the model's reasoning; "none" for none, None for the one of the chat templates."""
    start: tuple[int, ...] = ()
    """The token that the decoder starts with if an encoder reads the prompt; () if the model continues the prompt."""
    embedding: EmbeddingConfig | None = None
    """The checkpoint's description of how a text becomes a vector; None if there is none."""
    server_defaults: SamplingParams | None = None
    """The server's sampling parameters for a request that states none; None for `defaults`.

    If the file has no `do_sample`, these have the file's temperature or 1, as in vLLM and OpenAI, while `defaults` is
    greedy, as in transformers.
    """

    def decoder_prompt(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids that the model continues, given the ids of a prompt."""
        return self.start or ids

    def check_request(self, spec: GenerationRequest) -> None:
        """Check as much of a request as is known before the engine receives it.

        Raises:
            ValueError: If the prompt is empty, or for the same reasons as `check`.
        """
        self.check(spec.params)
        if not spec.prompt:
            raise ValueError(_EMPTY)

    def for_engine(self, spec: GenerationRequest) -> GenerationRequest:
        """Return a request in the form for the engine: an encoder's prompt as encoder input, and no stop strings.

        If an encoder reads the prompt, the engine gets it as the encoder's input. Stop strings are removed: the output
        processor finds them.
        """
        changes: dict[str, Any] = {}
        if self.start:
            changes = {"prompt": self.start, "encoder": spec.encoder or spec.prompt}
        if spec.params.stop:
            changes["params"] = replace(spec.params, stop=())
        return structs.replace(spec, **changes) if changes else spec

    def check(self, params: SamplingParams) -> None:
        """Check that a model of this kind can provide what the sampling parameters request.

        Raises:
            ValueError: If they request log-probabilities of a prompt that an encoder reads, or limit the reasoning of
                a model without a known format of reasoning.
        """
        if params.thinking_token_budget is not None and self.reasoning_format is None:
            raise ValueError(
                "thinking_token_budget needs markers of reasoning, and this model's chat template has none: leave it "
                "out, or start with --reasoning-parser"
            )
        if self.start and params.prompt_logprobs is not None:
            raise ValueError(
                "prompt_logprobs does not work with encoder-decoder models, which do not predict the prompt: leave "
                "it out"
            )

    def new_output_processor(self) -> OutputProcessor:
        """Return an output processor for this model's tokens.

        It separates reasoning if the model has a format for it.
        """
        return OutputProcessor(self.tokenizer, self.reasoning_format)

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        """The format of reasoning from the settings, or else of one of the model's templates; None for none."""
        if self.reasoning is not None:
            return reasoning_format_named(self.reasoning)
        by_name = self.templates.by_name if self.templates is not None else {}
        found = (reasoning_format_of(template.source) for template in by_name.values())
        return next((each for each in found if each is not None), None)

    def encode(self, prompt: Prompt, context: int) -> list[int]:
        """Return the token ids of a prompt. Ids pass through; control tokens written in a text count as text.

        Args:
            prompt: Text or token ids.
            context: Maximum number of positions of a sequence.

        Raises:
            ValueError: If the prompt is empty, or its text is far longer than the context.
        """
        ids = prompt if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise ValueError(_EMPTY)
        if not isinstance(ids, str):
            return list(ids)
        self.tokenizer.check_length(ids, context)  # encoding megabytes takes seconds, and a hundred times their memory
        return self.tokenizer.encode(ids, parse_special=False)

    def encode_chat(self, messages: Messages, context: int, **template: Any) -> list[int]:
        """Return the token ids of a conversation, ready for the model's response.

        Args:
            messages: The messages of the conversation.
            context: Maximum number of positions of a sequence.
            **template: Variables that the chat template reads.

        Raises:
            ValueError: If the model has no chat template, the template refuses the messages, or they are malformed or
                far too long.
        """
        if self.templates is None:
            raise ValueError("the model has no chat template: use generate with a prompt that you format yourself")
        if not isinstance(messages, Sequence) or not all(isinstance(each, Mapping) for each in messages):
            raise ValueError(
                'messages is not a list of messages: give a list such as [{"role": "user", "content": "hi"}]'
            )
        picked = self.templates.pick(tools=bool(template.get("tools")))
        return picked.encode(messages, most_tokens=context, **template).ids


def load_text_processor(
    model: ModelSource | str,
    *,
    or_bytes: bool = False,
    chat_template: str | None = None,
    reasoning: str | None = None,
) -> TextProcessor:
    """Load a model's text processor, without its weights.

    Args:
        model: A source, or a name as `open_source` takes it.
        or_bytes: Whether text is bytes if there is no tokenizer.
        chat_template: Path of a chat template that replaces the model's own.
        reasoning: The name of the format of reasoning, as in TextProcessor.

    Raises:
        ModelRefused: (a ValueError) If the model's files cannot be used; in one line.
        ValueError: If the chat template file holds no template, or one that cannot be used, or there is no such
            format of reasoning.
    """
    if reasoning is not None:
        reasoning_format_named(reasoning)
    source = as_source(model)
    embedding = read_embedding(source)
    tokenizer = tokenizer_of(source, or_bytes=or_bytes)
    if chat_template is None:
        templates = templates_of(source, tokenizer)
    else:
        templates = read_template(Path(chat_template), tokenizer)
    try:
        _check(templates, chat_template or str(source.folder))
    except ModelRefused as error:
        if chat_template is None:
            raise
        raise ValueError(str(error)) from None  # the option is wrong, not the model
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
        ignored_keys(source.generation),
        most_tokens,
        reasoning,
        _start(source),
        embedding,
        server_defaults,
    )


def _start(source: ModelSource) -> tuple[int, ...]:
    """Return the token that an encoder-decoder's output starts with; () for other models.

    Raises:
        ModelRefused: If the checkpoint of an encoder-decoder does not state it.
    """
    if not family_of(source.config).is_encoder_decoder:
        return ()
    stated = [
        values.get(name)
        for name in ("decoder_start_token_id", "bos_token_id")
        for values in (source.generation, source.config.values)
    ]
    start = next((value for value in stated if value is not None), None)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise source.config.refuse(
            f"decoder_start_token_id is {start!r}: give the id of the token that the decoder starts with"
        )
    return (start,)


def _check(templates: ChatTemplates | None, where: str) -> None:
    """Check that every chat template works.

    Args:
        templates: The templates to check.
        where: The place they come from, for the error message.

    Raises:
        ModelRefused: If a template fails its check.
    """
    for template in () if templates is None else templates.by_name.values():
        try:
            template.check()
        except ModelRefused as error:
            raise ModelRefused(f"{where}: {error}") from None


def checked(params: Any) -> SamplingParams:
    """Return the sampling parameters, after a check of their type.

    Raises:
        ValueError: If `params` is not a SamplingParams.
    """
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params is a {type(params).__name__}: give a SamplingParams")
    return params
