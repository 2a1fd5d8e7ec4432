"""Pages of a prefix that go from one engine's KV memory to another's, found in both by their names."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.prefix import PageKey, extend_keys
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.request import Request


class PageLocation(NamedTuple):
    """Where a page is in a request: a group of layers, and which of its entries."""

    group: int
    entry: int


class PageExchange:
    """Gives and takes pages of an engine. What it takes is a cached prefix, as if the engine had computed it: a request
    shares it when it begins, others do too, and it is evicted as any other.
    """

    def __init__(self, ledger: KVCacheManager, store: KVStore) -> None:
        self.kv_cache_manager, self.store = ledger, store

    def keys(self, request: Request) -> list[PageKey]:
        """What the full pages of a prompt are found by."""
        prompt, size = request.tokens.prompt, self.kv_cache_manager.page_size
        keys: list[PageKey] = []
        extend_keys(keys, prompt, size, len(prompt) // size, request.cache_namespace)
        return keys

    def found(self, keys: list[PageKey], length: int) -> int:
        """Positions of a prompt of so many that are there."""
        return self.kv_cache_manager.longest(keys, self.kv_cache_manager.findable(length))

    def places(self, have: int, positions: int) -> list[PageLocation]:
        """The pages that are missing where the first `have` positions are there and the first `positions` are wanted:
        of a window those alone that the next position sees.
        """
        size = [group.page_size for group in self.kv_cache_manager.groups]
        return [
            PageLocation(index, entry)
            for index, group in self.kv_cache_manager.growing
            for entry in range(max(group.first_page(positions), have // size[index]), positions // size[index])
        ]

    def digest(self, keys: list[PageKey], place: PageLocation) -> bytes:
        """What a page's name says of its contents."""
        return self._name(keys, place)[1].digest

    def give(self, keys: list[PageKey], places: Sequence[PageLocation]) -> Tensor:
        """The pages at these places, which are all there: bytes [places, bytes a page] on the host."""
        pages = [self.kv_cache_manager.pool.find(self._name(keys, place)) for place in places]
        assert None not in pages, "a page that was found is gone"
        return self.store.export_pages([page for page in pages if page is not None])

    def take(self, keys: list[PageKey], have: int, places: Sequence[PageLocation], rows: Tensor) -> bool:
        """Keep pages as `give` gave them. have: positions before them that are there. False, and nothing is kept, if
        there is no room for them.
        """
        pool = self.kv_cache_manager.pool
        before = [pool.find(self._name(keys, place)) for place in self.places(0, have)]
        there = [pool.find(self._name(keys, place)) for place in places]
        missing = [index for index, page in enumerate(there) if page is None]
        kept = [page for page in (*before, *there) if page is not None]
        for page in kept:  # not to be evicted for the others of its prefix
            pool.incref(page)
        room = pool.available - self.kv_cache_manager.reserve >= len(missing)
        pages = [pool.allocate() for _ in missing] if room else []
        if pages:
            self.store.import_pages(pages, rows[missing])
        for index, page in zip(missing, pages, strict=False):
            pool.publish(page, self._name(keys, places[index]))
        for page in reversed([*kept, *pages]):  # a prefix loses its later pages first
            pool.release(page)
        return room

    def _name(self, keys: list[PageKey], place: PageLocation) -> tuple[int, PageKey]:
        return self.kv_cache_manager.name(place.group, self.kv_cache_manager.groups[place.group], keys, place.entry)
