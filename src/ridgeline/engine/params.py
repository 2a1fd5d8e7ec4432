"""The sampling parameters and stopping rules of a request, as plain data without torch.

The constructor refuses a value that makes no sense, in one line that names the value and the fix. Code that uses these
objects does not check them again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Self

from typing_extensions import override

from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.engine.token_rules import TokenRules

GREEDY_BELOW = 1e-5
"""The temperature below which sampling is greedy, as in vLLM (`_SAMPLING_EPS`): only fp32 rounding would be random."""

COUNT_MAX = 2**31 - 1
MAX_CHOICES = 1024
# OpenAI's API allows 4 stop strings, agents use dozens; each costs a few operations per character.
MAX_STOPS, MAX_STOP_LENGTH = 256, 1024
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1
LOGIT_BIAS_MAX = 100.0
FP32_MAX = 3e38

# The key in generation_config.json -> our field. A null in the file means "not set".
_FOLLOWED = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}

# Keys that would change the tokens and that we do not support, with the values that mean "off".
_UNFOLLOWED: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "sequence_bias": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "penalty_alpha": (0.0,),
}
_RULES = ("suppress_tokens", "begin_suppress_tokens")  # token rules of speech models can express these


class LogitBias(Mapping[int, float]):
    """An immutable map from token id to bias; unlike MappingProxyType it can be hashed, pickled and deep-copied."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[int, float]) -> None:
        self._items = dict(sorted(items.items()))

    @override
    def __getitem__(self, token: int) -> float:
        return self._items[token]

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    @override
    def __len__(self) -> int:
        return len(self._items)

    @override
    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    @override
    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters and stopping rules of one request.

    `sampling/sampler.py` lists the order in which they take effect.

    Raises:
        ValueError: If a value is out of range or of the wrong type; one line, with the fix.
    """

    temperature: float = 1.0
    """The number that divides the logits; 0 (or less than GREEDY_BELOW) takes the most likely token."""
    top_k: int = 0
    """The number of most likely tokens to sample from; 0 or -1 = off."""
    top_p: float = 1.0
    """The probability, in (0, 1], that the smallest set of likeliest tokens to sample from must reach; 1 = off."""
    min_p: float = 0.0
    """The share of the likeliest token's probability, in [0, 1], below which tokens are dropped; 0 = off."""
    repetition_penalty: float = 1.0
    """The penalty, over 0, on tokens that occur in the prompt or the output; 1 = off.

    Positive logits are divided by it, negative ones multiplied (CTRL, arXiv:1909.05858).
    """
    frequency_penalty: float = 0.0
    """The amount, in [-2, 2], subtracted from a token's logit for each time it was output (OpenAI); 0 = off."""
    presence_penalty: float = 0.0
    """The amount, in [-2, 2], subtracted once from the logit of every token that was output (OpenAI); 0 = off."""
    logit_bias: Mapping[int, float] = LogitBias({})
    """The numbers, in [-100, 100], to add to the logits of some tokens, by token id."""
    seed: int | None = None
    """The seed of the request, 64 bits, signed or unsigned; None lets the engine draw one."""
    logprobs: int | None = None
    """The number of alternatives to report next to the log-probability of each sampled token.

    0 reports the sampled token only, None nothing.
    """
    prompt_logprobs: int | None = None
    """The number of alternatives to report next to the log-probability of each prompt token, given those before it.

    0 reports the prompt's own tokens only, None nothing. Such a prompt is computed as a whole, without the prefix
    cache.
    """
    n: int = 1
    """The number of independent completions of the prompt to generate."""
    max_tokens: int | None = 256
    """The maximum number of tokens to generate; None = as many as fit in the context.

    With 0 the engine only computes the prompt, which may fill the context.
    """
    min_tokens: int = 0
    """The number of tokens to generate before the end token or a stop token may be sampled.

    A stop string that these tokens complete does not end the text either, as in vLLM.
    """
    stop: tuple[str, ...] = ()
    """The strings that end the text; a single string is accepted, too."""
    stop_token_ids: tuple[int, ...] = ()
    """The tokens that end the text, in addition to the model's own."""
    ignore_eos: bool = False
    """Whether to continue generating after the model's end token."""
    include_stop: bool = False
    """Whether the output includes the stop string or stop token."""
    skip_special_tokens: bool = True
    """Whether to leave control tokens out of the text; otherwise the text contains their literals."""
    structured_outputs: StructuredOutputs | None = None
    """The format that the response must have; None for any."""
    thinking_token_budget: int | None = None
    """The number of reasoning tokens after which the engine ends the reasoning; None for no limit."""
    rules: TokenRules | None = None
    """The rules on which tokens are allowed at which place, for speech models; None for any."""

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_counts()
        self._check_stops()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_distribution(self) -> None:
        """Validate the parameters of the distribution; ints become floats, and top_k -1 becomes 0."""
        for name, low, high, fix in (
            ("temperature", 0.0, math.inf, "give a finite number of at least 0 (0 = greedy)"),
            ("min_p", 0.0, 1.0, "give a number in [0, 1] (0 = off)"),
            ("frequency_penalty", -2.0, 2.0, "give a number in [-2, 2] (0 = off)"),
            ("presence_penalty", -2.0, 2.0, "give a number in [-2, 2] (0 = off)"),
        ):
            number = _finite(name, getattr(self, name), fix)
            _require(low <= number <= high, name, number, fix)
            self._set(name, number)
        for name, high, fix in (
            ("top_p", 1.0, "give a number above 0 and at most 1 (1 = off)"),
            ("repetition_penalty", math.inf, "give a finite number above 0 (1 = off)"),
        ):
            number = _finite(name, getattr(self, name), fix)
            _require(0 < number <= high, name, number, fix)
            self._set(name, number)
        _integer("top_k", self.top_k, -1, COUNT_MAX, "0 or -1 = off")
        self._set("top_k", max(self.top_k, 0))
        self._set("logit_bias", _frozen_bias(self.logit_bias))

    def _check_counts(self) -> None:
        """Validate seed, logprobs, prompt_logprobs, n, max_tokens and min_tokens."""
        if self.seed is not None:
            _integer("seed", self.seed, SEED_MIN, SEED_MAX, "if not given, a random seed is drawn")
        for name, own in (("logprobs", "the chosen token"), ("prompt_logprobs", "the prompt's tokens")):
            count = getattr(self, name)
            if count is not None:
                _integer(name, count, 0, COUNT_MAX, f"0 = {own} only; if not given, no logprobs")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0, COUNT_MAX, "if not given, up to the context length")
        _integer("n", self.n, 1, MAX_CHOICES)
        _integer("min_tokens", self.min_tokens, 0, COUNT_MAX)
        most = COUNT_MAX if self.max_tokens is None else self.max_tokens
        _require(self.min_tokens <= most, "min_tokens", self.min_tokens, f"give at most max_tokens, which is {most}")

    def _check_stops(self) -> None:
        """Validate the stop strings, stop ids and flags.

        A string becomes a tuple of one, and sequences become tuples.
        """
        if isinstance(self.stop, str):
            self._set("stop", (self.stop,))
        _require(_is_list(self.stop), "stop", self.stop, "give a string or a tuple of strings, such as ('END',)")
        lengths = (len(text) for text in self.stop if isinstance(text, str))
        if len(self.stop) > MAX_STOPS or max(lengths, default=0) > MAX_STOP_LENGTH:
            raise ValueError(
                f"stop has more than {MAX_STOPS} strings, or a string of more than {MAX_STOP_LENGTH} characters: "
                "give fewer or shorter ones"
            )
        for text in self.stop:
            _require(isinstance(text, str) and text != "", "stop", self.stop, "give strings of at least one character")
        self._set("stop", tuple(self.stop))
        ids = self.stop_token_ids
        _require(_is_list(ids) or isinstance(ids, Set), "stop_token_ids", ids, "give a tuple of ids, such as (2,)")
        for token in ids:
            _integer("stop_token_ids", token, 0, COUNT_MAX, "a token id for each entry")
        # Sorted, so that equal sets make equal params in any order.
        self._set("stop_token_ids", tuple(sorted(set(ids))))
        for name in ("ignore_eos", "include_stop", "skip_special_tokens"):
            value = getattr(self, name)
            _require(isinstance(value, bool), name, value, "give True or False")
        if self.thinking_token_budget is not None:
            fix = f"an integer from 0 to {COUNT_MAX}, or None for no limit"
            _integer("thinking_token_budget", self.thinking_token_budget, 0, COUNT_MAX, fix)
        form = self.structured_outputs
        fix = "give a StructuredOutputs, such as StructuredOutputs(json=schema)"
        _require(form is None or isinstance(form, StructuredOutputs), "structured_outputs", form, fix)
        _require(self.rules is None or isinstance(self.rules, TokenRules), "rules", self.rules, "give TokenRules")
        _require(
            self.rules is None or form is None, "rules", self.rules, "leave out either rules or structured_outputs"
        )

    @property
    def greedy(self) -> bool:
        """Whether the request takes the most likely token instead of drawing one."""
        return self.temperature < GREEDY_BELOW

    @property
    def uses_history(self) -> bool:
        """Whether a penalty is on, so that sampling needs the `History` of the request."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def check_vocab(self, vocab_size: int) -> None:
        """Refuse token ids and numbers of alternatives that exceed a vocabulary.

        Args:
            vocab_size: Number of tokens of the model.

        Raises:
            ValueError: If a value exceeds the vocabulary; one line with the name of the field and the fix.
        """
        fix = f"give token ids from 0 to {vocab_size - 1}, the model's vocabulary"
        named = (("logit_bias", "the key", tuple(self.logit_bias)), ("stop_token_ids", "the id", self.stop_token_ids))
        for name, what, tokens in (*named, ("rules", "the id", () if self.rules is None else self.rules.ids)):
            outside = next((token for token in tokens if token >= vocab_size), None)
            if outside is not None:
                raise ValueError(f"{name} has {what} {outside}; {fix}")
        fix = f"give at most {vocab_size}, the vocabulary size"
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            _require(count is None or count <= vocab_size, name, count, fix)

    @classmethod
    def from_generation_config(cls, config: Mapping[str, object], **overrides: Any) -> Self:
        """Return the sampling parameters of a Hugging Face generation_config.json.

        `do_sample` false or absent means greedy, as in transformers. Any other key that is absent or null keeps the
        default of this class, as vLLM reads the file; transformers would set top_k to 50. `ignored_keys` returns the
        keys that have no effect here.

        Args:
            config: The contents of the file.
            **overrides: Fields of this class, which win over the file.

        Raises:
            ValueError: If a value in the file or an override is out of range.
        """
        values: dict[str, Any] = {
            ours: config[theirs] for theirs, ours in _FOLLOWED.items() if config.get(theirs) is not None
        }
        if not config.get("do_sample"):
            values["temperature"] = 0.0
        return cls(**(values | overrides))


def ignored_keys(config: Mapping[str, object], *, rules: bool = False) -> tuple[str, ...]:
    """Return the keys of a generation_config.json that change generation in transformers and that SamplingParams lacks.

    Args:
        config: The contents of the file.
        rules: Whether the caller turns the suppressed tokens in the file into token rules; then these keys do not
            count.
    """
    others = {key: off for key, off in _UNFOLLOWED.items() if not (rules and key in _RULES)}
    return tuple(key for key, off in others.items() if config.get(key) is not None and config[key] not in off)


def _require(condition: bool, name: str, value: object, fix: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {_shown(value)}; {fix}")


def _shown(value: object) -> str:
    # repr keeps a newline inside a user's stop string from breaking the line; 80 characters keep it short.
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _finite(name: str, value: object, fix: str) -> float:
    _require(isinstance(value, int | float) and not isinstance(value, bool), name, value, fix)
    assert isinstance(value, int | float)
    # isfinite would raise OverflowError for a huge int. The limit is that of fp32, in which we sample; NaN fails it.
    _require(abs(value) <= FP32_MAX, name, value, fix)
    return float(value)


def _integer(name: str, value: object, low: int, high: int, note: str = "") -> None:
    fix = f"give an integer from {low} to {high}" + (f" ({note})" if note else "")
    _require(isinstance(value, int) and not isinstance(value, bool), name, value, fix)
    assert isinstance(value, int)
    _require(low <= value <= high, name, value, fix)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _frozen_bias(bias: object) -> LogitBias:
    """Validate a map from token id to bias and return an immutable copy."""
    fix = "give a map from token ids to numbers in [-100, 100]"
    _require(isinstance(bias, Mapping), "logit_bias", bias, fix)
    assert isinstance(bias, Mapping)
    items: dict[int, float] = {}
    for token, value in bias.items():
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= COUNT_MAX:
            raise ValueError(f"logit_bias has the key {_shown(token)}; give token ids as keys")
        items[token] = _finite(f"logit_bias[{token}]", value, "give a number in [-100, 100]")
        _require(abs(items[token]) <= LOGIT_BIAS_MAX, f"logit_bias[{token}]", value, "give a number in [-100, 100]")
    return LogitBias(items)
