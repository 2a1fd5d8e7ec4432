"""Checks of special token ids in config.json, generation_config.json and the tokenizer, and of the generation config.

The ids must be in the vocabulary, and the begin-of-text and end-of-text tokens of the files must agree.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.core.text import Tokenizer
from ridgeline.engine.params import SamplingParams, ignored_keys

_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id")
_NO_PADDING = -1  # the value in configs of the first Llama models
CONFIG, GENERATION = "config.json", "generation_config.json"


def check_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Tokenizer | None, vocabulary: int | None
) -> Iterator[str]:
    """Yield the problems of a model's special token ids.

    Args:
        config: The values of config.json.
        generation: The values of generation_config.json.
        tokenizer: The tokenizer, if it could be loaded.
        vocabulary: The vocabulary size; None if unknown.
    """
    for file, values in ((CONFIG, config), (GENERATION, generation)):
        for role in _ROLES:
            yield from _outside(file, role, values.get(role), vocabulary)
    ends, stated = _ids(config.get("eos_token_id")), _ids(generation.get("eos_token_id"))
    if ends and stated and not ends & stated:
        yield (
            f"{CONFIG} has the end-of-text tokens {_shown(ends)}, but {GENERATION} has {_shown(stated)}; correct the "
            "wrong one"
        )
    begins, others = _ids(config.get("bos_token_id")), _ids(generation.get("bos_token_id"))
    if begins and others and begins != others:
        yield (
            f"{CONFIG} has the begin-of-text tokens {_shown(begins)}, but {GENERATION} has {_shown(others)}; correct "
            "the wrong one"
        )
    own = set(tokenizer.eos_ids) if tokenizer is not None else set()
    if own and (ends or stated) and not own & (ends | stated):
        yield (
            f"the tokenizer has the end-of-text tokens {_shown(own)}, but {CONFIG} and {GENERATION} have "
            f"{_shown(ends | stated)}; correct the eos_token of tokenizer_config.json, or theirs"
        )


def _outside(file: str, role: str, value: object, vocabulary: int | None) -> Iterator[str]:
    """Yield the problems of one config field with token ids: values that are no ids, or not in the vocabulary."""
    for token in value if isinstance(value, list) else [value]:
        if token is None or (token == _NO_PADDING and role == "pad_token_id"):
            continue
        if not isinstance(token, int) or isinstance(token, bool):
            yield f"{file}: {role} is {token!r}; give a token id"
        elif vocabulary is not None and not 0 <= token < vocabulary:
            yield f"{file}: {role} is {token}, but the model has ids 0 to {vocabulary - 1}; correct it"


def _ids(value: object) -> set[int]:
    return {token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}


def _shown(ids: set[int]) -> str:
    return " and ".join(map(str, sorted(ids)))


def check_generation(generation: Mapping[str, Any], *, speech: bool) -> tuple[list[str], list[str]]:
    """Return the problems of a generation_config.json, and remarks on fields that this version ignores.

    Args:
        generation: The values of the file.
        speech: Whether it belongs to a speech model, whose token rules are supported.
    """
    try:
        SamplingParams.from_generation_config(generation)
    except ValueError as error:
        return [str(error)], []
    return [], [f"sets {key}, which this version does not support" for key in ignored_keys(generation, rules=speech)]
