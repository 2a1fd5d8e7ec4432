"""What attention is asked, against counting one pair after the other."""

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.ops.work import Segment, Work

SEGMENTS = st.integers(1, 60).flatmap(lambda kv: st.integers(1, kv).map(lambda q: Segment(q, kv)))
WINDOWS = st.none() | st.integers(1, 70)


def seen_pairs(segment: Segment, window: int | None) -> set[tuple[int, int]]:
    """Query and key positions of every pair that the mask leaves."""
    queries = range(segment.kv_len - segment.q_len, segment.kv_len)
    return {
        (query, key)
        for query in queries
        for key in range(segment.kv_len)
        if key <= query and (window is None or query - key < window)
    }


@given(SEGMENTS, WINDOWS)
def test_pairs_and_positions_read_of_a_segment(segment: Segment, window: int | None) -> None:
    """Both closed forms equal the count."""
    pairs = seen_pairs(segment, window)
    assert segment.pairs(window) == len(pairs)
    assert segment.kv_read(window) == len({key for _, key in pairs})


@given(st.lists(SEGMENTS, max_size=6), st.sets(WINDOWS, min_size=1, max_size=3), st.none() | st.integers(0, 50))
def test_work_is_the_sum_of_its_segments(
    segments: list[Segment], windows: set[int | None], logit_rows: int | None
) -> None:
    """By window class, and the tokens and rows beside them."""
    work = Work.of(segments, windows, logit_rows)
    assert work.tokens == sum(s.q_len for s in segments)
    assert work.sequences == len(segments)
    assert work.logit_rows == (len(segments) if logit_rows is None else logit_rows)
    assert work.attention.keys() == windows
    for window, asked in work.attention.items():
        assert asked.pairs == sum(len(seen_pairs(s, window)) for s in segments)
        assert asked.kv_read == sum(len({key for _, key in seen_pairs(s, window)}) for s in segments)


@given(st.lists(SEGMENTS, max_size=5), st.lists(SEGMENTS, max_size=5), st.sets(WINDOWS, min_size=1, max_size=3))
def test_works_add_up(ours: list[Segment], theirs: list[Segment], windows: set[int | None]) -> None:
    """The work of two steps is the work of one with the segments of both."""
    assert Work.of(ours, windows) + Work.of(theirs, windows) == Work.of(ours + theirs, windows)


@given(st.lists(st.integers(1, 60), max_size=6), st.sets(WINDOWS, min_size=1, max_size=3))
def test_decode_is_a_segment_of_one_each(contexts: list[int], windows: set[int | None]) -> None:
    """The short cut for simulators."""
    assert Work.decode(contexts, windows) == Work.of([Segment(1, context) for context in contexts], windows)


def test_a_prefill_by_hand() -> None:
    """S (S + 1) / 2 pairs; in two chunks the same, and the second reads the first again."""
    assert Segment(5, 5).pairs() == 15
    assert Segment(3, 3).pairs() + Segment(2, 5).pairs() == 15
    assert (Segment(3, 3).kv_read(), Segment(2, 5).kv_read()) == (3, 5)
    assert (Segment(5, 5).pairs(2), Segment(2, 5).pairs(2), Segment(2, 5).kv_read(2)) == (9, 4, 3)
