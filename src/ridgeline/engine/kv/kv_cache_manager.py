"""The KV cache manager, which tracks which pages hold which positions of which request. It knows no tensors.

All groups of layers take their pages from one pool, and each group has page tables of its own. The methods that run at
every step (`grow`, `commit`, `unsent`) do nothing until a page is full or has left a window, which is one step in as
many as a page has positions. `unchanged_until` returns until when a decoding request need not call them.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ridgeline.core.ops.kv_layout import NULL_PAGE, KVGroup, KVLayout
from ridgeline.core.ops.work import CROSS
from ridgeline.engine.kv.pool import PagePool
from ridgeline.engine.kv.prefix import PageKey, extend_keys

Entries = tuple[tuple[int, ...], ...]
"""The page-table entries of a request, group by group."""


@dataclass(slots=True)
class PageTable:
    """The page tables of one request, one for each group of layers."""

    pages: list[list[int]]
    """The pages of each group, in the order of positions; NULL_PAGE for pages that have left a window."""
    num_out_of_window: list[int]
    """The number of entries at the start of each group's page table whose pages have left a sliding window."""
    promised_positions: int
    """The number of positions known at admission, for which the request is promised pages."""
    encoded: int = 0
    """The number of encoder positions, whose pages are allocated together before the first step runs."""
    computed: int = 0
    """The number of the request's positions that are in KV memory."""
    capacity: int = 0
    """The number of positions that the request's pages can hold."""
    next_commit: int = 0
    """The number of computed positions at which `KVCacheManager.commit` next has work for the request."""
    claim: int = 0
    """The number of pages that the request may still take for the positions known at admission."""
    cache_namespace: bytes = b""
    """A digest of everything but the tokens that the contents of the request's pages depend on."""
    block: int = 1
    """The number of tokens per block in a prompt that has an id per block of tokens; 1 for an id per token."""
    named: int = 0
    """The number of tokens at the start of the prompt that have only an id per block of tokens."""
    keys: list[PageKey] = field(default_factory=list)
    """The prefix-cache keys of the request's full pages so far."""
    published: int = 0
    """The number of full pages that other requests can find, in pages of the smallest size."""
    sent: list[int] | None = None
    """The number of page-table entries of each group that the runner has received; None before the first."""
    fresh: bool = True
    """Whether the request has page-table entries that the runner has not received."""


