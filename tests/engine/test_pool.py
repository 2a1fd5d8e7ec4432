"""The pages of KV memory, fuzzed: whoever looks at a position finds there what was written for it.

The model of a page's contents is a list of what its slots were written for: the whole prefix up to and including the
position, because keys and values depend on all of it. What is free is poisoned at once.
"""

import copy
import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.null_model import Kind, layout_of
from ridgeline.core.ops.kv_layout import NULL_PAGE, StateSpec
from ridgeline.core.ops.work import CROSS, AttentionPattern
from ridgeline.engine.kv import prefix
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.pool import PagePool
from ridgeline.engine.kv.prefix import PageKey, extend_keys

BLANK: tuple[int, ...] = ()
POISON = None
Slots = list[tuple[int, ...] | None]

SOME = st.integers(0, 1_000)  # picks one of what there is, by its remainder
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=18)


ENCODED = st.lists(st.integers(0, 1), max_size=5).map(tuple)


CHUNK = 9  # most positions of a request that a step runs here
CHUNKED = AttentionPattern("chunked", 5)
STATE = StateSpec(2, torch.float32)


def make_ledger(kinds: tuple[Kind, ...], pages: int, page_size: int, prefix_cache: bool = True) -> KVCacheManager:
    return KVCacheManager(layout_of(kinds, pages, page_size), CHUNK, prefix_cache=prefix_cache)


