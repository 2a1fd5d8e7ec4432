"""Text encoders: they encode a prompt as hidden states, one row per token, which condition the denoiser.

The template, the thinking mode, the layer and the length with which a pipeline encodes texts are part of what its
denoiser was trained with.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.backends.model_loader import bind_on_cpu
from ridgeline.core.checkpoint.source import ModelSource, open_source
from ridgeline.core.checkpoint.weight_loader import Progress, load_weights
from ridgeline.core.models import ModelRefused, build_to_run
from ridgeline.core.models.common.decoder import Decoder
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.padded_text import PaddedText, padded_work
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.core.text import ChatTemplate, Tokenizer, load_templates, load_tokenizer

CACHED_BYTES = 64 << 20
"""The bytes of cached hidden states: about two dozen texts of 512 tokens of Qwen3-4B in bf16."""


class TextEncoder:
    """The base class of text encoders: texts to token ids, and token ids to hidden states."""

    padding: int | None = None
    """The token that pads texts to most_tokens; None if they are not padded."""
    most_tokens: int
    """The maximum number of tokens of a text, including its template."""
    width: int
    """The width of each token's hidden state."""
    pooled_width: int | None = None
    """The width of the pooled vector of a text, for denoisers that take one; None if the encoder has none."""
    tokenizer: Tokenizer
    model: Model
    """The model whose hidden states are the result."""
    clean: Callable[[str], str] = str
    """The function that is applied to a text before tokenization."""
    includes = ""
    """The addition to the number of a text's tokens in errors, if they include more than the text itself."""

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that encode the texts: one, or more if a second one gives a pooled vector."""
        return (self.model,)

    def ids(self, text: str, what: str = "prompt") -> list[int]:
        """Return the token ids of a text, with padding if the denoiser sees it.

        Args:
            text: Text to encode.
            what: Name of the text in errors.

        Raises:
            ValueError: If the text has more than most_tokens tokens. It is not truncated, because the truncated part
                would be ignored silently.
        """
        clean = self.clean(text)
        try:
            self.tokenizer.check_length(clean, self.most_tokens)  # a text of megabytes would take seconds to encode
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
        ids = self.tokenized(clean)
        if len(ids) > self.most_tokens:
            raise ValueError(
                f"the {what} has {len(ids)} tokens{self.includes}, but the text encoder reads at most "
                f"{self.most_tokens}; shorten it"
            )
        return ids if self.padding is None else [*ids, *[self.padding] * (self.most_tokens - len(ids))]

    def tokenized(self, text: str) -> list[int]:
        """Return the token ids of a text of any length, without padding."""
        return self.tokenizer.encode(text, parse_special=False)

    @torch.inference_mode()
    def encode(self, ids: Sequence[int]) -> Tensor:
        """Return the hidden states of token ids [tokens, width]."""
        return self.states(self.model, ids)

    def states(self, model: Model, ids: Sequence[int], first: int = 0) -> Tensor:
        """Return the hidden states that a model gives to token ids, from the row `first` on."""
        ids_T = torch.tensor(ids, device=next(model.parameters()).device)
        rows_T = torch.arange(len(ids), device=ids_T.device)
        return model.hidden(ids_T, rows_T, self.context(ids), rows_T[first:])

    def context(self, ids: Sequence[int]) -> Uncached:
        """Return the KV context in which token ids are encoded: all of them are seen, including padding."""
        return Uncached([StepSegment(len(ids), len(ids))])

    def work(self, ids: Sequence[int]) -> Work:
        """Return the work (for a price) of encoding token ids with the first of the encoder's models."""
        return padded_work(self.models[0].attention_patterns, self.unmasked_length(ids), len(ids))

    def unmasked_length(self, ids: Sequence[int]) -> int:
        """Return how many of the first token ids other tokens attend to: all, except padding if it is masked."""
        return len(ids)

    def unpadded(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the token ids without the padding at the end; tokens of the template are never padding."""
        end = len(ids)
        while end and ids[end - 1] == self.padding:
            end -= 1
        return ids[:end]

    def pooled(self, text: str) -> Tensor | None:
        """Return the pooled vector of a text [pooled_width], or None if the encoder has none."""
        return None

    def pooled_ids(self, text: str) -> list[int]:
        """Return the token ids of a text from which the encoder computes its pooled vector."""
        raise AssertionError("this encoder has no pooled text vector")


class ChatEncoder(TextEncoder):
    """A language model as the text encoder of a diffusion pipeline, which reads a text as a user message to answer.

    Its result is the hidden states after one inner layer, without the final norm, or those of several layers side by
    side. If texts are padded, it includes the states of padding, which attends only to the text.
    """

    includes = " including the chat template"
    most_tokens = 512

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        thinking: bool,
        width: int,
        padding: int | None = None,
    ) -> None:
        """Store the language model with its tokenizer and chat template.

        Args:
            model: Language model, cut off after the last layer that is needed.
            tokenizer: Tokenizer.
            template: Chat template.
            thinking: Value of the template's `enable_thinking` variable, if it has one.
            width: Width of a token's state.
            padding: Token that pads texts, if they are padded.
        """
        self.model, self.tokenizer, self._template = model, tokenizer, template
        self._variables: dict[str, Any] = (
            {"enable_thinking": thinking} if "enable_thinking" in template.variables else {}
        )
        self.padding, self.width = padding, width

    @override
    def tokenized(self, text: str) -> list[int]:
        return self._template.encode([{"role": "user", "content": text}], **self._variables).ids

    @override
    def unmasked_length(self, ids: Sequence[int]) -> int:
        return len(self.unpadded(ids))

    @override
    def context(self, ids: Sequence[int]) -> Uncached:
        return PaddedText(self.unmasked_length(ids), len(ids))


def load_chat_encoder(
    pipeline: ModelSource,
    progress: Progress | None = None,
    *,
    layers: Sequence[int],
    thinking: bool,
    padded: bool = False,
) -> ChatEncoder:
    """Load a language model from the `text_encoder` of a pipeline, with its `tokenizer` and chat template.

    Args:
        pipeline: Folder of the pipeline.
        progress: Progress function.
        layers: Layers after which states are taken, concatenated if there are several. Negative numbers count from the
            end; -1 gives what transformers calls hidden_states[-2].
        thinking: Value of the template's `enable_thinking` variable, if it has one.
        padded: Whether texts are padded with the tokenizer's pad_token.

    Raises:
        ModelRefused: If the model is not a supported language model, lacks one of the layers or has missing or broken
            weights, or if the tokenizer, the template or a required pad_token is missing.
    """
    source = open_source(str(pipeline.components["text_encoder"].folder))
    model = build_to_run(source.config)
    if not isinstance(model, Decoder):
        raise ModelRefused(
            f"{source.name} is not a language model, which this pipeline needs as its text encoder; fetch the "
            "pipeline again"
        )
    try:
        model.stop_after(*(layer + (source.config.layers if layer < 0 else 0) for layer in layers))
    except ValueError as error:
        raise ModelRefused(f"{source.name}: {error}") from None
    model.disable_kv_cache()
    load_weights(model, source, progress=progress)
    bind_on_cpu(model)
    folder = pipeline.components["tokenizer"].folder
    try:
        tokenizer = load_tokenizer(folder)
        templates = load_templates(folder, tokenizer)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
    if templates is None:
        raise ModelRefused(f"{folder} has no chat template, which this pipeline applies to texts; fetch it again")
    return ChatEncoder(
        model,
        tokenizer,
        templates.pick(),
        thinking=thinking,
        width=len(layers) * sizes_of(model).hidden,
        padding=padding_of(tokenizer, folder) if padded else None,
    )


def padding_of(tokenizer: Tokenizer, folder: Path) -> int:
    """Return the token with which a pipeline pads its texts.

    Raises:
        ModelRefused: If the folder names no pad_token.
    """
    found = tokenizer.control.get(tokenizer.names.get("pad_token", ""))
    if found is None:
        raise ModelRefused(f"{folder} states no pad_token, with which this pipeline pads texts; fetch it again")
    return found


class TextCache:
    """A cache of the hidden states and pooled vectors of recent texts, limited in bytes.

    It removes the least recently used ones first. The key of a text's states is its token ids, that of its pooled
    vector the text itself; each cache belongs to one encoder. A cache hit returns the same tensor as before, so callers
    must not write to it.
    """

    def __init__(self, encoder: TextEncoder, most_bytes: int = CACHED_BYTES) -> None:
        self.encoder, self._most_bytes = encoder, most_bytes
        self._states: OrderedDict[tuple[int, ...] | str, Tensor] = OrderedDict()
        self._bytes = 0

    def __contains__(self, ids: Sequence[int]) -> bool:
        return tuple(ids) in self._states

    def states(self, ids: Sequence[int]) -> Tensor:
        """Return the hidden states of token ids, cached; see `TextEncoder.encode`."""
        return self._kept(tuple(ids), lambda: self.encoder.encode(ids))

    def pooled(self, text: str) -> Tensor | None:
        """Return the pooled vector of a text, cached; see `TextEncoder.pooled`."""
        if self.encoder.pooled_width is None:
            return None

        def made() -> Tensor:
            vector = self.encoder.pooled(text)
            assert vector is not None
            return vector

        return self._kept(text, made)

    def _kept(self, key: tuple[int, ...] | str, make: Callable[[], Tensor]) -> Tensor:
        """Return the cached tensor of a text, or compute and cache it."""
        found = self._states.get(key)
        if found is not None:
            self._states.move_to_end(key)
            return found
        made = make()
        if made.nbytes > self._most_bytes:
            return made
        self._states[key] = made
        self._bytes += made.nbytes
        while self._bytes > self._most_bytes:
            _, oldest = self._states.popitem(last=False)
            self._bytes -= oldest.nbytes
        return made
