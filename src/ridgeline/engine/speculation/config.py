"""The settings of speculative decoding, and their form in `--speculate` and vLLM's `--speculative-config`."""

from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from ridgeline.engine.vllm_json import json_option

Method = Literal["ngram", "draft_model", "auto"]

MOST_GUESSES = 32
"""The maximum number of guessed tokens per request and step.

Each is a row of the batch, and few texts match a guess for longer.
"""
MOST_LOOKED_UP = 64
GUESSES, LONGEST, SHORTEST = 4, 5, 2

_OPTION = "--speculative-config"
_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_LOOK_UP_NAMES = ("ngram", "[ngram]")  # vLLM accepts these in place of a model, too


@dataclass(frozen=True, slots=True)
class Speculation:
    """The settings of speculative decoding: how, and how many of, a request's next tokens are guessed.

    Raises:
        ValueError: If a value is out of range.
    """

    method: Method
    """The method: ngram, draft_model or auto.

    - ngram looks up what followed the request's last tokens where they occurred before (prompt lookup).
    - draft_model samples from another model.
    - auto is ngram, if a step with guesses is predicted to give more tokens per second than one without.
    """
    tokens: int = GUESSES
    """The maximum number of guessed tokens per request that a step verifies."""
    model: str | None = None
    """The name of the draft model; None for other methods."""
    longest: int = LONGEST
    """The maximum number of a request's last tokens to look up in its text; the longest match counts."""
    shortest: int = SHORTEST
    """The minimum number of a request's last tokens to look up in its text."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("speculate_tokens", self.tokens, MOST_GUESSES),
            ("prompt_lookup_max", self.longest, MOST_LOOKED_UP),
            ("prompt_lookup_min", self.shortest, MOST_LOOKED_UP),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}; give an integer from 1 to {most}")
        if self.shortest > self.longest:
            raise ValueError(
                f"speculation: the shortest n-gram, {self.shortest}, is longer than the longest, {self.longest}: "
                "give at most the longest"
            )
        if (self.method == "draft_model") != (self.model is not None):
            raise ValueError(
                "speculation: the method draft_model needs a draft model, and every other method must have none"
            )

    @override
    def __str__(self) -> str:
        who = f"from {self.model}" if self.model is not None else "by n-gram lookup in the prompt"
        return f"up to {self.tokens} draft tokens per step {who}" + (
            ", if it saves time" if self.method == "auto" else ""
        )


def named(name: str, tokens: int | None = None) -> Speculation:
    """Return the settings that `--speculate NAME` means: ngram, auto, or a draft model.

    Raises:
        ValueError: If the name is empty, or the number of tokens is out of range.
    """
    count = GUESSES if tokens is None else tokens
    if name == "ngram":
        return Speculation("ngram", count)
    if name == "auto":
        return Speculation("auto", count)
    if not name:
        raise ValueError("--speculate is empty: give ngram, auto, or a draft model")
    return Speculation("draft_model", count, model=name)


def from_vllm_json(text: str) -> Speculation:
    """Return the speculative decoding that the JSON of vLLM's --speculative-config describes.

    Raises:
        ValueError: If the JSON has no meaning here, or asks for something that is not built.
    """
    values = json_option(_OPTION, text, '{"method": "ngram", "num_speculative_tokens": 4}')
    for key in values:
        if key not in _KEYS:
            raise ValueError(f"{_OPTION} has {key!r}, which is not supported: use only {', '.join(_KEYS)}")
    model, tokens = values.get("model"), values.get("num_speculative_tokens")
    if model is not None and not isinstance(model, str):
        raise ValueError(f"{_OPTION}: model is {model!r}: give the name of a draft model")
    method = values.get("method", "ngram" if model in _LOOK_UP_NAMES else "draft_model")
    if method not in ("ngram", "draft_model"):
        raise ValueError(
            f"{_OPTION}: method is {method!r}, but only ngram and draft_model are supported: give one of them"
        )
    if tokens is None:
        raise ValueError(
            f"{_OPTION} has no num_speculative_tokens: give the number of draft tokens per step, such as 4"
        )
    if method == "ngram":
        longest, shortest = _pieces(values)
        return Speculation("ngram", tokens, longest=longest, shortest=shortest)
    if any(key.startswith("prompt_lookup") for key in values):
        raise ValueError(
            f"{_OPTION}: prompt_lookup_max and prompt_lookup_min work only with the method ngram: leave them out"
        )
    return Speculation("draft_model", tokens, model=model)


def _pieces(values: dict[str, Any]) -> tuple[Any, Any]:
    """Return the maximum and the minimum of tokens for prompt lookup; a missing bound equals the other, as in vLLM."""
    most, least = values.get("prompt_lookup_max"), values.get("prompt_lookup_min")
    if most is None and least is None:
        return LONGEST, LONGEST
    return (least if most is None else most), (most if least is None else least)
