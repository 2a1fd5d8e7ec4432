"""Tokens as a view shows them: an id, how it is written, and how likely it was."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the text. piece: its characters, unprintable ones escaped."""

    id: int
    piece: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that might have come. raw: its probability in the model's own distribution; drawn: in the one that the
    token was drawn from (None: the sampling rules removed it).
    """

    token: Token
    raw: float
    drawn: float | None


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The likeliest candidates of a step, and the one that was taken; greedy: because it was the likeliest."""

    candidates: tuple[Candidate, ...]
    taken: Candidate
    greedy: bool


def tokens_of(tokenizer: Tokenizer, ids: Iterable[int]) -> tuple[Token, ...]:
    """Ids with their pieces."""
    return tuple(Token(i, tokenizer.piece(i)) for i in ids)


def likeliest(shares_V: Tensor, count: int, tokenizer: Tokenizer) -> tuple[tuple[Token, float], ...]:
    """The `count` largest of a vector over the vocabulary, largest first."""
    values, ids = torch.topk(shares_V, min(count, len(shares_V)))
    return tuple(zip(tokens_of(tokenizer, ids.tolist()), values.tolist(), strict=True))
