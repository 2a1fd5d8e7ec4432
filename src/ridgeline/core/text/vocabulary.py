"""A vocabulary as bytes: what each token id adds to the output, and which ids are control tokens.

The spellings in use: byte-level BPE writes every byte as one printable character (GPT-2); SentencePiece writes a space
as U+2581 and bytes outside its vocabulary as `<0xNN>`; WordPiece marks pieces that go on with a word.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

SPACE_MARK = "▁"
MAX_IDS = 1 << 24
"""Most ids of a vocabulary; the largest in use has 262,208."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """Tables by token id. `tokens[i]` is the token's exact text (a special token's: its literal)."""

    tokens: list[bytes]
    special_ids: frozenset[int]  # left out of the output
    control: Mapping[str, int]  # literals that typed text may never become; includes the special ones


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's map from printable characters to bytes: printable bytes stand for themselves, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{256 + i: byte for i, byte in enumerate(rest)}}


_ALPHABET = _byte_alphabet()
_LETTERS = frozenset(map(chr, _ALPHABET))


def byte_level(piece: str) -> bytes:
    """The bytes of a byte-level piece; a piece with foreign characters (an added token) is plain UTF-8."""
    if not _LETTERS.issuperset(piece):
        return piece.encode("utf-8", "replace")
    return piece.translate(_ALPHABET).encode("latin-1")


def metaspace(piece: str) -> bytes:
    """The bytes of a SentencePiece piece: U+2581 is a space, `<0xNN>` one byte."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def wordpiece(piece: str, continues: str) -> bytes:
    """The bytes of a WordPiece piece: a word begins after a space, unless the piece goes on with one."""
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
    """Tables from piece -> id and added id -> (literal, special); ids without a piece are empty.

    Raises ValueError for ids that no vocabulary has: the tables are as long as the highest.
    """
    least, highest = min((*pieces.values(), *added), default=0), max((*pieces.values(), *added), default=-1)
    if least < 0 or highest >= MAX_IDS:
        raise ValueError(f"token id {least if least < 0 else highest} is not one of 0 to {MAX_IDS - 1}")
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
"""Most literals of which each begins with the one before; `re` and its reader are recursive."""
MAX_CHARACTERS = 1 << 23
"""Most characters of all literals together."""


def literal_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the literals, the longest of those that start at one place; nothing where there are none.

    Python's `re` tries the branches of an alternation one by one, so 750 control literals over a text of brackets took
    seconds. Written as a tree of their common beginnings each position is decided in a few steps.

    Raises ValueError for literals that make no pattern: too many characters, or nested too deep.
    """
    found = sorted({literal for literal in literals if literal})
    characters = sum(map(len, found))
    if characters > MAX_CHARACTERS:
        raise ValueError(f"its control tokens have {characters} characters; {MAX_CHARACTERS} are the most")
    return re.compile(_written(found, MAX_NESTED) if found else r"(?!)")


def _written(endings: Sequence[str], room: int) -> str:
    """The pattern of any of these endings, sorted and not all empty; `room`: how deep it may nest."""
    if room == 0:
        raise ValueError(f"over {MAX_NESTED} of its control tokens begin with one another")
    branches = []
    for _, group in groupby(filter(None, endings), key=lambda ending: ending[0]):
        alike = list(group)
        # What the first and the last of a sorted group share, all of it share.
        shared = "".join(
            a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(alike[0], alike[-1], strict=False))
        )
        rest = [ending[len(shared) :] for ending in alike]
        branches.append(re.escape(shared) + (_written(rest, room - 1) if rest != [""] else ""))
    group_of = f"(?:{'|'.join(branches)})"
    return group_of + "?" if "" in endings else group_of
