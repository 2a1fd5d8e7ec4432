"""The conversion of request fields into `SamplingParams`, based on the model's defaults."""

import re
from dataclasses import replace
from typing import Any

from ridgeline.engine.params import SamplingParams
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.routes.request_fields import GenerationFields, stop_strings
from ridgeline.server.routes.served_model import ServedModel

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "n",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "thinking_token_budget",
    "prompt_logprobs",
)
"""The request fields that have the same name and meaning in `SamplingParams`."""


def sampling_params(
    fields: GenerationFields, model: ServedModel, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    """Convert the fields of a request into `SamplingParams`, with the model's defaults.

    Args:
        fields: The fields of the request.
        model: The served model, with its defaults.
        max_tokens: The most tokens to generate.
        logprobs: The number of alternatives per output token; None for no log-probabilities.

    Raises:
        ApiError: If a value is out of range; the error names the field.
    """
    given: dict[str, Any] = {name: getattr(fields, name) for name in _SAME if getattr(fields, name) is not None}
    given |= {"max_tokens": max_tokens, "logprobs": logprobs, "stop": stop_strings(fields.stop)}
    if fields.stop_token_ids is not None:
        given["stop_token_ids"] = fields.stop_token_ids
    if fields.include_stop_str_in_output is not None:
        given["include_stop"] = fields.include_stop_str_in_output
    try:
        params = replace(model.defaults, **given)
        model.texts.check(params)
        params.check_vocab(model.info.vocabulary)
        return params
    except ValueError as error:
        raise invalid_params(error) from None


def invalid_params(error: ValueError) -> ApiError:
    """Convert a `SamplingParams` error, whose message begins with the name of the field, into an ApiError."""
    message = str(error)
    name = re.split(r"[ \[]", message, maxsplit=1)[0]
    return invalid(message, name if name in GenerationFields.__struct_fields__ else None)


def room_for(prompt: int, model: ServedModel, max_tokens: int | None, unstated: int | None, least: int = 1) -> int:
    """Return how many tokens may be generated after a prompt of this length.

    Args:
        prompt: Tokens of the prompt.
        model: The served model.
        max_tokens: The tokens that the request wants; None if it states no number.
        unstated: The most tokens if the request states no number; None for as many as fit.
        least: The fewest tokens that a request may want.

    Raises:
        ApiError: If the request wants fewer than `least` tokens, the prompt and the wanted tokens do not fit into the
            context, or the prompt is longer than the encoder allows. The message states the numbers.
    """
    if model.info.encoder_context:
        return _beside_encoder(prompt, model, max_tokens, unstated)
    room, left = model.max_sequence_positions, model.max_sequence_positions - prompt
    if left < (1 if max_tokens is None else max_tokens):
        more = "at least 1 more" if max_tokens is None else f"{max_tokens} more"
        coming = "" if max_tokens == 0 else f" and {more} must fit after it"
        raise invalid(
            f"the context holds {room} tokens; the prompt has {prompt}{coming}; "
            f"{'shorten the prompt' if left < 1 else f'give max_tokens {left} or less, or shorten the prompt'}",
            "max_tokens" if left >= 1 else None,
            code="context_length_exceeded",
        )
    return _wanted(left, max_tokens, unstated, least)


def _beside_encoder(prompt: int, model: ServedModel, max_tokens: int | None, unstated: int | None) -> int:
    """Return how many tokens may be generated if an encoder reads the prompt, which then takes no decoder positions."""
    if prompt > (most := model.info.encoder_context):
        raise invalid(
            f"the prompt has {prompt} tokens, but the model's encoder reads at most {most}: shorten the prompt",
            code="context_length_exceeded",
        )
    left = model.max_sequence_positions - len(model.texts.start)
    if max_tokens is not None and max_tokens > left:
        raise invalid(
            f"{max_tokens} tokens are requested, but the model's decoder has room for {left}: give max_tokens "
            f"{left} or less",
            "max_tokens",
            code="context_length_exceeded",
        )
    return _wanted(left, max_tokens, unstated, 1)


def _wanted(left: int, max_tokens: int | None, unstated: int | None, least: int) -> int:
    """Return the number of tokens to generate out of `left`; raise ApiError if fewer than `least` are wanted."""
    if max_tokens is None:
        return left if unstated is None else min(left, unstated)
    if max_tokens < least:
        raise invalid(f"max_tokens is {max_tokens}; give at least {least}", "max_tokens")
    return max_tokens
