"""The ledger of KV memory: which pages hold which positions of which request. It knows no tensors.

All groups of layers take their pages from one pool; each has tables of its own. What runs at every step (`grow`,
`commit`, `unsent`) does nothing until a page is full or passed, which is one step in as many as a page has positions.
`unchanged_until` says how long a request that decodes need not ask.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ridgeline.core.ops.kv_layout import NULL_PAGE, KVGroup, KVLayout
from ridgeline.core.ops.work import CROSS
from ridgeline.engine.kv.pool import PagePool
from ridgeline.engine.kv.prefix import PageKey, extend_keys

Entries = tuple[tuple[int, ...], ...]
"""Page-table entries, group by group."""


@dataclass(slots=True)
class PageTable:
    """One request's pages, group by group, in the order of its positions; NULL_PAGE where a window has passed.

    passed: how many entries of each group those are. known: positions that it was promised room for. encoded: positions
    of its encoder, whose pages are granted together, before the first step runs. computed: positions that are in KV
    memory. room: positions that its pages hold. due: with how many there is something to settle. claim: pages it may
    still take for what is known. keys: names of its full pages so far. published: how many of them can be found. sent:
    entries that the runner knows; None before it has heard of any. fresh: whether there are others. block, named: as
    of extend_keys.
    """

    pages: list[list[int]]
    passed: list[int]
    known: int
    encoded: int = 0
    computed: int = 0
    room: int = 0
    due: int = 0
    claim: int = 0
    cache_namespace: bytes = b""
    block: int = 1
    named: int = 0
    keys: list[PageKey] = field(default_factory=list)
    published: int = 0
    sent: list[int] | None = None
    fresh: bool = True


def _held(tables: Sequence[Sequence[int]]) -> Iterator[int]:
    """The pages in a table of every group, later positions first."""
    for index in range(max(map(len, tables), default=0) - 1, -1, -1):
        for pages in tables:
            if index < len(pages) and pages[index] != NULL_PAGE:
                yield pages[index]


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy a page's contents before the step runs: a fork's partial page."""

    source: int
    target: int


