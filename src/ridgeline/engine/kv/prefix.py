"""Names for the contents of full pages: equal names, equal tokens from the first position on."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_DOMAIN = b"ridgeline kv page 1"


@dataclass(frozen=True, slots=True)
class PageKey:
    """A page's place in the tree of prefixes. Equality compares its tokens too, so a hash collision is no hit."""

    digest: bytes
    tokens: tuple[int, ...]

    def __hash__(self) -> int:
        return hash(self.digest)


def extend_keys(keys: list[PageKey], tokens: Sequence[int], page_size: int) -> None:
    """Append the keys of the pages that `tokens` fill and `keys` does not name yet.

    A key hashes its parent's digest and its own tokens, each of fixed width, under a tag of its own: no two different
    prefixes spell the same bytes.
    """
    while (len(keys) + 1) * page_size <= len(tokens):
        start = len(keys) * page_size
        page = tuple(tokens[start : start + page_size])
        parent = keys[-1].digest if keys else b"\0" * 32
        digest = hashlib.blake2b(_DOMAIN + parent + array("q", page).tobytes(), digest_size=32).digest()
        keys.append(PageKey(digest, page))
