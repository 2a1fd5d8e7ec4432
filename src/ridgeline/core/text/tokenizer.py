"""The tokenizer interface of the engine: text to token ids, ids to text, and the exact bytes of every token.

`token_pieces` and `count_tokens` show how a tokenizer splits a text.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.core.text.vocabulary import Vocabulary, literal_pattern

# A part of a prompt: ordinary text, or the id of a control token.
PromptPart = str | int


class Tokenizer(ABC):
    """A tokenizer that encodes text to token ids and decodes them; immutable once built, so threads can share it.

    Decoding concatenates the bytes of the tokens and reads them as UTF-8. Each maximal invalid part becomes one U+FFFD
    (Unicode 3.9, as in Python and Rust). If `strips_space` is set, decoding drops one leading space.
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
        """Store a tokenizer's vocabulary and its special tokens.

        Args:
            vocabulary: Bytes of each token, and the control tokens.
            names: Literals of the special tokens by role, for example `{"bos_token": "<s>"}`.
            prefix: Ids that `add_special` puts before a text.
            suffix: Ids that `add_special` puts after a text.
            strips_space: Whether decoding drops one leading space.
            most_bytes: Longest text, in bytes, that one token can represent. None if there is no bound: T5's unknown
                token represents any run of unknown characters.

        Raises:
            ValueError: If the control literals are too long or too deeply nested for a pattern.
        """
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self.names = dict(names)
        """The literals of the special tokens by role, named as in chat templates: `{"bos_token": "<s>", ...}`."""
        self.prefix = tuple(prefix)
        """The special token ids that encoding puts before a text on request (usually BOS or nothing)."""
        self.suffix = tuple(suffix)
        """The special token ids that encoding puts after a text on request (EOS for T5, `[SEP]` for BERT)."""
        self.file_fault_note = ""
        """A line that describes a fault in the tokenizer files and the rule used instead; "" if there is no fault."""
        self.strips_space = strips_space
        """Whether decoding drops one leading space (SentencePiece's dummy prefix, the space before WordPiece words)."""
        self.control_pattern: re.Pattern[str] = literal_pattern(vocabulary.control)
        """A pattern that matches any control token's literal, the longest one if several start at the same position."""

    def check_length(self, text: str, context: int) -> None:
        """Reject a text that has more tokens than the context can hold, without encoding it.

        The check uses a lower bound of the token count, so it never rejects a text that fits.

        Raises:
            ValueError: If the text cannot fit into `context` tokens.
        """
        size = 0 if self._most_bytes is None else len(self._composed(check_unicode(text)).encode("utf-8"))
        if self._most_bytes is not None and size > context * self._most_bytes:
            least = -(-size // self._most_bytes)
            raise ValueError(f"the prompt has at least {least} tokens, the model's context is {context}; shorten it")

    def _composed(self, text: str) -> str:
        """Return the text after Unicode composition, if the tokenizer's normalizer composes characters."""
        return text

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: The text to encode.
            add_special: Whether to add the special tokens that the model folder declares (BOS; EOS for T5).
            parse_special: Whether to turn the literals of control tokens in the text into those tokens. If False, they
                are ordinary text, and no id of `control` can result, except that of an unknown token.

        Raises:
            ValueError: If the text is not valid Unicode, or the tokenizer cannot encode it.
        """
        parts: Sequence[PromptPart] = self._split(check_unicode(text)) if parse_special else [text]
        return self.encode_parts(parts, add_special=add_special)

    def encode_parts(self, parts: Sequence[PromptPart], *, add_special: bool = False) -> list[int]:
        """Return the token ids of a prompt in parts: integers are control tokens, and every string is ordinary text.

        Args:
            parts: The parts of the prompt.
            add_special: Whether to add the special tokens that the model folder declares (BOS; EOS for T5).

        Raises:
            ValueError: If a string is not valid Unicode, or the tokenizer cannot encode it.
        """
        ids = self._encode_parts([check_unicode(part) if isinstance(part, str) else part for part in parts])
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Encode two texts that a model reads together, such as a query and a document.

        Control literals in the texts are ordinary text.

        Returns:
            The token ids, and for each id the segment (0 or 1) as in BERT's token type ids.

        Raises:
            ValueError: If the model folder does not define how to combine two texts.
        """
        raise ValueError("this tokenizer does not say how to join a pair of texts; use one with a tokenizer.json")

    @abstractmethod
    def _encode_parts(self, parts: Sequence[PromptPart]) -> list[int]: ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids, with special tokens omitted or written as literals.

        Unknown ids add nothing.
        """
        text = b"".join([self.token_bytes(i, skip_special) for i in ids]).decode("utf-8", "replace")
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        """Return the exact bytes that a token adds to the output.

        The result is b"" for special tokens (unless `skip_special` is False) and for ids outside the vocabulary, since
        the embedding of a model can have padding rows.
        """
        return b"" if skip_special and token_id in self._vocabulary.special_ids else self._raw(token_id)

    def printable_token(self, token_id: int) -> str:
        """Return a token as one printable line, with unprintable characters and incomplete UTF-8 bytes escaped."""
        if not 0 <= token_id < self.vocab_size:
            return f"<id {token_id}>"
        text = self._raw(token_id).decode("utf-8", "backslashreplace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

    @property
    def vocab_size(self) -> int:
        """The highest token id + 1, including added tokens; the embedding of a model can have more rows."""
        return len(self._vocabulary.tokens)

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens, which decoding omits."""
        return self._vocabulary.special_ids

    @property
    def control(self) -> Mapping[str, int]:
        """The ids of the control tokens by literal: tokens that user text never becomes.

        They include all special tokens.
        """
        return self._vocabulary.control

    @property
    def bos_id(self) -> int | None:
        """The id of the folder's bos_token, or None."""
        return self.control.get(self.names.get("bos_token", ""))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The id of the folder's eos_token, or an empty tuple.

        The engine adds the ids that generation_config.json declares.
        """
        eos = self.control.get(self.names.get("eos_token", ""))
        return () if eos is None else (eos,)

    def _split(self, text: str) -> list[PromptPart]:
        """Split a text at the literals of control tokens, and replace each literal by its token id."""
        parts: list[PromptPart] = []
        end = 0
        for match in self.control_pattern.finditer(text):
            parts += [text[end : match.start()], self.control[match[0]]]
            end = match.end()
        return [part for part in [*parts, text[end:]] if part != ""]

    def _raw(self, token_id: int) -> bytes:
        tokens = self._vocabulary.tokens
        return tokens[token_id] if 0 <= token_id < len(tokens) else b""


def check_unicode(text: str) -> str:
    """Return the text unchanged, after a check that it is valid Unicode.

    Raises:
        ValueError: If the text contains a lone surrogate.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"text holds a lone surrogate U+{code:04X} at {error.start}; send valid Unicode") from None
    return text


class TokenPiece(NamedTuple):
    """One token of a text, for display."""

    id: int
    """The id of the token in the vocabulary."""
    piece: str
    """The token as one printable line of text."""
    data: bytes
    """The exact bytes that the token adds to the output; b"" for special tokens."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token, character, word and byte counts of one text.

    Words are separated by white space. The ratios of an empty text are 0.
    """

    tokens: int
    characters: int
    words: int
    utf8_bytes: int

    @property
    def characters_per_token(self) -> float:
        """The average number of characters per token."""
        return self.characters / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_word(self) -> float:
        """The average number of tokens per word."""
        return self.tokens / self.words if self.words else 0.0


def token_pieces(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[TokenPiece]:
    """Return the tokens of a text in order, for display."""
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    return [TokenPiece(i, tokenizer.printable_token(i), tokenizer.token_bytes(i)) for i in ids]


def count_tokens(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> TokenCounts:
    """Return the number of tokens, characters, words and bytes of a text, without tokens that `add_special` adds."""
    tokens = len(tokenizer.encode(text, add_special=False, parse_special=parse_special))
    return TokenCounts(tokens, len(text), len(text.split()), len(text.encode("utf-8")))
