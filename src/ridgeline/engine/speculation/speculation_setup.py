"""The setup of speculative decoding: checks of the model, the draft model and its memory, and the speculator."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ridgeline.backends.model_loader import prepare_on
from ridgeline.core.checkpoint.source import ModelSource, open_source
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.checkpoint.weight_loader import load_weights, weight_bytes
from ridgeline.core.models import ModelRefused, family_of
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout, group_layers
from ridgeline.core.text import Tokenizer
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.placement import memory_backend
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation
from ridgeline.engine.speculation.draft_model import ModelDrafter
from ridgeline.engine.speculation.ngram import NgramDrafter
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.price.activations import activation_peak, replayed_bytes
from ridgeline.price.price import Price

_ANY_BUDGET = 1e15  # bytes; the number of positions is the limit


def check_speculation(speculation: Speculation, model: Model, name: str) -> None:
    """Check that a model can verify guesses.

    Args:
        speculation: The settings of speculative decoding.
        model: The model.
        name: The name of the model.

    Raises:
        ModelRefused: If it cannot.
    """
    if not model.has_head:
        raise ModelRefused(f"{name} generates no tokens, so it cannot use speculative decoding: leave --speculate out")
    if any(spec.is_state for spec in model.kv_specs):
        raise ModelRefused(
            f"{name} keeps a recurrent state, which cannot be rolled back after a rejected draft token: leave "
            "--speculate out"
        )
    if speculation.method == "draft_model" and (model.has_cross_attention or model.images is not None):
        raise ModelRefused(
            f"{name} reads images or an encoder input, which a draft model would not see: use prompt lookup (ngram)"
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model of speculative decoding, with its checkpoint and KV layout."""

    source: ModelSource
    """The checkpoint of the draft model."""
    model: Model
    """The draft model."""
    layout: KVLayout | None = None
    """The layout of the draft model's KV pages; None before it has memory for them."""

    def taken(self, limits: Limits, place: torch.device) -> Mapping[str, float]:
        """Return the bytes that the draft model takes in addition to its KV cache, by purpose.

        Args:
            limits: The limits of a step.
            place: The device to run on.
        """
        model, price = self.model, Price(self.model)
        found = {"weights of the draft model": float(weight_bytes(model))}
        found["activations of the draft model"] = activation_peak(price, limits.tokens, limits.requests, 0)
        steps = memory_backend(place).replayed_steps(model)
        if steps is not None:
            found[f"{steps.how} steps of the draft model"] = replayed_bytes(steps, model, price, limits.tokens)
        return found

    def target_share(self, model: Model, nbytes: float, page_size: int) -> float:
        """Return the part of the KV cache's bytes that remains for the model itself.

        The draft model's KV cache holds as many positions.

        Args:
            model: The model itself.
            nbytes: Bytes for both KV caches.
            page_size: Positions of a page.
        """
        own, others = (
            group_layers(each.kv_specs, page_size, each.context).bytes_per_token for each in (model, self.model)
        )
        return nbytes * own / (own + others)

    def load(self, tokenizer: Tokenizer, layout: KVLayout, place: torch.device, *, dummy_weights: bool) -> "Draft":
        """Load the weights, and return the draft model with a layout of as many positions as the model's KV cache.

        Args:
            tokenizer: The tokenizer of the model itself.
            layout: The layout of the model's KV pages.
            place: The device to run on.
            dummy_weights: Whether to use random weights.

        Raises:
            ModelRefused: If the draft model's tokens differ from those of the tokenizer.
        """
        if not dummy_weights:
            _check_tokens(self, tokenizer)
        load_weights(self.model, self.source, dummy_weights=dummy_weights, device=place)
        prepare_on(self.model, place)
        own = kv_layout(self.model, _ANY_BUDGET, layout.page_size, most_tokens=max(layout.tokens, layout.page_size))
        return Draft(self.source, self.model, own)

    @property
    def kept_bytes(self) -> float:
        """The bytes of the draft model's weights and KV cache."""
        return sum(parameter.nbytes for parameter in self.model.parameters()) + (
            self.layout.nbytes if self.layout else 0
        )


def draft_of(speculation: Speculation) -> Draft | None:
    """Return the draft model that the settings name, without weights; None if they name none.

    Raises:
        ModelRefused: If it cannot guess tokens.
    """
    if speculation.model is None:
        return None
    source = open_source(speculation.model)
    if source.pipeline:
        raise ModelRefused(f"{source.name} generates images, so it cannot draft tokens: give a language model")
    family_of(source.config)
    draft = build_to_run(source.config)
    if not draft.has_head or draft.has_cross_attention or draft.images is not None:
        raise ModelRefused(
            f"{source.name} cannot continue text by itself, so it cannot draft tokens: give a decoder-only language "
            "model"
        )
    if any(spec.is_state for spec in draft.kv_specs):
        raise ModelRefused(
            f"{source.name} keeps a recurrent state, which cannot be rolled back: give another draft model"
        )
    return Draft(source, draft)


def _check_tokens(draft: Draft, tokenizer: Tokenizer) -> None:
    """Check that every id of a tokenizer stands for the same token in the draft model.

    Raises:
        ModelRefused: If one does not.
    """
    own = tokenizer_of(draft.source)
    size = min(own.vocab_size, draft.model.vocabulary)
    for token in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token, skip_special=False)
        if token >= size or own.token_bytes(token, skip_special=False) != data:
            raise ModelRefused(
                f"{draft.source.name}: token {token} differs from the model's: give a draft model with the same "
                "tokenizer"
            )


def speculator_of(speculation: Speculation, model: Model, draft: Draft | None, limits: Limits) -> Speculator:
    """Return the speculator for an engine of a model: by draft model if there is one, else by prompt lookup."""
    outputs = model.vocabulary if model.sampled_vocab_size is None else model.sampled_vocab_size
    if draft is None:
        drafter = NgramDrafter(speculation.longest, speculation.shortest)
        return Speculator(drafter, speculation.tokens, outputs, priced=speculation.method == "auto")
    assert draft.layout is not None, "the draft model must have a KV layout"
    guessing = ModelDrafter(draft.model, draft.layout, limits.tokens, draft.model.context)
    return Speculator(guessing, speculation.tokens, outputs)
