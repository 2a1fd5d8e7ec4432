"""Tokens for display: their ids, text and probabilities."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its id and its text."""

    id: int
    piece: str
    """The characters of the token, with unprintable ones escaped."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that a step could have sampled."""

    token: Token
    raw: float
    """The token's probability in the model's own distribution."""
    drawn: float | None
    """The candidate's probability in the distribution that was sampled from.

    It is None if sampling is greedy, or if sampling parameters removed the candidate or made it too unlikely to be
    reported.
    """


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The most likely candidates of a step and the sampled token; `greedy` if that is always the most likely one."""

    candidates: tuple[Candidate, ...]
    taken: Candidate
    greedy: bool


def tokens_of(tokenizer: Tokenizer, ids: Iterable[int]) -> tuple[Token, ...]:
    """Return tokens with their text for a sequence of token ids."""
    return tuple(Token(i, tokenizer.printable_token(i)) for i in ids)


def likeliest(shares_V: Tensor, count: int, tokenizer: Tokenizer) -> tuple[tuple[Token, float], ...]:
    """Return the `count` largest entries of a vector over the vocabulary, largest first."""
    values, ids = torch.topk(shares_V, min(count, len(shares_V)))
    return tuple(zip(tokens_of(tokenizer, ids.tolist()), values.tolist(), strict=True))
