"""Names for the contents of full pages: equal names, equal contents."""

import hashlib
from array import array
from collections.abc import Sequence

import msgspec

from ridgeline.engine.features import EncoderInput, Features

_PAGE, _ROOT, _BLOCKS = b"ridgeline kv page 1", b"ridgeline kv root 1", b"ridgeline kv blocks 1"
_ADAPTER = b"ridgeline kv adapter 1"  # then 32 bytes of digest


class PageKey(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A page's place in the tree of prefixes.

    The digest stands for all that came before; equality compares the page's own tokens too, so that a collision of
    digests is no hit on a page with other tokens.
    """

    digest: bytes
    tokens: tuple[int, ...]


def extend_keys(keys: list[PageKey], tokens: Sequence[int], page_size: int, full: int, root: bytes = b"") -> None:
    """Append the keys of the first `full` pages of `tokens` that `keys` does not name yet.

    root: what the contents depend on beside the tokens (an adapter, the encoder's input, a tenant's salt). A key hashes
    its parent's digest, the root's for the first page, and its own tokens, each of fixed width, under a tag of its own:
    no two different prefixes spell the same bytes.
    """
    while len(keys) < full:
        start = len(keys) * page_size
        page = tuple(tokens[start : start + page_size])
        parent = keys[-1].digest if keys else _digest(_ROOT + root)
        keys.append(PageKey(_digest(_PAGE + parent + array("q", page).tobytes()), page))


def names_of_blocks(blocks: Sequence[int], block: int, page_size: int, full: int, root: bytes = b"") -> list[bytes]:
    """Names of the first `full` pages of a prompt whose tokens are known by the names of blocks of `block` tokens.

    A page's name stands for the blocks that it touches, and for those of all pages before it: where it holds a part of
    one, or of several, pages are taken to differ if any of their blocks does, for that is all there is to know.
    """
    names, digest, known = list[bytes](), _digest(_ROOT + root), 0
    for page in range(1, full + 1):
        touched = -(-page * page_size // block)
        digest = _digest(_BLOCKS + digest + array("q", blocks[known:touched]).tobytes())
        names.append(digest)
        known = touched
    return names


def root_of(root: bytes, encoder: EncoderInput, adapter: bytes = b"") -> bytes:
    """What a request's keys and values depend on beside its tokens: its encoder's input and the contents of its adapter
    (a digest, so that no name and no salt spells the same) are part of it."""
    if adapter:
        root = _digest(_ADAPTER + adapter + root)
    if not encoder:
        return root
    read = b"features" + encoder.digest if isinstance(encoder, Features) else array("q", encoder).tobytes()
    return _digest(b"%d %b" % (len(root), root) + read)


def _digest(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=32).digest()
