"""Attention, plain and over pages, against a dense reference in float64 that shares no code with it."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.forward_batch import ForwardBatch, GroupPageTables, Rows
from ridgeline.core.ops.kv_context import KVContext, Uncached
from ridgeline.core.ops.kv_layout import NULL_PAGE, KVGroup, KVSpec
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.paged_attention import PagedKV
from ridgeline.core.ops.torch_attention import attend_padded, attend_segment, visible
from ridgeline.core.ops.work import CAUSAL, AttentionPattern, StepSegment, Work, sliding_window

F64 = NDArray[np.float64]
WINDOWS = st.none() | st.integers(1, 24)
HEADS = st.tuples(st.integers(1, 3), st.integers(1, 4))  # KV heads, and queries to each


def dense(q_QHD: Tensor, k_LKD: Tensor, v_LKD: Tensor, window: int | None) -> F64:
    """The last Q of L positions of one sequence, query by query and head by head: float64 [Q, H, D]."""
    q, k, v = (x.double().numpy() for x in (q_QHD, k_LKD, v_LKD))
    queries, heads, dim = q.shape
    length, kv_heads = k.shape[:2]
    out = np.zeros((queries, heads, v.shape[2]))
    for row in range(queries):
        position = length - queries + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = k[first : position + 1, kv_head] @ q[row, head] / math.sqrt(dim)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ v[first : position + 1, kv_head]
    return out


def close(ours: Tensor, reference: F64) -> bool:
    """Equal up to fp32 rounding."""
    return bool(np.allclose(ours.double().numpy(), reference, rtol=0, atol=1e-5))


def attention(heads: tuple[int, int], dim: int, window: int | None = None) -> Attention:
    """An op of so many KV heads, and queries to each."""
    kv_heads, group = heads
    return Attention(0, kv_heads * group, KVSpec(kv_heads, dim, dim, sliding_window(window), torch.float32))


def random(generator: torch.Generator, *shape: int) -> Tensor:
    """Normal numbers, fp32."""
    return torch.randn(*shape, generator=generator)


@given(st.integers(1, 30), st.data(), HEADS, WINDOWS, st.integers(0, 99))
def test_attend_causal(length: int, data: st.DataObject, heads: tuple[int, int], window: int | None, seed: int) -> None:
    """Any number of last queries, grouped heads, windows shorter and longer than the sequence."""
    queries = data.draw(st.integers(1, length))
    g = torch.Generator().manual_seed(seed)
    kv_heads, group = heads
    q, k, v = random(g, queries, kv_heads * group, 6), random(g, length, kv_heads, 6), random(g, length, kv_heads, 6)
    ours = attend_segment(attention(heads, 6, window), q, k.transpose(0, 1), v.transpose(0, 1))
    assert close(ours, dense(q, k, v, window))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), HEADS, WINDOWS, st.integers(0, 99))
def test_attend_padded(lengths: list[int], heads: tuple[int, int], window: int | None, seed: int) -> None:
    """Sequences of several lengths in one call; what they do not see is large, finite and without effect."""
    g = torch.Generator().manual_seed(seed)
    kv_heads, group = heads
    longest = max(lengths) + 2
    q_BHD = random(g, len(lengths), kv_heads * group, 6)
    k_KBLD, v_KBLD = (random(g, kv_heads, len(lengths), longest, 6) for _ in range(2))
    position_L = torch.arange(longest)
    length_B1 = torch.tensor(lengths)[:, None]
    visible_BL = (position_L < length_B1) & (position_L >= length_B1 - (window or longest))
    for half in (k_KBLD, v_KBLD):
        half.masked_fill_(~visible_BL[None, :, :, None], 1e4)
    distance_BL = position_L - (length_B1 - 1)
    out_BHD = attend_padded(attention(heads, 6, window), q_BHD, k_KBLD, v_KBLD, distance_BL, visible_BL)
    for b, length in enumerate(lengths):
        k, v = (half[:, b, :length].transpose(0, 1) for half in (k_KBLD, v_KBLD))
        assert close(out_BHD[b : b + 1], dense(q_BHD[b : b + 1], k, v, window))


@dataclass
class Memory:
    """Page memory that is NaN wherever nothing was written, but for the page of zeros; pages come in random order."""

    page_size: int
    kv_heads: int
    dim: int
    generator: torch.Generator
    pages: int = 200
    store: LayerPages = field(init=False)
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        spec = KVSpec(self.kv_heads, self.dim, self.dim, CAUSAL, torch.float32)
        page_bytes = 2 * int(self.page_size * spec.bytes_per_token)
        buffer = torch.full((self.pages + 1, page_bytes), 0xFF, dtype=torch.uint8)  # NaN, as every page but one
        buffer[NULL_PAGE] = 0
        self.store = LayerPages(buffer, spec, self.page_size, place=1)
        self.free = (torch.randperm(self.pages, generator=self.generator) + 1).tolist()

    def table(self, positions: int) -> list[int]:
        """Pages for so many positions."""
        return [self.free.pop() for _ in range(-(-positions // self.page_size))]

    def write(self, table: Sequence[int], positions: range, k_LKD: Tensor, v_LKD: Tensor) -> None:
        """Put K and V of these positions, given from position 0 on, into their slots."""
        for p in positions:
            page, offset = table[p // self.page_size], p % self.page_size
            self.store.k[page, :, offset], self.store.v[page, :, offset] = k_LKD[p], v_LKD[p]


@dataclass
class Running:
    """One sequence of a step: its whole keys and values, and the queries of its new positions."""

    segment: StepSegment
    q_QHD: Tensor
    k_LKD: Tensor
    v_LKD: Tensor
    table: list[int]


def paged_step(
    segments: Sequence[StepSegment], heads: tuple[int, int], dim: int, page_size: int, window: int | None, seed: int
) -> tuple[list[Running], LayerPages, KVGroup, ForwardBatch]:
    """Sequences whose past is in memory, and the batch of the step that runs their new positions.

    Only what the contract promises is there: of each past the positions that pages reach from the first visible page
    on, and zeros behind the last position of sequences that decode. Everything else is NaN.
    """
    g = torch.Generator().manual_seed(seed)
    kv_heads, group = heads
    memory = Memory(page_size, kv_heads, dim, g)
    sequences: list[Running] = []
    slots: list[int] = []
    tables, first = [], []
    for s in segments:
        k, v = random(g, s.kv_len, kv_heads, dim), random(g, s.kv_len, kv_heads, dim)
        table = memory.table(s.kv_len)
        start = s.kv_len - s.q_len
        first_page = 0 if window is None else max(0, start - window + 1) // page_size
        if s.q_len == 1:
            memory.store.k[table[-1]] = memory.store.v[table[-1]] = 0  # a page that the step does not fill is blanked
        memory.write(table, range(first_page * page_size, start), k, v)
        slots += [table[p // page_size] * page_size + p % page_size for p in range(start, s.kv_len)]
        tables.append(table[first_page:])
        first.append(first_page * page_size)
        sequences.append(Running(s, random(g, s.q_len, kv_heads * group, dim), k, v, table))
    spec = KVSpec(kv_heads, dim, dim, sliding_window(window), torch.float32)
    rows = GroupPageTables(torch.tensor(slots), tables, first)
    return sequences, memory.store, KVGroup(spec, (0,), page_size), batch_of(segments, [rows])


def batch_of(segments: Sequence[StepSegment], tables: Sequence[GroupPageTables]) -> ForwardBatch:
    """The batch of segments, as far as attention looks at it."""
    nothing = torch.empty(0, dtype=torch.int64)
    starts = [0, *itertools.accumulate(s.q_len for s in segments)]
    encoder = [0, *itertools.accumulate(s.encoder_len if s.runs_encoder else 0 for s in segments)]
    return ForwardBatch(
        Rows(nothing, nothing, starts),
        Rows(nothing, nothing, encoder),
        nothing,
        [s.kv_len for s in segments],
        [s.encoder_len for s in segments],
        tables,
    )


SEGMENTS = st.integers(1, 40).flatmap(
    lambda kv: (
        st.sampled_from([1, kv]).map(lambda q: StepSegment(q, kv))
        | st.integers(1, kv).map(lambda q: StepSegment(q, kv))
    )
)


@settings(max_examples=150)
@given(
    segments=st.lists(SEGMENTS, min_size=1, max_size=5),
    heads=HEADS,
    page_size=st.sampled_from([1, 4, 16]),
    window=WINDOWS,
    seed=st.integers(0, 99),
)
def test_paged_attention(
    segments: list[StepSegment], heads: tuple[int, int], page_size: int, window: int | None, seed: int
) -> None:
    """Decodes, first chunks and later chunks in one step, over pages in random order among NaN."""
    sequences, store, group, batch = paged_step(segments, heads, 6, page_size, window, seed)
    new = [slice(s.segment.kv_len - s.segment.q_len, None) for s in sequences]
    q_THD = torch.cat([s.q_QHD for s in sequences])
    k_TKD = torch.cat([s.k_LKD[rows] for s, rows in zip(sequences, new, strict=True)])
    v_TKD = torch.cat([s.v_LKD[rows] for s, rows in zip(sequences, new, strict=True)])
    out_THD = PagedKV([store], [group], batch).attend(attention(heads, 6, window), q_THD, k_TKD, v_TKD)
    reference = np.concatenate([dense(s.q_QHD, s.k_LKD, s.v_LKD, window) for s in sequences])
    assert close(out_THD, reference)
    for s in sequences:  # what the step computed is in memory now, for the next one
        for p in range(s.segment.kv_len - s.segment.q_len, s.segment.kv_len):
            page, offset = s.table[p // page_size], p % page_size
            assert torch.equal(store.k[page, :, offset], s.k_LKD[p])
            assert torch.equal(store.v[page, :, offset], s.v_LKD[p])
    assert not store.k[NULL_PAGE].any()
    assert not store.v[NULL_PAGE].any()


def test_layers_use_the_store_and_the_tables_of_their_group() -> None:
    """Two groups, one with a window: each layer reads its own memory."""
    segments = [StepSegment(1, 9), StepSegment(3, 7)]
    full, narrow = (paged_step(segments, (2, 2), 6, 4, w, seed=w or 9) for w in (None, 3))
    narrow[1].group = 1
    batch = batch_of(segments, [full[3].tables[0], narrow[3].tables[0]])
    both = PagedKV([full[1], narrow[1]], [full[2], narrow[2]], batch)
    for layer, (sequences, *_), window in ((0, full, None), (1, narrow, 3)):
        q, k, v = (
            torch.cat([s.q_QHD for s in sequences]),
            torch.cat([s.k_LKD[-s.segment.q_len :] for s in sequences]),
            torch.cat([s.v_LKD[-s.segment.q_len :] for s in sequences]),
        )
        reference = np.concatenate([dense(s.q_QHD, s.k_LKD, s.v_LKD, window) for s in sequences])
        op = Attention(layer, 4, KVSpec(2, 6, 6, sliding_window(window), torch.float32))
        assert close(both.attend(op, q, k, v), reference)


def test_uncached_sequences_do_not_see_each_other() -> None:
    """Whole sequences, one after the other in the rows of a step; a part of one is refused."""
    g = torch.Generator().manual_seed(0)
    lengths = [4, 1, 7]
    q, k, v = random(g, 12, 6, 8), random(g, 12, 2, 8), random(g, 12, 2, 8)
    out = Uncached([StepSegment(n, n) for n in lengths]).attend(attention((2, 3), 8, 3), q, k, v)
    for start, stop in itertools.pairwise(np.cumsum([0, *lengths])):
        assert close(out[start:stop], dense(q[start:stop], k[start:stop], v[start:stop], 3))
    with pytest.raises(ValueError, match="every position of a sequence must run"):
        Uncached([StepSegment(1, 2)])


@settings(max_examples=60)
@given(
    segments=st.lists(SEGMENTS, min_size=1, max_size=4),
    heads=HEADS,
    window=WINDOWS,
    cached=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_op_is_priced_for_the_pairs_that_it_sees(
    segments: list[StepSegment], heads: tuple[int, int], window: int | None, cached: bool, seed: int
) -> None:
    """With one-hot values the output is the attention's weights themselves; those that are not 0 are counted."""
    dim = 40  # at least as many as positions
    if not cached:
        segments = [StepSegment(s.kv_len, s.kv_len) for s in segments]
    sequences, store, memory_group, batch = paged_step(segments, heads, dim, 4, window, seed)
    kv: KVContext = PagedKV([store], [memory_group], batch) if cached else Uncached(segments)
    q, k, v = [], [], []
    for s in sequences:
        start = s.segment.kv_len - s.segment.q_len
        one_hot_LKD = torch.eye(s.segment.kv_len, dim)[:, None].expand(-1, heads[0], -1)
        first = 0 if window is None else max(0, start - window + 1) // 4 * 4
        for p in range(first, start):
            store.v[s.table[p // 4], :, p % 4] = one_hot_LKD[p]
        q.append(s.q_QHD * 0.1)
        k.append(s.k_LKD[start:])
        v.append(one_hot_LKD[start:])
    kv_heads, group = heads
    op = attention(heads, dim, window)
    weights_THL = op(torch.cat(q), torch.cat(k), torch.cat(v), kv).unflatten(1, (-1, dim))
    assert torch.allclose(weights_THL.sum(-1), torch.ones(()), atol=1e-5)
    pairs = int((weights_THL != 0).sum()) // (kv_heads * group)
    by_sequence = torch.split(weights_THL, [s.q_len for s in segments])
    read = sum(int((weights != 0).any(0).any(0).sum()) for weights in by_sequence)
    cost = op.cost(Work.of(segments, [sliding_window(window)]))
    assert cost.total_flops == 4 * kv_heads * group * dim * pairs
    assert cost.kv_read_bytes == read * 2 * kv_heads * dim * 4
    assert cost.kv_write_bytes == sum(s.q_len for s in segments) * 2 * kv_heads * dim * 4


def test_attention_by_hand() -> None:
    """Seed number 14: weights .4011 .1978 .4011, output 6.0167, 3.9833."""
    q = torch.tensor([[[1.0, 0.0]]])
    k = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    v = torch.tensor([[[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]]])
    op = attention((1, 1), 2)
    assert attend_segment(op, q, k, v)[0, 0].tolist() == pytest.approx([6.0167, 3.9833], abs=5e-5)
    visible = torch.ones(1, 3, dtype=torch.bool)
    padded = attend_padded(op, q, k[:, None], v[:, None], torch.tensor([[-2, -1, 0]]), visible)
    assert padded[0, 0].tolist() == pytest.approx([6.0167, 3.9833], abs=5e-5)
    weights = attend_segment(op, q, k, torch.eye(3)[None])[0, 0]
    assert weights.tolist() == pytest.approx([0.4011, 0.1978, 0.4011], abs=5e-5)


def reference(op: Attention, q_QHD: Tensor, k_LKD: Tensor, v_LKW: Tensor) -> Tensor:
    """All that an op can say of itself, query by query: fp64 [Q, H, W]."""
    keys, out = len(k_LKD), []
    groups = q_QHD.shape[1] // k_LKD.shape[1]
    for row, q_HD in enumerate(q_QHD.double()):
        at = keys - len(q_QHD) + row
        size = op.attention_pattern.size
        heads = []
        for head, q_D in enumerate(q_HD):
            scores = {}
            for key in range(keys):
                sees = {
                    "causal": key <= at,
                    "window": at - size < key <= at,
                    "chunked": key <= at and key // max(size, 1) == at // max(size, 1),
                }.get(op.attention_pattern.kind, True)
                if sees:
                    score = float(q_D @ k_LKD[key, head // groups].double()) * op.scale
                    score = score if op.softcap is None else op.softcap * math.tanh(score / op.softcap)
                    distance = torch.tensor(key - at)
                    scores[key] = score + (0.0 if op.bias is None else float(op.bias(distance)[head]))
            sink = math.exp(float(op.sinks_H[head])) if op.sinks_H is not None else 0.0
            total = sum(map(math.exp, scores.values())) + sink
            heads.append(sum(math.exp(s) / total * v_LKW[key, head // groups].double() for key, s in scores.items()))
        out.append(torch.stack(heads))
    return torch.stack(out)


SAID = {
    "scale": {"scale": 0.3},
    "soft cap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "position bias": {
        "bias": lambda distance: torch.stack([distance * 0.1, distance * -0.2, distance**2 * 0.01, distance])
    },
    "all of them": {"scale": 0.7, "softcap": 2.0, "sinks": True, "bias": lambda d: torch.stack([d * 0.1] * 4)},
}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("said", SAID)
def test_what_an_op_says_of_itself(said: str, window: int | None) -> None:
    """Scale, caps, sinks and biases, in a segment and in a decode call, against sums done by hand."""
    g = torch.Generator().manual_seed(3)
    op = Attention(0, 4, KVSpec(2, 6, 6, sliding_window(window), torch.float32), **SAID[said])  # type: ignore[arg-type]
    if op.sinks_H is not None:
        op.sinks_H.data = random(g, 4)
    q, k, v = random(g, 3, 4, 6), random(g, 7, 2, 6), random(g, 7, 2, 6)
    ours = attend_segment(op, q, k.transpose(0, 1), v.transpose(0, 1))
    assert torch.allclose(ours.double(), reference(op, q, k, v), atol=1e-5)
    k_KBLD, v_KBLD = (x.transpose(0, 1)[:, None] for x in (k, v))
    distance_BL = torch.arange(7)[None] - 6
    alone = attend_padded(
        op, q[2:], k_KBLD, v_KBLD, distance_BL, visible(op.attention_pattern, torch.tensor([[6]]), distance_BL + 6)
    )
    assert torch.allclose(alone.double(), reference(op, q[2:], k, v), atol=1e-5)


@pytest.mark.parametrize(
    "reach", [AttentionPattern("chunked", 3), AttentionPattern("full"), AttentionPattern("cross")], ids=str
)
def test_reaches_beyond_windows(reach: AttentionPattern) -> None:
    """A chunk, a whole sequence, and an encoder's rows, which may be fewer than the queries."""
    g = torch.Generator().manual_seed(4)
    op = attention((2, 2), 6)
    op.attention_pattern = reach
    q, k, v = random(g, 9, 4, 6), random(g, 5, 2, 6), random(g, 5, 2, 6)
    if reach.kind == "cross":
        segments = [StepSegment(9, 9, encoder_len=5, runs_encoder=True)]
    else:
        q, segments = q[:5], [StepSegment(5, 5)]
    out = Uncached(segments).attend(op, q, k, v)
    assert torch.allclose(out.double(), reference(op, q, k, v), atol=1e-5)


def test_a_latent_is_key_and_value() -> None:
    """One row is kept: the key, whose first entries are the value."""
    g = torch.Generator().manual_seed(5)
    op = Attention(0, 4, KVSpec(1, 6, 0, CAUSAL, torch.float32), value_dim=4)
    q, latent = random(g, 5, 4, 6), random(g, 5, 1, 6)
    out = Uncached([StepSegment(5, 5)]).attend(op, q, latent, None)
    assert out.shape == (5, 4, 4)
    assert torch.allclose(out.double(), reference(op, q, latent, latent[..., :4]), atol=1e-5)
    asked = Work.of([StepSegment(2, 9)])
    assert op.cost(asked).kv_read_bytes == 9 * 6 * 4
    assert op.cost(asked).total_flops == 2 * 4 * (6 + 4) * (8 + 9)
