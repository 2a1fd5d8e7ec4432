"""Text encoders: a prompt becomes states, one row a token, which the denoiser sees beside the latents.

How a pipeline has its texts read (template, thinking, layer, length) is a part of what its denoiser was trained with.
"""

from abc import ABC, abstractmethod
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
from ridgeline.core.ops.padded_text import PaddedText, padded_work
from ridgeline.core.ops.work import Work
from ridgeline.core.text import ChatTemplate, Tokenizer, load_templates, load_tokenizer

CACHED_BYTES = 64 << 20
"""Of states that are kept: two dozen texts of 512 tokens of Qwen3-4B in bf16."""


class TextEncoder(ABC):
    """Texts to token ids, and these to states.

    most_tokens: of a text, with all that a template puts around it. width: numbers of each token's state. pooled_width:
    of the one vector that it gives of a text too, for denoisers that take one; None where it gives none. padding: the
    token that texts are padded with to most_tokens; None where they are not.
    """

    padding: int | None = None
    most_tokens: int
    width: int
    pooled_width: int | None = None
    tokenizer: Tokenizer

    @property
    @abstractmethod
    def models(self) -> tuple[Model, ...]:
        """What runs."""

    @abstractmethod
    def ids(self, text: str, what: str = "prompt") -> list[int]:
        """Token ids of a text, and of what it is padded with, as many as the denoiser sees. what: it is called in
        errors. Raises ValueError for one of more than most_tokens: it is not cut, because what is cut off would be
        ignored without a word.
        """

    @abstractmethod
    def encode(self, ids: Sequence[int]) -> Tensor:
        """Token ids -> states [tokens, width]."""

    def work(self, ids: Sequence[int]) -> Work:
        """What `encode` runs, of the first of `models`."""
        return padded_work(self.models[0].reaches, self.seen(ids), len(ids))

    def seen(self, ids: Sequence[int]) -> int:
        """How many of the token ids others look at: the first ones. Not padding, where that is masked."""
        return len(ids)

    def unpadded(self, ids: Sequence[int]) -> Sequence[int]:
        """Token ids without the padding behind them. What a template ends with is none."""
        end = len(ids)
        while end and ids[end - 1] == self.padding:
            end -= 1
        return ids[:end]

    def pooled(self, text: str) -> Tensor | None:
        """The vector of a text [pooled_width], where it gives one."""
        return None

    def pooled_ids(self, text: str) -> list[int]:
        """The token ids that `pooled` reads."""
        raise AssertionError("this encoder gives no vector of a text")


class ChatEncoder(TextEncoder):
    """A language model that reads the text as a user's message which it is about to answer. Its states before the last
    layers are taken, not normed; where texts are padded those of padding too, which sees the text alone.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        thinking: bool,
        most_tokens: int,
        width: int,
        padding: int | None = None,
    ) -> None:
        """model: as far as it is run. thinking: what the template is told, if it asks (`enable_thinking`)."""
        self.model, self.tokenizer, self._template, self.padding = model, tokenizer, template, padding
        self._variables: dict[str, Any] = (
            {"enable_thinking": thinking} if "enable_thinking" in template.variables else {}
        )
        self.most_tokens, self.width = most_tokens, width

    @property
    @override
    def models(self) -> tuple[Model, ...]:
        return (self.model,)

    @override
    def ids(self, text: str, what: str = "prompt") -> list[int]:
        try:
            self.tokenizer.check_length(text, self.most_tokens)  # megabytes take seconds to encode
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
        ids = self._template.encode([{"role": "user", "content": text}], **self._variables).ids
        if len(ids) > self.most_tokens:
            raise ValueError(
                f"the {what} has {len(ids)} tokens with the chat template around it, the model reads "
                f"{self.most_tokens}; shorten it"
            )
        return ids if self.padding is None else [*ids, *[self.padding] * (self.most_tokens - len(ids))]

    @override
    def seen(self, ids: Sequence[int]) -> int:
        return len(self.unpadded(ids))

    @torch.inference_mode()
    @override
    def encode(self, ids: Sequence[int]) -> Tensor:
        ids_T = torch.tensor(ids, device=next(self.model.parameters()).device)
        rows_T = torch.arange(len(ids), device=ids_T.device)
        return self.model.hidden(ids_T, rows_T, PaddedText(self.seen(ids), len(ids)), rows_T)


def load_chat_encoder(
    pipeline: ModelSource,
    progress: Progress | None = None,
    *,
    layers: Sequence[int],
    thinking: bool,
    most_tokens: int = 512,
    padded: bool = False,
) -> ChatEncoder:
    """The `text_encoder` of a pipeline with its `tokenizer`. layers: after how many of them states are taken, side by
    side where there are several, counted from the end where negative; -1 gives what transformers calls
    hidden_states[-2]. padded: whether texts are, by the tokenizer's pad_token. Raises ModelRefused.
    """
    source = open_source(str(pipeline.components["text_encoder"].folder))
    model = build_to_run(source.config)
    if not isinstance(model, Decoder):
        raise ModelRefused(f"{source.name} is no language model, which the text encoder of this pipeline is")
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
        raise ModelRefused(f"{folder} holds no chat template, which this pipeline's texts are put into; fetch it again")
    return ChatEncoder(
        model,
        tokenizer,
        templates.pick(),
        thinking=thinking,
        most_tokens=most_tokens,
        width=len(layers) * sizes_of(model).hidden,
        padding=padding_of(tokenizer, folder) if padded else None,
    )


def padding_of(tokenizer: Tokenizer, folder: Path) -> int:
    """The token that a pipeline's texts are padded with. Raises ModelRefused where the folder names none."""
    found = tokenizer.control.get(tokenizer.names.get("pad_token", ""))
    if found is None:
        raise ModelRefused(f"{folder} names no pad_token, by which this pipeline's texts are padded; fetch it again")
    return found


class TextCache:
    """States of texts that were asked for, and their vectors, the latest last, as many as fit into so many bytes.

    A text is known by its token ids, which hold what it is and how long, of its vector by itself; the encoder is the
    cache's own. What is found again is the tensor that was given before, which nobody writes to.
    """

    def __init__(self, encoder: TextEncoder, most_bytes: int = CACHED_BYTES) -> None:
        self.encoder, self._most_bytes = encoder, most_bytes
        self._states: OrderedDict[tuple[int, ...] | str, Tensor] = OrderedDict()
        self._bytes = 0

    def __contains__(self, ids: Sequence[int]) -> bool:
        return tuple(ids) in self._states

    def states(self, ids: Sequence[int]) -> Tensor:
        """As TextEncoder.encode."""
        return self._kept(tuple(ids), lambda: self.encoder.encode(ids))

    def pooled(self, text: str) -> Tensor | None:
        """As TextEncoder.pooled."""
        if self.encoder.pooled_width is None:
            return None

        def made() -> Tensor:
            vector = self.encoder.pooled(text)
            assert vector is not None
            return vector

        return self._kept(text, made)

    def _kept(self, key: tuple[int, ...] | str, make: Callable[[], Tensor]) -> Tensor:
        """What is known by a key, or made now."""
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
