"""The checks that refuse a request which cannot run, before it is queued, and compute how many tokens it may sample."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.model_traits import ModelTraits
from ridgeline.engine.prompt_tokens import NamedPrompt, unknown_id
from ridgeline.engine.scheduler import Scheduler


@contextmanager
def numbered(what: str, place: int, count: int) -> Iterator[None]:
    """Prefix the message of a ValueError with the number of the item that it concerns, if there are several.

    Args:
        what: The word for an item.
        place: The index of the item; the message counts from 1.
        count: The number of items.
    """
    try:
        yield
    except ValueError as error:
        if count == 1:
            raise
        raise ValueError(f"{what} {place + 1} of {count}: {error}") from None


@dataclass(frozen=True, slots=True)
class RequestValidator:
    """The limits of a model and its engine, against which requests are checked."""

    kv_cache_manager: KVCacheManager
    """The KV cache manager, which knows how many positions fit."""
    scheduler: Scheduler
    """The scheduler, which knows the limits of a step."""
    traits: ModelTraits
    """The model's context, token ids and inputs."""

    def max_new_tokens(self, spec: GenerationRequest) -> int:
        """Check that a request can run, and return the most tokens that it may sample.

        For a model without a head the number is 1: it samples no token, but its last position gives a row.

        Raises:
            ValueError: If the request cannot run.
        """
        prompt, params, encoder = spec.prompt, spec.params, spec.encoder
        self._check_encoder(encoder)
        length, encoded = len(prompt), len(encoder)
        capacity = self.kv_cache_manager.capacity(encoded)
        samples = self.traits.has_head and params.max_tokens != 0
        most, needed = self.scheduler.limits.tokens, length + samples
        if not length:
            raise ValueError("the prompt is empty; give at least one token")
        if bool(encoded) != self.kv_cache_manager.crosses:
            wrong = (
                "has no encoder: leave out the encoder input" if encoded else "has an encoder: give the encoder input"
            )
            raise ValueError(f"the model {wrong}")
        if not isinstance(prompt, NamedPrompt):
            self._check_ids(prompt)
        if params.stop:
            raise ValueError("stop strings need a tokenizer: give stop_token_ids instead, or use LLM")
        params.check_vocab(self.traits.sampled_vocab_size)
        if params.prompt_logprobs is not None and self.traits.sampled_vocab_size < self.traits.vocabulary:
            raise ValueError(
                "prompt_logprobs: the model cannot generate the tokens of a prompt, so they have no logprobs; leave "
                "it out"
            )
        if needed > self.traits.context:
            raise ValueError(
                f"the prompt has {length} tokens, but the model's context is {self.traits.context}: shorten the prompt"
            )
        if self.scheduler.whole and length > most:
            raise ValueError(
                f"the prompt has {length} tokens, which must run in one step, but a step runs at most {most}: "
                "shorten the prompt"
            )
        if needed > capacity:
            beside = f" next to {encoded} encoder tokens" if capacity < self.kv_cache_manager.capacity() else ""
            raise ValueError(
                f"the prompt has {length} tokens, but the KV cache holds {capacity}{beside}: shorten the prompt or "
                "raise the KV budget"
            )
        if encoded > self.traits.encoder_context:
            raise ValueError(
                f"the encoder input has {encoded} tokens, but the encoder reads at most {self.traits.encoder_context}: "
                "shorten it or split it into parts"
            )
        if not self.traits.has_head:
            return 1
        room = min(self.traits.context, capacity) - length
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def image_positions(self, prompt: Sequence[int], images: EncoderFeatures) -> tuple[int, ...]:
        """Return the prompt positions that receive the encoder output of the prompt's images.

        Raises:
            ValueError: If the images do not fit the model or the prompt.
        """
        if self.traits.images is None:
            raise ValueError("the model reads no images: leave the images out, or use a model with a vision tower")
        rows, width = self.traits.images.rows, self.traits.images.width
        if (images.positions_per_input, images.width) != (rows, width):
            raise ValueError(
                f"an image has {images.positions_per_input} patches of {images.width} numbers, but the model reads "
                f"{rows} patches of {width} numbers"
            )
        places = tuple(place for place, token in enumerate(prompt) if token == self.traits.images.placeholder)
        if len(places) != len(images):
            raise ValueError(
                f"the prompt has {len(places)} image placeholder tokens, but the {images.inputs} images have "
                f"{len(images)} rows: give {rows} placeholder tokens for each image"
            )
        return places

    def _check_encoder(self, encoder: Sequence[int] | EncoderFeatures) -> None:
        """Check that the encoder can read this input.

        Raises:
            ValueError: If it cannot.
        """
        if not encoder:
            return
        if not isinstance(encoder, EncoderFeatures):
            if self.traits.encoder_width:
                raise ValueError(
                    f"the encoder reads {self.traits.encoder_width} features per position, not token ids: give features"
                )
            self._check_ids(encoder)
        elif not self.traits.encoder_width:
            raise ValueError("the encoder reads token ids, not features: give token ids")
        elif (len(encoder), encoder.width) != (self.traits.encoder_context, self.traits.encoder_width):
            raise ValueError(
                f"the encoder input has {len(encoder)} positions of {encoder.width} features, but the encoder reads "
                f"{self.traits.encoder_context} positions of {self.traits.encoder_width} features"
            )

    def _check_ids(self, ids: Sequence[int]) -> None:
        unknown = unknown_id(ids, self.traits.vocabulary)
        if unknown is not None:
            raise ValueError(f"token id {unknown} is out of range; the model has ids 0 to {self.traits.vocabulary - 1}")
