"""The ledger of KV memory: which pages hold which positions of which request. It knows no tensors.

Layers with equal KVSpec form a group; each group has its own pages and its own tables, because a sliding window lets
go of positions that full attention keeps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.engine.kv.pool import NULL_PAGE, PagePool
from ridgeline.engine.kv.prefix import PageKey, extend_keys
from ridgeline.ops.kv import KVSpec


@dataclass(slots=True)
class Table:
    """One request's pages, group by group, in the order of its positions; NULL_PAGE where a window has passed.

    keys: names of its full pages so far. published: how many of them can be found. sent: entries that the runner knows.
    """

    pages: list[list[int]]
    keys: list[PageKey] = field(default_factory=list)
    published: int = 0
    sent: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy a page's contents before the step runs: a fork's partial page."""

    group: int
    source: int
    target: int


class KVLedger:
    """Page tables of all requests over one pool a KV group."""

    def __init__(
        self, specs: Sequence[KVSpec], pages: Sequence[int], page_size: int = 16, *, prefix_cache: bool = True
    ) -> None:
        """`specs` and `pages`: each group's spec and number of pages. page_size: positions a page.

        `copies` and `blank` wait for the next step: pages to copy, and (group, page) pairs to fill with zeros.
        """
        self.specs, self.page_size, self.prefix_cache = tuple(specs), page_size, prefix_cache
        self.pools = [PagePool(count) for count in pages]
        self.tables: dict[int, Table] = {}
        self.copies: list[PageCopy] = []
        self.blank: list[tuple[int, int]] = []
        self._refused: dict[int, list[PageKey]] = {}  # page names of the request that was last refused

    @property
    def capacity(self) -> int:
        """Positions that one request alone could hold."""
        return min(pool.size for pool in self.pools) * self.page_size

    def pages_for(self, positions: int) -> int:
        """Pages that so many positions fill, the last one perhaps partly."""
        return -(-positions // self.page_size)

    # -- admission ----------------------------------------------------------------------------------------------------

    def admit(self, request: int, tokens: Sequence[int], reserve: int) -> int | None:
        """Open a table for a request and share what is cached of its tokens.

        Returns how many positions need not be computed: whole pages, and never the last position, whose logits are
        wanted. None, and nothing is changed, if the pages for all its tokens and `reserve` more are not to be had.
        """
        assert request not in self.tables
        table = Table([[] for _ in self.pools], self._refused.pop(request, []), sent=[0] * len(self.pools))
        hit = self._find(table, tokens) if self.prefix_cache else 0
        for pool, pages in zip(self.pools, table.pages, strict=True):
            idle = sum(1 for page in pages if page != NULL_PAGE and pool.references(page) == 0)
            if self.pages_for(len(tokens)) - hit + reserve > pool.available - idle:
                self._refused = {request: table.keys}  # it will ask again at the next step
                return None
        for pool, pages in zip(self.pools, table.pages, strict=True):
            for page in pages:
                if page != NULL_PAGE:
                    pool.share(page)
        table.published = hit
        self.tables[request] = table
        return hit * self.page_size

    def _find(self, table: Table, tokens: Sequence[int]) -> int:
        """Put the longest cached prefix into a new table's pages; returns its length in pages."""
        extend_keys(table.keys, tokens, self.page_size)
        groups = list(zip(self.pools, self.specs, strict=True))
        most = (len(tokens) - 1) // self.page_size
        for pool, spec in groups:
            if spec.window is None:  # such a group has no hit beyond its first missing page
                most = next((i for i, key in enumerate(table.keys[:most]) if pool.find(key) is None), most)
        for hit in range(most, 0, -1):
            found = [self._find_group(pool, spec, table.keys, hit) for pool, spec in groups]
            if all(pages is not None for pages in found):
                table.pages = [pages for pages in found if pages is not None]
                return hit
        return 0

    def _find_group(self, pool: PagePool, spec: KVSpec, keys: list[PageKey], hit: int) -> list[int] | None:
        """One group's first `hit` pages, NULL_PAGE where no later position looks; None if one is missing."""
        first = self._first_page(spec, hit * self.page_size)
        pages = [NULL_PAGE] * first
        for index in range(first, hit):
            page = pool.find(keys[index])
            if page is None:
                return None
            pages.append(page)
        return pages

    def _first_page(self, spec: KVSpec, position: int) -> int:
        """The first page that a query at `position` still sees."""
        return 0 if spec.window is None else max(0, position - spec.window + 1) // self.page_size

    # -- a request's life ---------------------------------------------------------------------------------------------

    def missing(self, request: int, positions: int) -> list[int]:
        """Pages to be granted in each group before the request can hold so many positions."""
        return [max(0, self.pages_for(positions) - len(pages)) for pages in self.tables[request].pages]

    def grow(self, request: int, positions: int) -> bool:
        """Grant the pages for `positions` positions; False, and nothing is changed, if they are not to be had."""
        missing = self.missing(request, positions)
        if any(count > pool.available for count, pool in zip(missing, self.pools, strict=True)):
            return False
        for group, (count, pool) in enumerate(zip(missing, self.pools, strict=True)):
            pages = self.tables[request].pages[group]
            pages.extend(pool.grant() for _ in range(count))
            # A page that the step fills is overwritten whole; in one that it does not, old contents could be read
            # with weight 0, and 0 x NaN is NaN.
            if count and positions % self.page_size:
                self.blank.append((group, pages[-1]))
        return True

    def settle(self, request: int, tokens: Sequence[int], computed: int) -> None:
        """After the step that computed them: publish pages now full, let go of pages that no window reaches."""
        table = self.tables[request]
        if self.prefix_cache:
            full = computed // self.page_size
            if full > len(table.keys):
                extend_keys(table.keys, tokens[: full * self.page_size], self.page_size)
            for pool, pages in zip(self.pools, table.pages, strict=True):
                for index in range(table.published, full):
                    if pages[index] != NULL_PAGE:
                        pool.publish(pages[index], table.keys[index])
            table.published = max(table.published, full)
        for pool, spec, pages in zip(self.pools, self.specs, table.pages, strict=True):
            self._let_go(pool, pages, self._first_page(spec, computed - 1))  # a fork runs the last position again

    @staticmethod
    def _let_go(pool: PagePool, pages: list[int], first: int) -> None:
        for index in range(first - 1, -1, -1):
            if pages[index] == NULL_PAGE:
                break
            pool.release(pages[index])
            pages[index] = NULL_PAGE

    def fork(self, parent: int, child: int, computed: int) -> bool:
        """Open a table for `child` over the first `computed` positions of `parent`: full pages are shared, a partial
        one is copied. False, and nothing is changed, if there is no page to copy it to."""
        full, partial = divmod(computed, self.page_size)
        if partial and any(pool.available == 0 for pool in self.pools):
            return False
        source = self.tables[parent]
        table = Table([pages[:full] for pages in source.pages], source.keys[:full], sent=[0] * len(self.pools))
        table.published = min(source.published, full)
        for group, (pool, pages) in enumerate(zip(self.pools, table.pages, strict=True)):
            assert NULL_PAGE not in pages[self._first_page(self.specs[group], computed) :]
            for page in pages:
                if page != NULL_PAGE:
                    pool.share(page)
            if partial:
                original = source.pages[group][full]
                pool.share(original)  # until the copy is made; `copied` lets go
                pages.append(pool.grant())
                self.copies.append(PageCopy(group, original, pages[-1]))
        self.tables[child] = table
        return True

    def copied(self, copies: Sequence[PageCopy]) -> None:
        """These copies were made, or need not be made any more: let go of their sources."""
        for copy in copies:
            self.copies.remove(copy)
            self.pools[copy.group].release(copy.source)

    def truncate(self, request: int, positions: int) -> None:
        """Roll back to the first `positions` positions: pages past them are released, names of pages forgotten.

        What others see stays as it is: the page that `positions` ends in must be the request's own. The runner has to
        be given the whole table again.
        """
        table = self.tables[request]
        keep, full = self.pages_for(positions), positions // self.page_size
        for pool, spec, pages in zip(self.pools, self.specs, table.pages, strict=True):
            assert NULL_PAGE not in pages[self._first_page(spec, positions) : keep], "a window has passed"
            assert keep == full or pool.private(pages[full]), "others see what would be written again"
        self._give_back(table, keep)
        table.sent = [0] * len(self.pools)
        del table.keys[full:]
        table.published = min(table.published, full)

    def release(self, request: int) -> None:
        """Close a request's table. Its later pages lose their place in the cache before its earlier ones."""
        self._give_back(self.tables.pop(request), 0)

    def _give_back(self, table: Table, keep: int) -> None:
        """Release a table's pages but for the first `keep`; copies to them are for nobody."""
        self.copied([copy for copy in self.copies if copy.target in table.pages[copy.group][keep:]])
        for pool, pages in zip(self.pools, table.pages, strict=True):
            for page in reversed(pages[keep:]):
                if page != NULL_PAGE:
                    pool.release(page)
            del pages[keep:]

    def unsent(self, request: int) -> tuple[tuple[int, ...], ...]:
        """The entries added since the last call, group by group; they are now known to the runner."""
        table = self.tables[request]
        new = tuple(tuple(pages[sent:]) for pages, sent in zip(table.pages, table.sent, strict=True))
        table.sent = [len(pages) for pages in table.pages]
        return new

    def shared_positions(self, request: int) -> int:
        """Positions of a request that would survive its release, because another request holds their pages too."""
        pool, pages = self.pools[0], self.tables[request].pages[0]
        return self.page_size * sum(1 for page in pages if page != NULL_PAGE and pool.references(page) > 1)

    def check(self) -> None:
        """Assert that references equal table entries and copies under way, in every pool."""
        for group, pool in enumerate(self.pools):
            pool.check()
            counts: dict[int, int] = {}
            for table in self.tables.values():
                for page in table.pages[group]:
                    counts[page] = counts.get(page, 0) + 1
            for copy in self.copies:
                if copy.group == group:
                    counts[copy.source] = counts.get(copy.source, 0) + 1
            counts.pop(NULL_PAGE, None)
            for page in range(1, pool.size + 1):
                assert pool.references(page) == counts.get(page, 0), f"page {page} of group {group} is miscounted"
