"""The exchange of a prefix's pages between the KV memories of two engines, which find them by the same keys."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.prefix import PageKey, extend_keys
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.request import Request


class PageLocation(NamedTuple):
    """The place of a KV page in a request's page tables."""

    group: int
    """The index of the group of layers that a KV page belongs to."""
    entry: int
    """The index of a KV page in a request's page table for its group of layers."""


class PageExchange:
    """The export and import of an engine's KV pages.

    An imported page is part of a cached prefix, as if the engine had computed it: a request that starts shares it,
    others do too, and it is evicted like any other.
    """

    def __init__(self, ledger: KVCacheManager, store: KVStore) -> None:
        self.kv_cache_manager, self.store = ledger, store

    def keys(self, request: Request) -> list[PageKey]:
        """Return the prefix-cache keys of the full pages of a request's prompt."""
        prompt, size = request.tokens.prompt, self.kv_cache_manager.page_size
        keys: list[PageKey] = []
        extend_keys(keys, prompt, size, len(prompt) // size, request.cache_namespace)
        return keys

    def cached_positions(self, keys: list[PageKey], length: int) -> int:
        """Return how many positions of a prompt of this length are in this engine's prefix cache."""
        return self.kv_cache_manager.longest_cached_prefix(keys, self.kv_cache_manager.max_cached_prefix(length))

    def missing_pages(self, have: int, positions: int) -> list[PageLocation]:
        """Return the pages that are missing for a prefix of `positions` positions, of which the first `have` are there.

        Of a sliding window, only the pages that the next position sees are needed.
        """
        size = [group.page_size for group in self.kv_cache_manager.groups]
        return [
            PageLocation(index, entry)
            for index, group in self.kv_cache_manager.growing
            for entry in range(max(group.first_page(positions), have // size[index]), positions // size[index])
        ]

    def digest(self, keys: list[PageKey], place: PageLocation) -> bytes:
        """Return the digest that identifies the contents of a prompt's page."""
        return self._name(keys, place)[1].digest

    def export_pages(self, keys: list[PageKey], places: Sequence[PageLocation]) -> Tensor:
        """Copy cached pages to the host: bytes [places, bytes per page]. All of them must be in the pool."""
        pages = [self.kv_cache_manager.pool.find(self._name(keys, place)) for place in places]
        assert None not in pages, "a page of a cache hit is missing"
        return self.store.export_pages([page for page in pages if page is not None])

    def import_pages(self, keys: list[PageKey], have: int, places: Sequence[PageLocation], rows: Tensor) -> bool:
        """Store pages that another engine's `export_pages` returned, and publish them.

        Args:
            keys: The keys of the prompt's full pages.
            have: Number of positions of the prefix before them that are cached here.
            places: The places of the pages in the request.
            rows: The contents of the pages.

        Returns:
            False, with nothing stored, if there is no room for them.
        """
        pool = self.kv_cache_manager.pool
        before = [pool.find(self._name(keys, place)) for place in self.missing_pages(0, have)]
        there = [pool.find(self._name(keys, place)) for place in places]
        missing = [index for index, page in enumerate(there) if page is None]
        kept = [page for page in (*before, *there) if page is not None]
        for page in kept:  # so that the allocation below does not evict them
            pool.incref(page)
        room = pool.available - self.kv_cache_manager.reserve >= len(missing)
        pages = [pool.allocate() for _ in missing] if room else []
        if pages:
            self.store.import_pages(pages, rows[missing])
        for index, page in zip(missing, pages, strict=False):
            pool.publish(page, self._name(keys, places[index]))
        for page in reversed([*kept, *pages]):  # later pages of a prefix are evicted first
            pool.release(page)
        return room

    def _name(self, keys: list[PageKey], place: PageLocation) -> tuple[int, PageKey]:
        return self.kv_cache_manager.page_key(place.group, self.kv_cache_manager.groups[place.group], keys, place.entry)
