"""Names for the contents of full pages: equal names, equal contents."""

import hashlib
from array import array
from collections.abc import Sequence

import msgspec

from ridgeline.engine.encoder_features import EncoderFeatures, EncoderInput

_PAGE, _ROOT = b"ridgeline kv page 1", b"ridgeline kv root 1"
_ADAPTER = b"ridgeline kv adapter 1"  # then 32 bytes of digest


class PageKey(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A page's place in the tree of prefixes.

    The digest stands for all that came before; equality compares the page's own tokens too, so that a collision of
    digests is no hit on a page with other tokens.
    """

    digest: bytes
    tokens: tuple[int, ...]


def extend_keys(
    keys: list[PageKey],
    tokens: Sequence[int],
    page_size: int,
    full: int,
    root: bytes = b"",
    block: int = 1,
    named: int = 0,
) -> None:
    """Append the keys of the first `full` pages of `tokens` that `keys` does not name yet.

    root: what the contents depend on beside the tokens (an adapter, the encoder's input, a tenant's salt). A key hashes
    its parent's digest, the root's for the first page, and its own tokens, each of fixed width, under a tag of its own:
    no two different prefixes spell the same bytes. block: tokens below 0 are names of blocks of so many (a trace has no
    ids), which a key has once, in the page where the block begins: those that go on with it say nothing new.
    named: so many of the first are names, of which only those that a key has are looked at.
    """
    if len(keys) >= full:
        return
    digest = keys[-1].digest if keys else _digest(_ROOT + root)
    for start in range(len(keys) * page_size, full * page_size, page_size):
        end = start + page_size
        if end <= named:
            page = tuple([tokens[at] for at in range(-(-start // block) * block, end, block)])
        else:
            page = tuple(tokens[start:end])
            if block > 1 and min(page) < 0:
                page = tuple([token for at, token in enumerate(page, start) if token >= 0 or at % block == 0])
        digest = _digest(_PAGE + digest + array("q", page).tobytes())
        keys.append(PageKey(digest, page))


def namespace_of(salt: bytes, read: EncoderInput, adapter: bytes = b"") -> bytes:
    """Return a name for all that a request's keys and values depend on next to its tokens.

    read: its encoder's input, or its images. adapter: a digest of the adapter's contents, so that no name and no salt
    spells the same.
    """
    namespace = _digest(_ADAPTER + adapter + salt) if adapter else salt
    if not read:
        return namespace
    data = b"features" + read.digest if isinstance(read, EncoderFeatures) else array("q", read).tobytes()
    return _digest(b"%d %b" % (len(namespace), namespace) + data)


def _digest(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=32).digest()
