"""The pages of KV memory: who refers to each, which are free, which are kept in case their prefix comes back."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Literal

PageState = Literal["free", "held", "published", "shared", "cached"]
"""held: by one table entry, and nobody can find it. published: by one, found by its contents. shared: by several."""


class PagePool:
    """Every page is exactly one of free, cached (published, no references) or referenced.

    Cached pages are evicted in the order in which they lost their last reference.
    """

    def __init__(self, pages: int) -> None:
        """`pages` pages, numbered from 1. `touched`: where somebody watches, the pages whose state may have changed."""
        self.size = pages
        self.touched: set[int] | None = None
        self._references = [0] * (pages + 1)
        self._free = list(range(pages, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, Hashable] = {}
        self._page_of: dict[Hashable, int] = {}

    @property
    def available(self) -> int:
        """Pages that can be granted now, evicting cached ones if need be."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """Pages that nobody refers to but whose contents are kept."""
        return len(self._cached)

    @property
    def free_pages(self) -> tuple[int, ...]:
        """The pages that hold nothing of worth."""
        return tuple(self._free)

    def references(self, page: int) -> int:
        """How many page-table entries refer to `page`."""
        return self._references[page]

    def state(self, page: int) -> PageState:
        """What the page is now."""
        if self._references[page] > 1:
            return "shared"
        if page in self._key_of:
            return "published" if self._references[page] else "cached"
        return "held" if self._references[page] else "free"

    def allocate(self) -> int:
        """A page with one reference; its contents are anyone's old ones. The caller has looked at `available`."""
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
        """One more reference to a page that is referenced or cached."""
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1
        if self.touched is not None:
            self.touched.add(page)

    def release(self, page: int) -> None:
        """One reference less; with the last one the page becomes cached if it is published, else free."""
        assert self._references[page] > 0, f"page {page} released once too often"
        self._references[page] -= 1
        if self._references[page] == 0:
            if page in self._key_of:
                self._cached[page] = None
            else:
                self._free.append(page)
        if self.touched is not None:
            self.touched.add(page)

    def publish(self, page: int, key: Hashable) -> None:
        """Make a full page findable. Of two pages with the same contents the first stays the one that is found."""
        assert self._references[page] > 0, f"page {page} published by nobody"
        if page not in self._key_of and self._page_of.setdefault(key, page) == page:
            self._key_of[page] = key
            if self.touched is not None:
                self.touched.add(page)

    def key(self, page: int) -> Hashable | None:
        """What the page is found by; None where it is not."""
        return self._key_of.get(page)

    def find(self, key: Hashable) -> int | None:
        """The page with these contents, if it is still there."""
        return self._page_of.get(key)

    def check(self) -> None:
        """Assert the invariant that the class docstring states."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a page is free twice"
        for page in range(1, self.size + 1):
            states = (page in free) + (page in cached) + (self._references[page] > 0)
            assert states == 1, f"page {page} is in {states} states"
        assert all(page in self._key_of for page in cached), "a cached page cannot be found"
        assert not free & self._key_of.keys(), "a free page can be found"
        assert {key: page for page, key in self._key_of.items()} == self._page_of