class KVCacheManager:
    """Page tables of all requests over one pool."""

    def __init__(self, layout: KVLayout, chunk: int, *, prefix_cache: bool = True) -> None:
        """chunk: most positions of one request that a step runs. prefix_cache: find pages that others have filled,
        where the layout has no reason against it.

        `copies` and `blank` wait for the next step: pages to copy, and pages to fill with zeros. `claimed`: pages that
        the requests under way may still take for what they knew when they came. `growing`: the groups, with their
        numbers, that hold more of a longer sequence. `nothing`: the new entries of a request that has none.
        """
        self.layout, self.groups, self.page_size = layout, layout.groups, layout.page_size
        self.growing = [(index, group) for index, group in enumerate(self.groups) if group.spec.grows]
        self._fixed = [(index, group) for index, group in enumerate(self.groups) if not group.spec.grows]
        self._states = any(group.spec.is_state for group in self.groups)
        self.chunk, self.prefix_cache = chunk, prefix_cache and not layout.unshared
        self.pool = PagePool(layout.pages)
        self._capacity = layout.capacity(chunk)
        self.tables: dict[int, PageTable] = {}
        self.copies: list[PageCopy] = []
        self.blank: list[int] = []
        self.claimed = 0
        self.nothing: Entries = ((),) * len(self.groups)
        self._align = max((group.page_size for _, group in self.growing), default=self.page_size)
        self._windows = any(group.spec.passes for group in self.groups)
        self._refused: dict[int, list[PageKey]] = {}  # page names of the request that was last refused

    def capacity(self, encoded: int = 0) -> int:
        """Positions that one request alone could hold beside so many of its encoder."""
        return self.layout.capacity(self.chunk, encoded) if encoded and self._fixed else self._capacity

    @property
    def crosses(self) -> bool:
        """Whether layers look at an encoder's positions."""
        return CROSS in self.layout.reaches

    @property
    def reserve(self) -> int:
        """Pages that the requests under way are owed: those claimed, and one for each of them and every group that
        grows with it.
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
        """Open a table for a request and share what is cached of its tokens.

        encoded: positions of its encoder, for layers that look at them. Their pages are its own and its forks', never
        found by others: with a prefix that is found, too, the encoder runs. root: what its keys and values depend on
        beside the tokens, the encoder's input among it. block: tokens of which only the first is looked at, where they
        are known by names alone; named: how many are known to be (as extend_keys). find: whether what is cached may be
        shared; it may not where every position has to run.

        Returns how many positions need not be computed: whole pages, and never the last two positions. The last one's
        logits are wanted, and alone it would run as in a decode step, by another kernel with other rounding. None, and
        nothing is changed, if the pages for all its tokens and `reserve` more are not to be had.
        """
        assert request not in self.tables
        table = PageTable([[] for _ in self.groups], [0] * len(self.groups), len(tokens), encoded, cache_namespace=root)
        table.block, table.named = block, named
        table.keys = self._refused.pop(request, [])
        if self.prefix_cache and find:
            self._find(table, tokens)
        if self._wanted(table) + reserve > self.pool.available:
            self._refused = {request: table.keys}  # it will ask again at the next step
            return None
        for page in _held(table.pages):
            self.pool.incref(page)
        self.tables[request] = table
        self._claim(table)
        return table.computed

    def _wanted(self, table: PageTable) -> int:
        """Most pages that a new table takes at a time beside those that others hold too."""
        chunk, wanted = min(self.chunk, table.known - table.computed), 0
        for group, pages in zip(self.groups, table.pages, strict=True):
            idle = sum(1 for page in _held([pages]) if self.pool.references(page) == 0)
            missing = group.entries(table.known, table.encoded) - len(pages)
            wanted += min(group.kept(table.known, chunk, table.encoded), missing + idle)
        return wanted

    def _find(self, table: PageTable, tokens: Sequence[int]) -> None:
        """Put the longest cached prefix into a new table."""
        self._name(table, tokens, len(tokens) // self.page_size)
        hit = self.longest(table.keys, self.findable(len(tokens)))
        for index, group in self.growing:
            first = table.passed[index] = group.first_page(hit)
            names = (self.name(index, group, table.keys, page) for page in range(first, hit // group.page_size))
            found = map(self.pool.find, names)
            table.pages[index] = [NULL_PAGE] * first + [page for page in found if page is not None]
        table.computed, table.room = hit, self._room(table)
        table.published = hit // self.page_size

    def _name(self, table: PageTable, tokens: Sequence[int], full: int) -> None:
        """Name a table's first `full` small pages, as far as they have no names."""
        extend_keys(table.keys, tokens, self.page_size, full, table.cache_namespace, table.block, table.named)

    def findable(self, length: int) -> int:
        """Positions of so long a prompt that may be found: whole pages of every group, and not the last two."""
        return max(0, length - 2) // self._align * self._align

    def longest(self, keys: list[PageKey], most: int) -> int:
        """The longest prefix of at most `most` positions, whole pages of every group, that can be found now."""
        hit, shorter = most, -1
        while hit != shorter:  # until every group has it
            shorter = hit
            for index, group in self.growing:
                hit = self._longest(index, group, keys, hit)
        return hit

    def _longest(self, index: int, group: KVGroup, keys: list[PageKey], most: int) -> int:
        """The longest prefix of at most `most` positions of which a group has the pages that the next position sees."""
        if not group.spec.passes:
            missing = (
                i for i in range(most // group.page_size) if self.pool.find(self.name(index, group, keys, i)) is None
            )
            first_missing = next(missing, None)
            return most if first_missing is None else first_missing * group.page_size // self._align * self._align
        page = most // group.page_size
        while most and page > group.first_page(most):
            page -= 1
            if self.pool.find(self.name(index, group, keys, page)) is None:
                most = page * group.page_size // self._align * self._align
                page = most // group.page_size
        return most

    def name(self, index: int, group: KVGroup, keys: list[PageKey], page: int) -> tuple[int, PageKey]:
        """What a group's page is found by: names are of the smallest pages, and the last in it stands for all."""
        return index, keys[(page + 1) * (group.page_size // self.page_size) - 1]

    def _claim(self, table: PageTable) -> None:
        """Count anew what a table may still take."""
        chunk = max(1, min(self.chunk, table.known - table.computed))
        claim = 0
        for group, pages, passed in zip(self.groups, table.pages, table.passed, strict=True):
            claim += max(0, group.kept(table.known, chunk, table.encoded) - len(pages) + passed)
        self.claimed += claim - table.claim
        table.claim = claim

    # -- a request's life ---------------------------------------------------------------------------------------------

    def grow(self, request: int, positions: int) -> bool:
        """Grant the pages for `positions` positions, and all for the encoder's and for states; False, and nothing is
        changed, if they are not to be had.
        """
        table = self.tables[request]
        return positions <= table.room or self._grant(table, positions)

    def try_grow_speculative(self, request: int, positions: int) -> bool:
        """As `grow`, of pages that no request under way is owed: for positions that are only guessed."""
        table = self.tables[request]
        if positions <= table.room:
            return True
        return sum(self._missing(table, positions)) + self.reserve <= self.pool.available and self._grant(
            table, positions
        )

    def _missing(self, table: PageTable, positions: int) -> list[int]:
        """Entries that a table of so many positions has more, group by group."""
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
            # A page that the step fills is overwritten whole; in one that it does not, old contents could be read
            # with weight 0, and 0 x NaN is NaN. A state begins with zeros.
            if count > 0 and (group.spec.is_state or group.spec.slots(positions, table.encoded) % group.page_size):
                self.blank.append(pages[-1])
        table.room, table.fresh = self._room(table), True
        if table.claim or self._windows:  # else what is known has its pages, and more of them change nothing
            self._claim(table)
        return True

    def _room(self, table: PageTable) -> int:
        """Positions that a table's pages hold; none before it has the pages for its encoder's, and for states."""
        for index, group in self._fixed:
            if len(table.pages[index]) < group.entries(0, table.encoded):
                return 0
        return min([len(table.pages[index]) * group.page_size for index, group in self.growing], default=sys.maxsize)

    def commit(self, request: int, tokens: Sequence[int], computed: int) -> None:
        """After the step that computed them: publish pages now full, let go of pages that no window reaches."""
        table = self.tables[request]
        table.computed = computed
        if computed >= table.due:
            self._commit(table, tokens)

    def _commit(self, table: PageTable, tokens: Sequence[int]) -> None:
        if self.prefix_cache:
            self._publish(table, tokens, table.computed // self.page_size)
        if self._windows:
            self._let_go(table, table.computed - 1)  # a fork runs the last position again
            self._claim(table)
        table.due = (table.computed // self.page_size + 1) * self.page_size
        if table.computed < table.known:  # with the last of its prompt a request runs smaller chunks, and claims less
            table.due = min(table.due, table.known)

    def _publish(self, table: PageTable, tokens: Sequence[int], full: int) -> None:
        """Make a table's pages up to the first `full` small ones findable."""
        if full <= table.published:
            return
        self._name(table, tokens, full)
        for index, group in self.growing:
            pages, ratio = table.pages[index], group.page_size // self.page_size
            for page in range(table.published // ratio, full // ratio):
                if pages[page] != NULL_PAGE:
                    self.pool.publish(pages[page], self.name(index, group, table.keys, page))
        table.published = full

    def _passing(self, table: PageTable, position: int) -> Iterator[int]:
        """Pages that a table still holds and no query from `position` on sees."""
        for group, pages, passed in zip(self.groups, table.pages, table.passed, strict=True):
            yield from pages[passed : group.first_page(position)]

    def _let_go(self, table: PageTable, position: int) -> None:
        """Release the pages that no query from `position` on sees, the later ones first."""
        for index, (group, pages) in enumerate(zip(self.groups, table.pages, strict=True)):
            first = group.first_page(position)
            for page in range(first - 1, table.passed[index] - 1, -1):
                self.pool.release(pages[page])
                pages[page] = NULL_PAGE
            table.passed[index] = max(table.passed[index], first)

    def fork(self, parent: int, child: int, computed: int) -> bool:
        """Open a table for `child` over the first `computed` positions of `parent`: pages that nobody writes any more
        are shared, a partial one or a state is copied. False, and nothing is changed, if there is no page to copy it
        to, or if a state has seen more positions.
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
            shared, list(source.passed), computed + 1, source.encoded, computed, cache_namespace=source.cache_namespace
        )
        table.block, table.named = source.block, source.named
        table.keys = source.keys[: computed // self.page_size]
        table.published = min(source.published, len(table.keys))
        for group, pages in zip(self.groups, table.pages, strict=True):
            assert NULL_PAGE not in pages[group.first_page(computed) :], "a window has passed"
        for page in _held(table.pages):
            self.pool.incref(page)
        for index in partial:
            table.pages[index].append(self._copy(source.pages[index][final[index]]))
        table.room = self._room(table)
        self.tables[child] = table
        self._claim(table)
        return True

    def _copy(self, page: int) -> int:
        """A new page that the next step copies `page` to."""
        self.pool.incref(page)  # until the copy is made; `copied` lets go
        self.copies.append(PageCopy(page, self.pool.allocate()))
        return self.copies[-1].target

    def copied(self, copies: Sequence[PageCopy]) -> None:
        """These copies were made, or need not be made any more: let go of their sources."""
        for copy in copies:
            self.copies.remove(copy)
            self.pool.release(copy.source)

    def release(self, request: int) -> None:
        """Close a request's table. Its later pages lose their place in the cache before its earlier ones."""
        table = self.tables.pop(request)
        self.claimed -= table.claim
        lost = list(_held(table.pages))
        if self.copies:  # those to its pages are for nobody
            self.copied([copy for copy in self.copies if copy.target in lost])
        for page in lost:
            self.pool.release(page)

    def unchanged_until(self, request: int) -> int:
        """Return with how many computed positions a request that decodes needs `grow` or `commit` next; 0 if the runner
        does not know all of its entries.
        """
        table = self.tables[request]
        return 0 if table.fresh else min(table.room, table.due)

    def unsent(self, request: int) -> tuple[bool, Entries]:
        """The entries that the runner does not know, which it now does; and whether they are the whole table."""
        table = self.tables[request]
        if not table.fresh:
            return False, self.nothing
        first, sent = table.sent is None, table.sent or [0] * len(self.groups)
        table.sent, table.fresh = [len(pages) for pages in table.pages], False
        return first, tuple(tuple(pages[known:]) for pages, known in zip(table.pages, sent, strict=True))

    def shared_positions(self, request: int) -> int:
        """Positions of a request that would survive its release, because another request holds their pages too."""
        if not self.prefix_cache:
            return 0  # it would not find them again
        index, group = min(self.growing, key=lambda own: own[1].spec.passes)
        shared = sum(
            1 for page in self.tables[request].pages[index] if page != NULL_PAGE and self.pool.references(page) > 1
        )
        return group.page_size * shared

    def published_group(self, page: int) -> int | None:
        """Which group's contents a page has, where they can be found."""
        key = self.pool.key(page)
        assert key is None or isinstance(key, tuple)  # as `name` makes them
        return None if key is None else int(key[0])

    def check(self) -> None:
        """Assert that references equal table entries and copies under way, and that claims add up."""
        self.pool.check()
        counts = [0] * (self.pool.size + 1)
        for table in self.tables.values():
            for page in _held(table.pages):
                counts[page] += 1
        for copy in self.copies:
            counts[copy.source] += 1
        for page in range(1, self.pool.size + 1):
            assert self.pool.references(page) == counts[page], f"page {page} is miscounted"
        assert self.claimed == sum(table.claim for table in self.tables.values())