class Pages(RuleBasedStateMachine):
    """Requests come, grow, fork and go over a ledger whose pools are nearly always too small."""

    @initialize(
        kinds=st.sampled_from(
            [
                *((None,), (3,), (None, 4), (2, None, 7), (CHUNKED, None)),
                *((None, CROSS), (CROSS, 3, CHUNKED), (STATE,), (None, STATE), (STATE, 4, CROSS)),
            ]
        ),
        pages=st.integers(4, 24),
        page_size=st.sampled_from([1, 2, 4]),
        prefix_cache=st.booleans(),
    )
    def begin(self, kinds: tuple[Kind, ...], pages: int, page_size: int, prefix_cache: bool) -> None:
        self.ledger = make_ledger(kinds, pages, page_size, prefix_cache)
        self.reaches = [None if group.spec.is_state else group.spec.reach for group in self.ledger.groups]
        self.of_states = [group for group, reach in enumerate(self.reaches) if reach is None]
        self.of_encoders = [group for group, reach in enumerate(self.reaches) if reach == CROSS]
        self.of_tokens = [group for group, reach in enumerate(self.reaches) if reach not in (None, CROSS)]
        self.size, self.next_id = page_size, 0
        self.refused: dict[int, tuple[list[int], tuple[int, ...]]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.encoders: dict[int, tuple[int, ...]] = {}  # what each request's encoder reads
        self.encoded: set[int] = set()  # whose encoders have run
        self.computed: dict[int, int] = {}
        self.sent: dict[int, list[list[int]]] = {}  # tables as the runner has them
        self.past: list[tuple[list[int], tuple[int, ...]]] = []
        self.slots: list[Slots] = [[POISON] * page_size for _ in range(pages + 1)]  # of every page
        self.slots[NULL_PAGE] = [BLANK] * page_size

    def pick(self, some: int) -> int:
        return sorted(self.tokens)[some % len(self.tokens)]

    def state(self) -> object:
        """All that a refusal must leave as it is."""
        pool = self.ledger.pool
        counts = pool.available, pool.cached, pool.free_pages, self.ledger.reserve
        return copy.deepcopy((self.ledger.tables, self.ledger.copies, self.ledger.pages_to_zero, counts))

    # -- rules --------------------------------------------------------------------------------------------------------

    @rule(tokens=TOKENS, encoder=ENCODED, reserve=st.integers(0, 2))
    def admit(self, tokens: list[int], encoder: tuple[int, ...], reserve: int) -> None:
        self.next_id += 1
        self.ask(self.next_id, tokens, encoder, reserve)

    def ask(self, request: int, tokens: list[int], encoder: tuple[int, ...], reserve: int) -> None:
        before = self.state()
        hit = self.ledger.admit(request, tokens, reserve, encoded=len(encoder), root=bytes(encoder))
        if hit is None:
            assert self.state() == before
            self.refused[request] = tokens, encoder
            return
        assert hit % self.size == 0
        assert hit == 0 or hit <= len(tokens) - 2, "the last two positions run, as a prompt does"
        assert hit == 0 or self.ledger.prefix_cache
        assert hit == 0 or not self.of_states, "the state there is not known"
        self.open(request, tokens, encoder, hit)

    @precondition(lambda self: self.refused)
    @rule(some=SOME, reserve=st.integers(0, 1))
    def admit_after_refusal(self, some: int, reserve: int) -> None:
        request = sorted(self.refused)[some % len(self.refused)]
        self.ask(request, *self.refused.pop(request), reserve)

    @precondition(lambda self: self.past)
    @rule(some=SOME, cut=SOME, more=TOKENS)
    def admit_again(self, some: int, cut: int, more: list[int]) -> None:
        """A prompt that begins as an earlier one, of the same encoder."""
        known, encoder = self.past[some % len(self.past)]
        self.admit((known[: cut % (len(known) + 1)] + more)[:24], encoder, 0)

    def open(self, request: int, tokens: list[int], encoder: tuple[int, ...], computed: int) -> None:
        self.tokens[request], self.encoders[request] = list(tokens), encoder
        self.computed[request] = computed
        self.past = [*self.past[-6:], (list(tokens), encoder)]

    @precondition(lambda self: self.tokens)
    @rule(some=SOME, token=st.integers(0, 1))
    def sample(self, some: int, token: int) -> None:
        request = self.pick(some)
        if self.computed[request] == len(self.tokens[request]) < 30:
            self.tokens[request].append(token)

    @precondition(lambda self: self.tokens)
    @rule(some=st.lists(SOME, min_size=1, max_size=3), count=st.integers(1, 9))
    def step(self, some: list[int], count: int) -> None:
        """Several requests grow, then one step runs them all."""
        run: dict[int, int] = {}
        for request in dict.fromkeys(map(self.pick, some)):
            end = min(self.computed[request] + count, len(self.tokens[request]))
            if end == self.computed[request]:
                continue
            before = self.state()
            if self.ledger.grow(request, end):
                run[request] = end
            else:
                assert self.state() == before
        self.execute(run)

    def execute(self, run: dict[int, int]) -> None:
        copies = list(self.ledger.copies)
        for page in self.ledger.pages_to_zero:
            self.slots[page] = [BLANK] * self.size
        for made in copies:
            self.slots[made.target] = list(self.slots[made.source])
        self.ledger.pages_to_zero.clear()
        for request, end in run.items():
            self.send(request)
            if request not in self.encoded:
                self.encode(request)
            for position in range(self.computed[request], end):
                self.write(request, position)
            self.computed[request] = end
        self.check_readable(run)
        self.ledger.copied(copies)
        for request, end in run.items():
            self.ledger.commit(request, self.tokens[request], end)

    def send(self, request: int) -> None:
        whole, new = self.ledger.unsent(request)
        assert whole == (request not in self.sent)
        table = self.sent.setdefault(request, [[] for _ in new])
        for own, pages in zip(table, new, strict=True):
            own.extend(pages)
        for own, pages in zip(table, self.ledger.tables[request].pages, strict=True):
            assert len(own) == len(pages)
            assert all(page in (known, NULL_PAGE) for page, known in zip(pages, own, strict=True))

    def encode(self, request: int) -> None:
        """The encoder runs whole, in the first step of its request."""
        self.encoded.add(request)
        for group in self.of_encoders:
            for position in range(len(self.encoders[request])):
                self.put(group, request, position)

    def write(self, request: int, position: int) -> None:
        for group in self.of_tokens:
            self.put(group, request, position)
        for group in self.of_states:
            (page,) = self.sent[request][group]
            before = self.content(group, request, position - 1) if position else BLANK
            assert self.slots[page][0] == before, "a state goes on from where it was"
            self.put(group, request, position)

    def put(self, group: int, request: int, position: int) -> None:
        index, offset = (0, 0) if group in self.of_states else divmod(position, self.size)
        page = self.sent[request][group][index]
        entries = [page for table in self.ledger.tables.values() for own in table.pages for page in own]
        assert entries.count(page) == 1, "two tables hold a page that is written"
        keys = self.ledger.tables[request].keys
        found = index < len(keys) and self.ledger.pool.find((group, keys[index])) == page
        assert not found, "a page that is written can be found"
        assert page != NULL_PAGE
        self.slots[page][offset] = self.content(group, request, position)

    def content(self, group: int, request: int, position: int) -> tuple[int, ...]:
        """What a group's slot of a position holds: an encoder looks at all of its input. A state has one slot, which
        holds what a position's would."""
        encoder = self.encoders[request]
        if group in self.of_encoders:
            return (group, position, *encoder)
        return (group, *encoder, *self.tokens[request][: position + 1])

    def first_seen(self, group: int, position: int) -> int:
        """The first position that a query at `position` sees, counted anew."""
        reach = self.reaches[group]
        assert reach is not None
        seen = {"window": position - reach.size + 1, "chunked": position - position % (reach.size or 1)}
        return max(0, seen.get(reach.kind, 0))

    def check_readable(self, run: dict[int, int]) -> None:
        """Whole pages are gathered and what is masked has weight 0: no slot of them may hold NaN."""
        for request, end in run.items():
            for group in [*self.of_tokens, *self.of_encoders]:
                written = len(self.encoders[request]) if group in self.of_encoders else end
                first = self.first_seen(group, end - 1) // self.size
                for page in self.sent[request][group][first : -(-written // self.size)]:
                    assert POISON not in self.slots[page], "a masked position holds NaN"

    @precondition(lambda self: self.tokens)
    @rule(some=SOME, count=st.integers(1, 9))
    def grow_in_vain(self, some: int, count: int) -> None:
        """Pages granted to a request that is preempted before the step runs."""
        request = self.pick(some)
        self.ledger.grow(request, min(self.computed[request] + count, len(self.tokens[request])))
        self.release(some)

    @precondition(lambda self: self.tokens)
    @rule(some=SOME, back=st.integers(0, 1))
    def fork(self, some: int, back: int) -> None:
        parent = self.pick(some)
        if self.computed[parent] != len(self.tokens[parent]):
            return  # the prompt is not computed yet
        computed = self.computed[parent] - back
        before = self.state()
        self.next_id += 1
        if not self.ledger.fork(parent, self.next_id, computed):
            assert self.state() == before
            assert self.of_states or computed % self.size, "full pages can always be shared"
            return
        assert back == 0 or not self.of_states, "a state is further than the fork"
        own, child = self.ledger.tables[parent].pages, self.ledger.tables[self.next_id].pages
        for group in self.of_tokens:
            full = computed // self.size
            assert child[group][:full] == own[group][:full], "full pages are shared"
        for group in self.of_encoders:
            assert child[group] == own[group], "an encoder runs once for all choices"
        self.open(self.next_id, [*self.tokens[parent], 0][: computed + 1], self.encoders[parent], computed)
        self.encoded.add(self.next_id)

    @precondition(lambda self: self.tokens)
    @rule(some=SOME)
    def release(self, some: int) -> None:
        request = self.pick(some)
        self.ledger.release(request)
        self.encoded.discard(request)
        for of_all in (self.tokens, self.encoders, self.computed, self.sent):
            of_all.pop(request, None)  # type: ignore[attr-defined]

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def counts_are_right(self) -> None:
        self.ledger.check()
        assert self.ledger.tables.keys() == self.tokens.keys()
        if not self.tokens:
            assert not self.ledger.copies
            assert self.ledger.pool.available == self.ledger.pool.size
            assert self.ledger.reserve == 0

    @invariant()
    def nothing_is_kept_beyond_the_rule(self) -> None:
        """Window - 1 + chunk positions, wherever in a page they begin; of an encoder all that it gave."""
        for request, table in self.ledger.tables.items():
            for group, (reach, pages) in enumerate(zip(self.reaches, table.pages, strict=True)):
                held = sum(page != NULL_PAGE for page in pages)
                if reach is None:
                    assert held == len(pages) <= 1
                elif reach.size:
                    assert held <= (reach.size - 1 + CHUNK - 1 + self.size - 1) // self.size + 1
                if group in self.of_encoders:
                    assert held in (0, -(-len(self.encoders[request]) // self.size))

    @invariant()
    def free_pages_are_poisoned(self) -> None:
        for page in self.ledger.pool.free_pages:
            self.slots[page] = [POISON] * self.size

    @invariant()
    def every_visible_position_is_right(self) -> None:
        waiting = {made.target: made.source for made in self.ledger.copies}
        for request, computed in self.computed.items():
            for group, pages in enumerate(self.ledger.tables[request].pages):
                for position in self.visible(group, request, computed):
                    index, offset = (0, 0) if group in self.of_states else divmod(position, self.size)
                    slots = self.slots[waiting.get(pages[index], pages[index])]
                    assert slots[offset] == self.content(group, request, position)

    def visible(self, group: int, request: int, computed: int) -> range:
        """The positions that a group holds for those to come: of a state the last one, which stands for all."""
        if group in self.of_states:
            return range(max(0, computed - 1), computed)
        if group in self.of_encoders:
            return range(len(self.encoders[request]) if request in self.encoded else 0)
        return range(self.first_seen(group, computed), computed)

    @invariant()
    def what_is_found_is_right(self) -> None:
        for tokens, encoder in [*self.past, *((t, self.encoders[r]) for r, t in self.tokens.items())]:
            keys: list[PageKey] = []
            extend_keys(keys, tokens, self.size, len(tokens) // self.size, bytes(encoder))
            for index, key in enumerate(keys):
                others = [*self.of_encoders, *self.of_states]
                assert all(self.ledger.pool.find((group, key)) is None for group in others)
                for group in self.of_tokens:
                    page = self.ledger.pool.find((group, key))
                    last = index * self.size
                    wanted = [(group, *encoder, *tokens[: last + offset + 1]) for offset in range(self.size)]
                    assert page is None or self.slots[page] == wanted


Pages.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPages = Pages.TestCase


# -- single properties ------------------------------------------------------------------------------------------------


def compute(ledger: KVCacheManager, request: int, tokens: list[int]) -> None:
    """What a step does for a request that runs to its last token."""
    assert ledger.grow(request, len(tokens))
    ledger.pages_to_zero.clear()
    ledger.commit(request, tokens, len(tokens))


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("window", [None, 5])
def test_a_prompt_seen_before_is_found_but_for_its_last_two_positions(page_size: int, window: int | None) -> None:
    """A single row would take the kernel of a decode step, which rounds otherwise: of prompts of 16k + 1 tokens, half
    went on with other text in bf16 where they were found."""
    ledger = make_ledger((window,), 40, page_size)
    tokens = list(range(33))
    assert ledger.admit(1, tokens, 0) == 0
    compute(ledger, 1, tokens)
    assert ledger.admit(2, tokens, 0) == 31 // page_size * page_size
    ledger.release(1)
    ledger.release(2)
    assert ledger.admit(3, tokens[:18], 0) == 16 // page_size * page_size
    assert ledger.admit(4, [*tokens, 1, 2], 0) == 33 // page_size * page_size
    assert ledger.admit(5, tokens[:1], 0) == ledger.admit(6, tokens[:2], 0) == 0
    ledger.check()


def test_nothing_can_be_found_before_the_step_that_writes_it_has_run() -> None:
    """nano-vllm #208: pages were published when they were granted."""
    ledger = make_ledger((None,), 10, 4)
    assert ledger.admit(1, list(range(10)), 0) == 0
    assert ledger.grow(1, 10)
    assert ledger.admit(2, list(range(10)), 0) == 0
    ledger.commit(1, list(range(10)), 10)
    assert ledger.admit(3, list(range(10)), 0) == 8


def test_equal_prompts_that_finish_together_keep_their_own_pages() -> None:
    """mini-sglang #142: the loser's pages were freed while its table still pointed at them."""
    ledger = make_ledger((None,), 10, 4)
    for request in (1, 2):
        assert ledger.admit(request, list(range(10)), 0) == 0
        assert ledger.grow(request, 10)
    for request in (1, 2):
        ledger.commit(request, list(range(10)), 10)
        ledger.check()
    assert not set(ledger.tables[1].pages[0]) & set(ledger.tables[2].pages[0])
    ledger.release(1)
    assert ledger.admit(3, list(range(10)), 0) == 8
    assert ledger.tables[3].pages[0] == [1, 2]


@pytest.mark.parametrize("first", [1, 2])
def test_a_copy_that_nobody_needs_any_more_is_forgotten(first: int) -> None:
    """A fork ends before the step that would have copied its partial page; its parent may end before it."""
    ledger = make_ledger((None, 3), 6, 4)
    assert ledger.admit(1, list(range(7)), 0) == 0
    compute(ledger, 1, list(range(7)))
    assert ledger.fork(1, 2, 6)
    assert [(made.source, made.target) for made in ledger.copies] == [(2, 5), (4, 6)]
    ledger.release(first)
    ledger.check()
    assert len(ledger.copies) == (0 if first == 2 else 2)
    ledger.release(3 - first)
    ledger.check()
    assert not ledger.copies
    assert ledger.pool.available == ledger.pool.size


def test_the_page_that_was_let_go_first_is_evicted_first() -> None:
    ledger = make_ledger((None,), 4, 2)
    for request, token in ((1, 10), (2, 20)):
        assert ledger.admit(request, [token] * 4, 0) == 0
        compute(ledger, request, [token] * 4)
    ledger.release(2)
    ledger.release(1)
    assert ledger.admit(3, [30, 30], 0) == 0
    compute(ledger, 3, [30, 30])
    assert ledger.admit(4, [20] * 6, 0) == 2, "of a prefix its end is evicted first"
    ledger.release(4)
    assert ledger.admit(5, [10] * 6, 0) == 4


def test_digests_that_collide_are_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are compared, so that even a hash that says the same of everything finds nothing but what is there."""
    constant = SimpleNamespace(digest=lambda: b"\0" * 32)
    monkeypatch.setattr(prefix, "hashlib", SimpleNamespace(blake2b=lambda *_, **__: constant))
    ledger = make_ledger((None, 3), 20, 2)
    assert ledger.admit(1, [1, 2, 3, 4, 5, 0], 0) == 0
    compute(ledger, 1, [1, 2, 3, 4, 5, 0])
    assert ledger.admit(2, [1, 9, 3, 4, 5, 0], 0) == 0
    assert ledger.admit(3, [1, 2, 9, 4, 5, 0], 0) == 2
    assert ledger.admit(4, [1, 2, 3, 4, 6, 0], 0) == 4
    ledger.check()


def test_keys_tell_prefixes_apart_however_they_are_cut() -> None:
    """Fixed width: no two different prefixes spell the same bytes (vLLM #44701 mixed strings in one key)."""
    seen: dict[bytes, tuple[int, ...]] = {}
    for tokens in (
        [1, 2, 3, 4],
        [12, 3, 4, 0],
        [1, 23, 4, 0],
        [0, 0, 1, 2],
        [1, 2, 1, 2],
        [1, 2, 0, 0],
        [2**31, 0, 1, 2],
    ):
        keys: list[PageKey] = []
        extend_keys(keys, tokens, 2, len(tokens) // 2)
        for index, key in enumerate(keys):
            prefix_tokens = tuple(tokens[: 2 * (index + 1)])
            assert seen.setdefault(key.digest, prefix_tokens) == prefix_tokens
            assert len(key.digest) == hashlib.blake2b(digest_size=32).digest_size


def test_a_root_tells_equal_tokens_apart() -> None:
    """The same prompt under another adapter, image or tenant finds nothing; under its own it does."""
    ledger = make_ledger((None, 3), 40, 2)
    tokens = [1, 2, 3, 4, 5, 6]
    for request, root in enumerate((b"", b"adapter 1", b"adapter 2")):
        assert ledger.admit(request, tokens, 0, root=root) == 0
        compute(ledger, request, tokens)
    assert ledger.admit(5, tokens, 0, root=b"adapter 1") == 4
    assert ledger.tables[5].pages == [ledger.tables[1].pages[0][:2], ledger.tables[1].pages[1][:2]]
    assert ledger.fork(1, 6, 4)
    assert ledger.admit(7, tokens, 0, root=b"adapter") == 0
    ledger.check()


def test_blocks_with_names_are_found_by_them_and_looked_at_once() -> None:
    """A trace has names of blocks and no tokens: of those that are known to be names only the positions are looked at
    where blocks begin. What was sampled without a name is told apart by its ids, and what goes on with a name is found
    by it."""
    looked = set[int]()

    class Named(Sequence[int]):
        """Blocks of 8 positions."""

        def __init__(self, length: int, *names: int) -> None:
            self.length, self.names = length, names

        def __len__(self) -> int:
            return self.length

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, slice):
                return tuple(self[at] for at in range(*index.indices(self.length)))
            looked.add(index)
            return -1 - self.names[index // 8]

    ledger = make_ledger((None, 6), 60, 4)
    assert ledger.admit(1, Named(22, 5, 6, 7), 0, block=8, named=22) == 0
    for end in (9, 18, 22):
        assert ledger.grow(1, end)
        ledger.commit(1, Named(22, 5, 6, 7), end)
    assert looked == {0, 8, 16}
    assert ledger.admit(2, Named(20, 5, 6, 7), 0, block=8) == 16, "the last page is computed again"
    assert ledger.admit(3, Named(15, 5, 9), 0, block=8) == 8
    assert ledger.grow(1, 28)
    ledger.commit(1, [*Named(22, 5, 6, 7)[:], 1, 1, *Named(28, 5, 6, 7, 8)[24:]], 28)
    assert ledger.admit(4, Named(32, 5, 6, 7, 8), 0, block=8) == 20, "a page with ids is no block's"
    assert ledger.admit(5, [*Named(22, 5, 6, 7)[:], 1, 1, *Named(32, 5, 6, 7, 8)[24:]], 0, block=8) == 28
    ledger.check()


def test_misuse_of_the_pool_is_caught() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.release(page)
    with pytest.raises(AssertionError, match="freed more often than it was allocated"):
        pool.release(page)
    with pytest.raises(AssertionError, match="published without being allocated"):
        pool.publish(page, PageKey(b"", (1,)))
