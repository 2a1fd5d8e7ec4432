"""A text taken apart, for people to look at: its tokens, and how densely they pack it."""

from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """One token: its id, one printable line, its exact bytes (b"" for special tokens)."""

    id: int
    piece: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Density:
    """Counts of a text; words are runs between white space. Ratios of an empty text are 0."""

    tokens: int
    characters: int
    words: int
    utf8_bytes: int

    @property
    def characters_per_token(self) -> float:
        return self.characters / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / self.words if self.words else 0.0


def pieces(tokenizer: Tokenizer, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[Piece]:
    """The tokens of a text in order."""
    ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    return [Piece(i, tokenizer.piece(i), tokenizer.token_bytes(i)) for i in ids]


def density(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> Density:
    """How many tokens a text takes, without the ones that add_special adds."""
    tokens = len(tokenizer.encode(text, add_special=False, parse_special=parse_special))
    return Density(tokens, len(text), len(text.split()), len(text.encode("utf-8")))
