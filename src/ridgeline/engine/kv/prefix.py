"""The keys of full KV pages for prefix caching: equal keys mean equal contents."""

import hashlib
from array import array
from collections.abc import Sequence

import msgspec

from ridgeline.engine.encoder_features import EncoderFeatures, EncoderInput

_PAGE, _ROOT = b"ridgeline kv page 1", b"ridgeline kv root 1"
_ADAPTER = b"ridgeline kv adapter 1"  # a digest of 32 bytes follows


class PageKey(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The key of a full KV page, which identifies the page's tokens and the whole prefix before them.

    The digest stands for all that came before. Equality compares the page's own tokens, too, so that a collision of
    digests is no hit on a page with other tokens.
    """

    digest: bytes
    """The digest of all tokens up to the end of the page."""
    tokens: tuple[int, ...]
    """The tokens of the page, or the ids of the token blocks that begin in it if tokens have no ids of their own."""


def extend_keys(
    keys: list[PageKey],
    tokens: Sequence[int],
    page_size: int,
    full: int,
    root: bytes = b"",
    block: int = 1,
    named: int = 0,
) -> None:
    """Append the keys that are missing for the first `full` pages of a sequence of tokens.

    A key hashes its parent's digest (the root's for the first page) and its own tokens, each of fixed width, under a
    tag of its own: no two different prefixes have the same bytes.

    Args:
        keys: The keys of the first pages, to be extended.
        tokens: The tokens of the sequence.
        page_size: Positions of a page.
        full: Number of full pages that need keys.
        root: Everything but the tokens that the contents depend on (an adapter, the encoder's input, a tenant's salt).
        block: Number of tokens that a token below 0 stands for, as a name of their block (a trace has no ids). A key
            has each name once, in the page where the block begins; a page that continues the block adds nothing.
        named: Number of tokens at the start that are names; of these, only those that a key needs are read.
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
    """Return bytes that identify everything that a request's keys and values depend on in addition to its tokens.

    Args:
        salt: The cache salt of the request.
        read: The input of its encoder, or its images.
        adapter: A digest of the LoRA adapter's contents, so that no name and no salt gives the same result.
    """
    namespace = _digest(_ADAPTER + adapter + salt) if adapter else salt
    if not read:
        return namespace
    data = b"features" + read.digest if isinstance(read, EncoderFeatures) else array("q", read).tobytes()
    return _digest(b"%d %b" % (len(namespace), namespace) + data)


def _digest(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=32).digest()
