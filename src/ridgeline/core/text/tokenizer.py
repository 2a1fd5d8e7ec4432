"""The tokenizer as the engine sees it: text to ids, ids to text, and the exact bytes of every token; and a text taken
apart, for people to look at.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.core.text.vocabulary import Vocabulary, literal_pattern

# A prompt in parts: typed or written text, and the ids of control tokens between them.
Part = str | int


class Tokenizer(ABC):
    """Text to ids and back. Immutable once built, so threads may share it.

    Decoding is the concatenated bytes of the tokens as UTF-8, each maximal invalid part one U+FFFD (Unicode 3.9,
    as Python and Rust do), less one leading space where the vocabulary's encoder adds one.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        names: Mapping[str, str],
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        strips_space: bool = False,
        most_bytes: int | None = None,
    ) -> None:
        """most_bytes: of a text that one token can stand for; None where that has no bound (T5's unknown token stands
        for any run of what it does not know). Raises ValueError for control literals that no release has.
        """
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self.names = dict(names)
        """Literals by role, as chat templates name them: {"bos_token": "<s>", ...}."""
        self.prefix = tuple(prefix)
        """Ids that add_special puts before the text (usually BOS or nothing)."""
        self.suffix = tuple(suffix)
        self.mended = ""
        """A line that says what was wrong in the tokenizer's files and what is done instead; "" for nothing."""
        self.strips_space = strips_space
        """Whether decode drops one leading space (SentencePiece's dummy prefix)."""
        self.control_pattern: re.Pattern[str] = literal_pattern(vocabulary.control)
        """Matches any control literal, the longest where several start at one place."""

    def check_length(self, text: str, context: int) -> None:
        """Refuse a text that cannot fit in so many tokens, without encoding it: never one that would fit."""
        size = 0 if self._most_bytes is None else len(self._composed(valid(text)).encode("utf-8"))
        if self._most_bytes is not None and size > context * self._most_bytes:
            least = -(-size // self._most_bytes)
            raise ValueError(f"the prompt has at least {least} tokens, the model's context is {context}; shorten it")

    def _composed(self, text: str) -> str:
        """The text as a normalizer that composes characters leaves it."""
        return text

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special` adds what the folder states (BOS, for T5 EOS). With `parse_special=False` the literals of
        control tokens in the text are ordinary text: no id of `control` can result. Raises ValueError for text that
        is not valid Unicode.
        """
        parts: Sequence[Part] = self._split(valid(text)) if parse_special else [text]
        return self.encode_parts(parts, add_special=add_special)

    def encode_parts(self, parts: Sequence[Part], *, add_special: bool = False) -> list[int]:
        """Ids of a prompt in which only the given integers are control tokens and every string is ordinary text."""
        ids = self._encode_parts([valid(part) if isinstance(part, str) else part for part in parts])
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids of two texts that a model reads together, as a query and a document, and of each id which text it is of
        as BERT counts them (0 or 1). What is written in them is text. Raises ValueError where the folder does not say
        how two texts are put together.
        """
        raise ValueError("this tokenizer does not say how two texts are put together; take one with a tokenizer.json")

    @abstractmethod
    def _encode_parts(self, parts: Sequence[Part]) -> list[int]: ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; special tokens are left out or written as their literals. Unknown ids are empty."""
        text = b"".join([self.token_bytes(i, skip_special) for i in ids]).decode("utf-8", "replace")
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        """The exact bytes that a token adds to the output; b"" for special tokens (unless they are to be written)
        and for ids outside the vocabulary (a model's embedding may have padding rows).
        """
        return b"" if skip_special and token_id in self._vocabulary.special_ids else self._raw(token_id)

    def piece(self, token_id: int) -> str:
        """A token to look at, on one line: unprintable characters and half characters escaped."""
        if not 0 <= token_id < self.vocab_size:
            return f"<id {token_id}>"
        text = self._raw(token_id).decode("utf-8", "backslashreplace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

    @property
    def vocab_size(self) -> int:
        """Highest id + 1, added tokens included. A model's embedding may have more rows."""
        return len(self._vocabulary.tokens)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that decode leaves out."""
        return self._vocabulary.special_ids

    @property
    def control(self) -> Mapping[str, int]:
        """Literal -> id of every token that typed text never becomes; contains the special tokens."""
        return self._vocabulary.control

    @property
    def bos_id(self) -> int | None:
        """Id of the folder's bos_token."""
        return self.control.get(self.names.get("bos_token", ""))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Id of the folder's eos_token, or nothing. generation_config.json may state more: see the engine."""
        eos = self.control.get(self.names.get("eos_token", ""))
        return () if eos is None else (eos,)

    def _split(self, text: str) -> list[Part]:
        """Cut text at the control literals in it."""
        parts: list[Part] = []
        end = 0
        for match in self.control_pattern.finditer(text):
            parts += [text[end : match.start()], self.control[match[0]]]
            end = match.end()
        return [part for part in [*parts, text[end:]] if part != ""]

    def _raw(self, token_id: int) -> bytes:
        tokens = self._vocabulary.tokens
        return tokens[token_id] if 0 <= token_id < len(tokens) else b""


def valid(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"text holds a lone surrogate U+{code:04X} at {error.start}; send valid Unicode") from None
    return text


class TokenPiece(NamedTuple):
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


def pieces(
    tokenizer: Tokenizer, text: str, *, add_special: bool = False, parse_special: bool = True
) -> list[TokenPiece]:
    """The tokens of a text in order."""
    ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    return [TokenPiece(i, tokenizer.piece(i), tokenizer.token_bytes(i)) for i in ids]


def density(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> Density:
    """How many tokens a text takes, without the ones that add_special adds."""
    tokens = len(tokenizer.encode(text, add_special=False, parse_special=parse_special))
    return Density(tokens, len(text), len(text.split()), len(text.encode("utf-8")))
