"""The pool of KV pages: who refers to each page, which are free, and which stay cached in case their prefix returns."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Literal

PageState = Literal["free", "held", "published", "shared", "cached"]
"""The state of a KV page.

- free: no table entry refers to it, and it cannot be found.
- cached: no entry refers to it, and it can be found by its contents.
- held: one entry refers to it, and it cannot be found.
- published: one entry refers to it, and it can be found.
- shared: several entries refer to it.
"""


class PagePool:
    """The reference counts of all KV pages; each is free, cached (published, without references) or referenced.

    Cached pages are evicted in the order in which they lost their last reference.
    """

    def __init__(self, pages: int) -> None:
        """Make a pool of free KV pages, numbered from 1."""
        self.size = pages
        self.touched: set[int] | None = None
        """The pages whose state may have changed, while an observer watches; None otherwise."""
        self._references = [0] * (pages + 1)
        self._free = list(range(pages, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, Hashable] = {}
        self._page_of: dict[Hashable, int] = {}

    @property
    def available(self) -> int:
        """The number of pages that can be allocated now, by eviction of cached ones if need be."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """The number of pages without references whose contents remain findable."""
        return len(self._cached)

    @property
    def free_pages(self) -> tuple[int, ...]:
        """The KV pages that hold no contents worth caching."""
        return tuple(self._free)

    def references(self, page: int) -> int:
        """Return the number of references to a page, from page tables and from pending copies."""
        return self._references[page]

    def state(self, page: int) -> PageState:
        """Return the state of a KV page: free, cached, held, published or shared."""
        if self._references[page] > 1:
            return "shared"
        if page in self._key_of:
            return "published" if self._references[page] else "cached"
        return "held" if self._references[page] else "free"

    def allocate(self) -> int:
        """Return a KV page with one reference and arbitrary contents. The caller has checked `available`.

        If no page is free, the cached page that lost its last reference first is evicted.
        """
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._cached.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._references[page] = 1
        if self.touched is not None:
            self.touched.add(page)
        return page

    def incref(self, page: int) -> None:
        """Add a reference to a KV page that is referenced or cached."""
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1
        if self.touched is not None:
            self.touched.add(page)

    def release(self, page: int) -> None:
        """Remove a reference to a KV page; without any, it becomes cached if it is published, and else free."""
        assert self._references[page] > 0, f"page {page} was freed more often than it was allocated"
        self._references[page] -= 1
        if self._references[page] == 0:
            if page in self._key_of:
                self._cached[page] = None
            else:
                self._free.append(page)
        if self.touched is not None:
            self.touched.add(page)

    def publish(self, page: int, key: Hashable) -> None:
        """Make a full KV page findable by its key.

        If two pages have the same contents, the first remains the findable one.
        """
        assert self._references[page] > 0, f"page {page} was published without being allocated"
        if page not in self._key_of and self._page_of.setdefault(key, page) == page:
            self._key_of[page] = key
            if self.touched is not None:
                self.touched.add(page)

    def key(self, page: int) -> Hashable | None:
        """Return the key by which a KV page is found; None if it is not published."""
        return self._key_of.get(page)

    def find(self, key: Hashable) -> int | None:
        """Return the published KV page with this key; None if there is none."""
        return self._page_of.get(key)

    def check(self) -> None:
        """Assert that every page is free, cached or referenced, and exactly one of these."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a page is in the free list twice"
        for page in range(1, self.size + 1):
            states = (page in free) + (page in cached) + (self._references[page] > 0)
            assert states == 1, f"page {page} is in {states} states"
        assert all(page in self._key_of for page in cached), "a cached page is missing from the index of cached pages"
        assert not free & self._key_of.keys(), "a free page is in the index of cached pages"
        assert {key: page for page, key in self._key_of.items()} == self._page_of
