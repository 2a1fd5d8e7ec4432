"""Text encoders: a prompt becomes states, one row a token, which the denoiser sees beside the latents.

How a pipeline has its texts read (template, thinking, layer, length) is a part of what its denoiser was trained with.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoint.fill import Progress, load_weights
from ridgeline.checkpoint.source import Source, open_source
from ridgeline.models import ModelRefused, build_to_run
from ridgeline.models.decoder import Decoder
from ridgeline.models.model import Model
from ridgeline.models.sizes import sizes_of
from ridgeline.ops.attention import Uncached
from ridgeline.ops.work import Segment
from ridgeline.text import ChatTemplate, Tokenizer, load_templates, load_tokenizer

CACHED_BYTES = 64 << 20
"""Of states that are kept: two dozen texts of 512 tokens of Qwen3-4B in bf16."""


class TextEncoder(ABC):
    """Texts to token ids, and these to states.

    most_tokens: of a text, with all that a template puts around it. width: numbers of each token's state.
    """

    most_tokens: int
    width: int

    @property
    @abstractmethod
    def models(self) -> tuple[Model, ...]:
        """What runs."""

    @abstractmethod
    def ids(self, text: str, what: str = "prompt") -> list[int]:
        """Token ids of a text. what: it is called in errors. Raises ValueError for one of more than most_tokens: it is
        not cut, because what is cut off would be ignored without a word."""

    @abstractmethod
    def encode(self, ids: Sequence[int]) -> Tensor:
        """Token ids -> states [tokens, width]."""


class ChatEncoder(TextEncoder):
    """A language model that reads the text as a user's message which it is about to answer. Its states before the last
    layers are taken, not normed."""

    def __init__(
        self, model: Decoder, tokenizer: Tokenizer, template: ChatTemplate, *, thinking: bool, most_tokens: int
    ) -> None:
        """model: as far as it is run. thinking: what the template is told, if it asks (`enable_thinking`)."""
        self.model, self._tokenizer, self._template = model, tokenizer, template
        self._variables: dict[str, Any] = (
            {"enable_thinking": thinking} if "enable_thinking" in template.variables else {}
        )
        self.most_tokens, self.width = most_tokens, sizes_of(model).hidden

    @property
    def models(self) -> tuple[Model, ...]:
        """As TextEncoder.models."""
        return (self.model,)

    def ids(self, text: str, what: str = "prompt") -> list[int]:
        """As TextEncoder.ids."""
        try:
            self._tokenizer.check_length(text, self.most_tokens)  # megabytes take seconds to encode
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
        ids = self._template.encode([{"role": "user", "content": text}], **self._variables).ids
        if len(ids) > self.most_tokens:
            raise ValueError(
                f"the {what} has {len(ids)} tokens with the chat template around it, the model reads "
                f"{self.most_tokens}; shorten it"
            )
        return ids

    @torch.inference_mode()
    def encode(self, ids: Sequence[int]) -> Tensor:
        """As TextEncoder.encode."""
        ids_T = torch.tensor(ids, device=next(self.model.parameters()).device)
        rows_T = torch.arange(len(ids), device=ids_T.device)
        return self.model.hidden(ids_T, rows_T, Uncached([Segment(len(ids), len(ids))]), rows_T)


def load_chat_encoder(
    pipeline: Source, progress: Progress | None = None, *, left_out: int, thinking: bool, most_tokens: int = 512
) -> ChatEncoder:
    """The `text_encoder` of a pipeline with its `tokenizer`. left_out: layers at the end that are not run; 1 gives what
    transformers calls hidden_states[-2]. Raises ModelRefused."""
    source = open_source(str(pipeline.components["text_encoder"].folder))
    model = build_to_run(source.config)
    if not isinstance(model, Decoder):
        raise ModelRefused(f"{source.name} is no language model, which the text encoder of this pipeline is")
    try:
        model.stop_after(source.config.layers - left_out)
    except ValueError as error:
        raise ModelRefused(f"{source.name}: {error}") from None
    load_weights(model, source, progress=progress)
    folder = pipeline.components["tokenizer"].folder
    try:
        tokenizer = load_tokenizer(folder)
        templates = load_templates(folder, tokenizer)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
    if templates is None:
        raise ModelRefused(f"{folder} holds no chat template, which this pipeline's texts are put into; fetch it again")
    return ChatEncoder(model, tokenizer, templates.pick(), thinking=thinking, most_tokens=most_tokens)


class TextCache:
    """States of texts that were asked for, the latest last, as many as fit into so many bytes.

    A text is known by its token ids, which hold what it is and how long; the encoder is the cache's own. What is found
    again is the tensor that was given before, which nobody writes to.
    """

    def __init__(self, encoder: TextEncoder, most_bytes: int = CACHED_BYTES) -> None:
        self.encoder, self._most_bytes = encoder, most_bytes
        self._states: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._bytes = 0

    def __contains__(self, ids: Sequence[int]) -> bool:
        return tuple(ids) in self._states

    def states(self, ids: Sequence[int]) -> Tensor:
        """As TextEncoder.encode."""
        key = tuple(ids)
        found = self._states.get(key)
        if found is not None:
            self._states.move_to_end(key)
            return found
        states = self.encoder.encode(ids)
        if states.nbytes > self._most_bytes:
            return states
        self._states[key] = states
        self._bytes += states.nbytes
        while self._bytes > self._most_bytes:
            _, oldest = self._states.popitem(last=False)
            self._bytes -= oldest.nbytes
        return states
