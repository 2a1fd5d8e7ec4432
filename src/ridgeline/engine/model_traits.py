"""The properties of a model that decide which requests its engine takes and how it schedules them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.core.ops.work import AttentionPattern

if TYPE_CHECKING:  # the import needs torch, which the scheduling code does without
    from ridgeline.core.models.common.model import ImagePlaceholders, Model


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The context of a model, its token ids, and the kinds of its inputs and results."""

    context: int
    """The maximum number of positions of a sequence."""
    vocabulary: int
    """The number of token ids that the model reads."""
    sampled_vocab_size: int
    """The number of token ids that can be sampled; they are the first ids of the vocabulary."""
    attention_patterns: Collection[AttentionPattern] = ()
    """The attention patterns of the layers, including layers that keep no KV. The engine adds those with KV."""
    has_head: bool = True
    """Whether the model gives logits. Without a head, a request ends with hidden states when its prompt has run."""
    needs_whole_prompt: bool = False
    """Whether each prompt runs in one step, because its positions see later ones."""
    pooled: bool = False
    """Whether a model without a head gives one pooled vector for each prompt, instead of all hidden states."""
    encoder_width: int = 0
    """The number of features of an encoder position; 0 if the encoder reads token ids."""
    encoder_context: int = 0
    """The number of positions of the encoder's input: the exact number for features, the maximum for token ids."""
    images: "ImagePlaceholders | None" = None
    """The way in which images appear in a prompt; None if the model reads none."""

    @classmethod
    def of(cls, model: "Model", context: int | None = None) -> "ModelTraits":
        """Return the traits of a model, with a context of its own if one is given."""
        vocabulary = model.vocabulary * model.token_types
        return cls(
            context=model.context if context is None else context,
            vocabulary=vocabulary,
            sampled_vocab_size=vocabulary if model.sampled_vocab_size is None else model.sampled_vocab_size,
            attention_patterns=model.attention_patterns,
            has_head=model.has_head,
            needs_whole_prompt=model.needs_whole_prompt,
            pooled=model.pooled,
            encoder_width=model.encoder_width,
            encoder_context=model.encoder_context,
            images=model.images,
        )