def _held(tables: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield the pages in a request's tables of all groups, later positions first."""
    for index in range(max(map(len, tables), default=0) - 1, -1, -1):
        for pages in tables:
            if index < len(pages) and pages[index] != NULL_PAGE:
                yield pages[index]


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A copy of one page's contents to another before a step runs, for the partial page of a fork."""

    source: int
    """The KV page whose contents are copied."""
    target: int
    """The KV page that receives the copied contents."""


class KVCacheManager:
    """The page tables of all requests over one pool of KV pages."""

    def __init__(self, layout: KVLayout, chunk: int, *, prefix_cache: bool = True) -> None:
        """Make a manager in which all pages are free.

        Args:
            layout: The number of pages, and the groups of layers that share them.
            chunk: Maximum number of positions of one request that a step runs.
            prefix_cache: Whether to reuse pages that other requests have filled, if the layout permits it.
        """
        self.layout, self.groups, self.page_size = layout, layout.groups, layout.page_size
        self.growing = [(index, group) for index, group in enumerate(self.groups) if group.spec.grows]
        """The layer groups, with their indices, that need more pages for a longer sequence."""
        self._fixed = [(index, group) for index, group in enumerate(self.groups) if not group.spec.grows]
        self._states = any(group.spec.is_state for group in self.groups)
        self.chunk, self.prefix_cache = chunk, prefix_cache and not layout.why_no_prefix_cache
        self.pool = PagePool(layout.pages)
        self._capacity = layout.capacity(chunk)
        self.tables: dict[int, PageTable] = {}
        self.copies: list[PageCopy] = []
        """The page copies that the next step makes before it runs."""
        self.pages_to_zero: list[int] = []
        """The pages that the next step fills with zeros before it runs."""
        self.claimed = 0
        """The number of pages that running requests may still take for the positions known at their admission."""
        self.nothing: Entries = ((),) * len(self.groups)
        """The empty page-table entries of a request for which no page is new, one tuple per layer group."""
        self._align = max((group.page_size for _, group in self.growing), default=self.page_size)
        self._windows = any(group.spec.frees_positions for group in self.groups)
        self._refused: dict[int, list[PageKey]] = {}  # page keys of the request that was refused last

    def capacity(self, encoded: int = 0) -> int:
        """Return the number of positions that a single request could hold, not counting encoder positions."""
        return self.layout.capacity(self.chunk, encoded) if encoded and self._fixed else self._capacity

    @property
    def crosses(self) -> bool:
        """Whether layers of the model attend to the positions of an encoder."""
        return CROSS in self.layout.reaches

    @property
    def reserve(self) -> int:
        """The number of pages to keep available for running requests.

        These are the pages that they claim, and for each of them one more in every group that grows with the sequence.
        """
        return self.claimed + len(self.tables) * len(self.growing)

    # -- admission ----------------------------------------------------------------------------------------------------

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        reserve: int,
        *,
        encoded: int = 0,
        root: bytes = b"",
        block: int = 1,
        named: int = 0,
        find: bool = True,
    ) -> int | None:
        """Open page tables for a request and share the cached pages of its prefix.

        Args:
            request: The id of the request.
            tokens: Its known tokens.
            reserve: Number of pages that must remain available.
            encoded: Number of encoder positions, for layers that attend to them. Only the request and its forks use
                these pages: the encoder runs even if a prefix is cached.
            root: Everything but the tokens that its keys and values depend on, the encoder's input included.
            block: Number of tokens that a block name stands for, if the prompt consists of names (as in `extend_keys`).
            named: Number of tokens that are names.
            find: Whether to share cached pages; False if every position has to run.

        Returns:
            The number of cached positions: whole pages, and never the last two positions. The last one must run for its
            logits, and if it ran alone, it would run as a decode step, in another kernel with other rounding. None,
            with nothing changed, if the pool lacks pages for all of its tokens plus `reserve`.
        """
        assert request not in self.tables
        table = PageTable([[] for _ in self.groups], [0] * len(self.groups), len(tokens), encoded, cache_namespace=root)
        table.block, table.named = block, named
        table.keys = self._refused.pop(request, [])
        if self.prefix_cache and find:
            self._find(table, tokens)
        if self._wanted(table) + reserve > self.pool.available:
            self._refused = {request: table.keys}  # the scheduler will try it again at the next step
            return None
        for page in _held(table.pages):
            self.pool.incref(page)
        self.tables[request] = table
        self._claim(table)
        return table.computed

    def _wanted(self, table: PageTable) -> int:
        """Return the most available pages that a new request's page tables will take at a time.

        Pages that other requests hold, too, do not count.
        """
        chunk, wanted = min(self.chunk, table.promised_positions - table.computed), 0
        for group, pages in zip(self.groups, table.pages, strict=True):
            idle = sum(1 for page in _held([pages]) if self.pool.references(page) == 0)
            missing = group.entries(table.promised_positions, table.encoded) - len(pages)
            wanted += min(group.max_pages(table.promised_positions, chunk, table.encoded), missing + idle)
        return wanted

    def _find(self, table: PageTable, tokens: Sequence[int]) -> None:
        """Put the pages of the longest cached prefix into a new request's page tables."""
        self._name(table, tokens, len(tokens) // self.page_size)
        hit = self.longest_cached_prefix(table.keys, self.max_cached_prefix(len(tokens)))
        for index, group in self.growing:
            first = table.num_out_of_window[index] = group.first_page(hit)
            names = (self.page_key(index, group, table.keys, page) for page in range(first, hit // group.page_size))
            found = map(self.pool.find, names)
            table.pages[index] = [NULL_PAGE] * first + [page for page in found if page is not None]
        table.computed, table.capacity = hit, self._room(table)
        table.published = hit // self.page_size

    def _name(self, table: PageTable, tokens: Sequence[int], full: int) -> None:
        """Compute the missing prefix-cache keys of a request's first `full` pages of the smallest size."""
        extend_keys(table.keys, tokens, self.page_size, full, table.cache_namespace, table.block, table.named)

    def max_cached_prefix(self, length: int) -> int:
        """Return how many positions of a prompt of this length the prefix cache can provide at most.

        These are whole pages of every group, and not the last two positions.
        """
        return max(0, length - 2) // self._align * self._align

    def longest_cached_prefix(self, keys: list[PageKey], most: int) -> int:
        """Return the number of positions in a prompt's longest cached prefix.

        Args:
            keys: The keys of the prompt's full pages.
            most: Maximum length of the prefix, in positions: whole pages of every group.
        """
        hit, shorter = most, -1
        while hit != shorter:  # until every group has this prefix
            shorter = hit
            for index, group in self.growing:
                hit = self._longest(index, group, keys, hit)
        return hit

    def _longest(self, index: int, group: KVGroup, keys: list[PageKey], most: int) -> int:
        """Return the longest prefix, of at most `most` positions, that a group's cached pages can continue.

        The group needs the pages that the position after the prefix sees.
        """
        if not group.spec.frees_positions:
            missing = (
                i
                for i in range(most // group.page_size)
                if self.pool.find(self.page_key(index, group, keys, i)) is None
            )
            first_missing = next(missing, None)
            return most if first_missing is None else first_missing * group.page_size // self._align * self._align
        page = most // group.page_size
        while most and page > group.first_page(most):
            page -= 1
            if self.pool.find(self.page_key(index, group, keys, page)) is None:
                most = page * group.page_size // self._align * self._align
                page = most // group.page_size
        return most

    def page_key(self, index: int, group: KVGroup, keys: list[PageKey], page: int) -> tuple[int, PageKey]:
        """Return the key under which a group's page is found in the pool.

        Keys exist for pages of the smallest size; a larger page has the key of the last of those in it.
        """
        return index, keys[(page + 1) * (group.page_size // self.page_size) - 1]

    def _claim(self, table: PageTable) -> None:
        """Recompute the number of KV pages that a request may still take for its known positions."""
        chunk = max(1, min(self.chunk, table.promised_positions - table.computed))
        claim = 0
        for group, pages, passed in zip(self.groups, table.pages, table.num_out_of_window, strict=True):
            claim += max(0, group.max_pages(table.promised_positions, chunk, table.encoded) - len(pages) + passed)
        self.claimed += claim - table.claim
        table.claim = claim

    # -- a request's life ---------------------------------------------------------------------------------------------

    def grow(self, request: int, positions: int) -> bool:
        """Allocate the pages for a request's first `positions` positions, its encoder's and its states.

        Returns False, with nothing changed, if the pool lacks pages.
        """
        table = self.tables[request]
        return positions <= table.capacity or self._grant(table, positions)

    def try_grow_speculative(self, request: int, positions: int) -> bool:
        """Allocate pages for guessed positions unless that would take pages reserved for running requests."""
        table = self.tables[request]
        if positions <= table.capacity:
            return True
        return sum(self._missing(table, positions)) + self.reserve <= self.pool.available and self._grant(
            table, positions
        )

    def _missing(self, table: PageTable, positions: int) -> list[int]:
        """Return how many page-table entries each layer group lacks for this number of positions."""
        return [
            group.entries(positions, table.encoded) - len(pages)
            for group, pages in zip(self.groups, table.pages, strict=True)
        ]

    def _grant(self, table: PageTable, positions: int) -> bool:
        missing = self._missing(table, positions)
        if self._windows:
            passing = sum(self.pool.references(page) == 1 for page in self._passing(table, table.computed))
            if sum(missing) > self.pool.available + passing:
                return False
            self._let_go(table, table.computed)
        elif sum(missing) > self.pool.available:
            return False
        for group, pages, count in zip(self.groups, table.pages, missing, strict=True):
            pages += [self.pool.allocate() for _ in range(count)]
            # A step overwrites every page that it fills. A partial page is blanked: its old contents could be read
            # with weight 0, and 0 x NaN is NaN. A state starts with zeros.
            if count > 0 and (group.spec.is_state or group.spec.slots(positions, table.encoded) % group.page_size):
                self.pages_to_zero.append(pages[-1])
        table.capacity, table.fresh = self._room(table), True
        if table.claim or self._windows:  # else all known positions have pages, and the claim stays 0
            self._claim(table)
        return True

    def _room(self, table: PageTable) -> int:
        """Return the number of positions that the pages in a request's page tables can hold.

        It is 0 before the table has the pages of its encoder and states.
        """
        for index, group in self._fixed:
            if len(table.pages[index]) < group.entries(0, table.encoded):
                return 0
        return min([len(table.pages[index]) * group.page_size for index, group in self.growing], default=sys.maxsize)

    def commit(self, request: int, tokens: Sequence[int], computed: int) -> None:
        """Record the positions that a step computed: publish full pages and release those that left a window."""
        table = self.tables[request]
        table.computed = computed
        if computed >= table.next_commit:
            self._commit(table, tokens)

    def _commit(self, table: PageTable, tokens: Sequence[int]) -> None:
        if self.prefix_cache:
            self._publish(table, tokens, table.computed // self.page_size)
        if self._windows:
            self._let_go(table, table.computed - 1)  # a fork runs the last position again
            self._claim(table)
        table.next_commit = (table.computed // self.page_size + 1) * self.page_size
        if table.computed < table.promised_positions:  # after its prompt a request runs smaller chunks and claims less
            table.next_commit = min(table.next_commit, table.promised_positions)

    def _publish(self, table: PageTable, tokens: Sequence[int], full: int) -> None:
        """Make a request's pages findable by prefix caching, up to its first `full` pages of the smallest size."""
        if full <= table.published:
            return
        self._name(table, tokens, full)
        for index, group in self.growing:
            pages, ratio = table.pages[index], group.page_size // self.page_size
            for page in range(table.published // ratio, full // ratio):
                if pages[page] != NULL_PAGE:
                    self.pool.publish(pages[page], self.page_key(index, group, table.keys, page))
        table.published = full

    def _passing(self, table: PageTable, position: int) -> Iterator[int]:
        """Yield the pages that a request holds although no query from `position` on sees them."""
        for group, pages, passed in zip(self.groups, table.pages, table.num_out_of_window, strict=True):
            yield from pages[passed : group.first_page(position)]

    def _let_go(self, table: PageTable, position: int) -> None:
        """Release the pages of a request that no query from `position` on sees, later ones first."""
        for index, (group, pages) in enumerate(zip(self.groups, table.pages, strict=True)):
            first = group.first_page(position)
            for page in range(first - 1, table.num_out_of_window[index] - 1, -1):
                self.pool.release(pages[page])
                pages[page] = NULL_PAGE
            table.num_out_of_window[index] = max(table.num_out_of_window[index], first)

    def fork(self, parent: int, child: int, computed: int) -> bool:
        """Open page tables for a child request over the first `computed` positions of its parent.

        Pages that no step writes any more are shared; a partial page is copied, and so is a state. Returns False, with
        nothing changed, if there is no page to copy to, or if a state has seen more positions.
        """
        source = self.tables[parent]
        if self._states and computed != source.computed:
            return False
        final = [group.final(computed, source.encoded) for group in self.groups]
        partial = [i for i, group in enumerate(self.groups) if group.entries(computed, source.encoded) > final[i]]
        if len(partial) > self.pool.available:
            return False
        shared = [pages[:count] for pages, count in zip(source.pages, final, strict=True)]
        table = PageTable(
            shared,
            list(source.num_out_of_window),
            computed + 1,
            source.encoded,
            computed,
            cache_namespace=source.cache_namespace,
        )
        table.block, table.named = source.block, source.named
        table.keys = source.keys[: computed // self.page_size]
        table.published = min(source.published, len(table.keys))
        for group, pages in zip(self.groups, table.pages, strict=True):
            assert NULL_PAGE not in pages[group.first_page(computed) :], "the page of a sliding window was freed"
        for page in _held(table.pages):
            self.pool.incref(page)
        for index in partial:
            table.pages[index].append(self._copy(source.pages[index][final[index]]))
        table.capacity = self._room(table)
        self.tables[child] = table
        self._claim(table)
        return True

    def _copy(self, page: int) -> int:
        """Allocate a page into which the next step copies `page`, and return it."""
        self.pool.incref(page)  # held until the copy is made; `copied` releases it
        self.copies.append(PageCopy(page, self.pool.allocate()))
        return self.copies[-1].target

    def copied(self, copies: Sequence[PageCopy]) -> None:
        """Release the source pages of page copies that were made or are not needed any more."""
        for copy in copies:
            self.copies.remove(copy)
            self.pool.release(copy.source)

    def release(self, request: int) -> None:
        """Close a request's page tables and release its pages, so that later pages are evicted before earlier ones."""
        table = self.tables.pop(request)
        self.claimed -= table.claim
        lost = list(_held(table.pages))
        if self.copies:  # copies to its pages are not needed any more
            self.copied([copy for copy in self.copies if copy.target in lost])
        for page in lost:
            self.pool.release(page)

    def unchanged_until(self, request: int) -> int:
        """Return with how many computed positions a decoding request needs `grow` or `commit` next.

        It is 0 if the runner has not received all of its page-table entries.
        """
        table = self.tables[request]
        return 0 if table.fresh else min(table.capacity, table.next_commit)

    def unsent(self, request: int) -> tuple[bool, Entries]:
        """Return the page-table entries that the runner has not received, and count them as received.

        Returns:
            Whether the entries are the whole table, and the entries.
        """
        table = self.tables[request]
        if not table.fresh:
            return False, self.nothing
        first, sent = table.sent is None, table.sent or [0] * len(self.groups)
        table.sent, table.fresh = [len(pages) for pages in table.pages], False
        return first, tuple(tuple(pages[known:]) for pages, known in zip(table.pages, sent, strict=True))

    def shared_positions(self, request: int) -> int:
        """Return how many positions of a request would survive its release because other requests hold their pages."""
        if not self.prefix_cache:
            return 0  # it could not find the pages again
        index, group = min(self.growing, key=lambda own: own[1].spec.frees_positions)
        shared = sum(
            1 for page in self.tables[request].pages[index] if page != NULL_PAGE and self.pool.references(page) > 1
        )
        return group.page_size * shared

    def published_group(self, page: int) -> int | None:
        """Return the index of the layer group whose contents a published page holds; None if it is not published."""
        key = self.pool.key(page)
        assert key is None or isinstance(key, tuple)  # `page_key` makes the keys
        return None if key is None else int(key[0])

    def check(self) -> None:
        """Assert that reference counts equal table entries plus pending copies, and that claims add up."""
        self.pool.check()
        counts = [0] * (self.pool.size + 1)
        for table in self.tables.values():
            for page in _held(table.pages):
                counts[page] += 1
        for copy in self.copies:
            counts[copy.source] += 1
        for page in range(1, self.pool.size + 1):
            assert self.pool.references(page) == counts[page], f"page {page} has a wrong reference count"
        assert self.claimed == sum(table.claim for table in self.tables.values())
