"""Vocabulary tables: the bytes that each token id adds to the output, and the ids of the control tokens.

Vocabularies spell pieces in different ways. Byte-level BPE writes every byte as one printable character (GPT-2).
SentencePiece writes a space as U+2581, and bytes outside its vocabulary as `<0xNN>`. WordPiece marks pieces that
continue a word.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

SPACE_MARK = "▁"
"""The character U+2581, which SentencePiece writes for a space."""
MAX_IDS = 1 << 24
"""The maximum number of token ids in a vocabulary; the largest vocabulary in use has 262,208."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """The tables of a vocabulary: the bytes of each token by id, and the ids of special and control tokens."""

    tokens: list[bytes]
    """The exact bytes of each token of a vocabulary; its literal for an added token, and b"" for an unused id."""
    special_ids: frozenset[int]
    """The ids of the special tokens, which decoding omits."""
    control: Mapping[str, int]
    """The ids of the control tokens by literal: tokens that user text never becomes, including all special tokens."""


def _byte_alphabet() -> dict[int, int]:
    """Return GPT-2's map from characters to bytes: printable bytes represent themselves, the others start at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{256 + i: byte for i, byte in enumerate(rest)}}


_ALPHABET = _byte_alphabet()
_LETTERS = frozenset(map(chr, _ALPHABET))


def byte_level(piece: str) -> bytes:
    """Return the bytes of a byte-level BPE piece; a piece with other characters (an added token) is plain UTF-8."""
    if not _LETTERS.issuperset(piece):
        return piece.encode("utf-8", "replace")
    return piece.translate(_ALPHABET).encode("latin-1")


def metaspace(piece: str) -> bytes:
    """Return the bytes of a SentencePiece piece: U+2581 is a space, and `<0xNN>` is one byte."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def wordpiece(piece: str, continues: str) -> bytes:
    """Return the bytes of a WordPiece piece, with a space before it unless it continues a word.

    If the prefix `continues` is empty, no piece gets a space.
    """
    word = piece.removeprefix(continues)
    return (word if word != piece or not continues else f" {piece}").encode("utf-8", "replace")


def word(piece: str) -> bytes:
    """Return the bytes of a piece that is a whole word, with a space before it."""
    return f" {piece}".encode("utf-8", "replace")


def build_vocabulary(
    pieces: Mapping[str, int],
    added: Mapping[int, tuple[str, bool]],
    spell: Callable[[str], bytes],
    is_control: Callable[[str, bool], bool],
) -> Vocabulary:
    """Build the vocabulary tables; ids without a piece get empty bytes.

    Args:
        pieces: Ids of the model's pieces.
        added: Literal and special flag of the added tokens by id.
        spell: Function that converts a piece to bytes.
        is_control: Function that decides from literal and special flag whether a token is a control token.

    Raises:
        ValueError: If an id is negative or not below `MAX_IDS`. The tables are as long as the highest id.
    """
    least, highest = min((*pieces.values(), *added), default=0), max((*pieces.values(), *added), default=-1)
    if least < 0 or highest >= MAX_IDS:
        raise ValueError(f"token id {least if least < 0 else highest} is not from 0 to {MAX_IDS - 1}")
    size = 1 + highest
    tokens = [b""] * size
    for piece, index in pieces.items():
        if index not in added:
            tokens[index] = spell(piece)
    for index, (literal, _) in added.items():
        tokens[index] = literal.encode("utf-8", "replace")
    return Vocabulary(
        tokens=tokens,
        special_ids=frozenset(index for index, (_, special) in added.items() if special),
        control={literal: index for index, (literal, special) in added.items() if is_control(literal, special)},
    )


MAX_NESTED = 64
"""The maximum depth of the tree of common prefixes that `literal_pattern` builds from the literals.

`re` and its parser are recursive.
"""
MAX_CHARACTERS = 1 << 23
"""The maximum total length of all control-token literals, in characters."""


def literal_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the literals, the longest one if several start at the same position.

    Without literals it matches nothing. Python's `re` tries the branches of an alternation one by one, so 750 control
    literals over a text of brackets took seconds. This pattern is a tree of common prefixes, which decides each
    position in a few steps.

    Raises:
        ValueError: If the literals are too long or too deeply nested.
    """
    found = sorted({literal for literal in literals if literal})
    characters = sum(map(len, found))
    if characters > MAX_CHARACTERS:
        raise ValueError(f"its control tokens have {characters} characters, more than {MAX_CHARACTERS}")
    return re.compile(_written(found, MAX_NESTED) if found else r"(?!)")


def _written(endings: Sequence[str], room: int) -> str:
    """Return a regular expression that matches any of these endings of literals.

    Args:
        endings: Sorted endings, not all empty.
        room: Remaining nesting depth.

    Raises:
        ValueError: If the literals are too deeply nested.
    """
    if room == 0:
        raise ValueError(f"more than {MAX_NESTED} of its control tokens are prefixes of one another")
    branches = []
    for _, group in groupby(filter(None, endings), key=lambda ending: ending[0]):
        alike = list(group)
        # In a sorted group the common prefix of the first and the last is common to all.
        shared = "".join(
            a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(alike[0], alike[-1], strict=False))
        )
        rest = [ending[len(shared) :] for ending in alike]
        branches.append(re.escape(shared) + (_written(rest, room - 1) if rest != [""] else ""))
    group_of = f"(?:{'|'.join(branches)})"
    return group_of + "?" if "" in endings else group_of
