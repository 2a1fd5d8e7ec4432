"""What attention is asked, against counting one pair after the other."""

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.ops.work import (
    CAUSAL,
    CROSS,
    ENCODER,
    ENCODER_FULL,
    FULL,
    MAX_VERIFY_TOKENS,
    AttentionPattern,
    AttentionSum,
    AttentionWork,
    StepSegment,
    Work,
)
from support.audit import seen_pairs

SIZES = st.integers(1, 70)
REACHES = (
    st.sampled_from([CAUSAL, FULL])
    | SIZES.map(lambda n: AttentionPattern("window", n))
    | SIZES.map(lambda n: AttentionPattern("chunked", n))
)
MORE = st.sampled_from([CROSS, ENCODER_FULL])
SETS = st.sets(REACHES | MORE, min_size=1, max_size=4)


@st.composite
def segments(draw: st.DrawFn) -> StepSegment:
    """Sequences of a decoder, some of which look at an encoder that runs in this step or ran in an earlier one."""
    kv_len = draw(st.integers(1, 60))
    encoded = draw(st.just(0) | st.integers(1, 30))
    return StepSegment(
        draw(st.integers(1, kv_len)), kv_len, encoded, runs_encoder=bool(encoded) and draw(st.booleans())
    )


@given(segments(), REACHES | MORE)
def test_pairs_and_positions_read_of_a_segment(segment: StepSegment, reach: AttentionPattern) -> None:
    """The closed forms equal the count; queries and keys are those of the pairs."""
    pairs, asked = seen_pairs(segment, reach), segment.attention(reach)
    assert asked.pairs == len(pairs)
    assert asked.keys == len({key for _, key in pairs})
    assert asked.queries == (len({query for query, _ in pairs}) if reach != CROSS else segment.q_len)
    new = segment.encoder_len if segment.runs_encoder else 0
    assert asked.written == (new if reach in (CROSS, ENCODER_FULL) else segment.q_len)


@given(
    st.lists(segments(), max_size=6), st.sets(REACHES | MORE, min_size=1, max_size=4), st.none() | st.integers(0, 50)
)
def test_work_is_the_sum_of_its_segments(
    parts: list[StepSegment], reaches: set[AttentionPattern], logit_rows: int | None
) -> None:
    """By reach and query-length class, and the rows beside them."""
    work = Work.of(parts, reaches, logit_rows)
    assert work.tokens == sum(s.q_len for s in parts)
    assert work.sequences == len(parts)
    assert work.logit_rows == (len(parts) if logit_rows is None else logit_rows)
    assert work.rows.get(ENCODER, 0) == sum(s.encoder_len for s in parts if s.runs_encoder)
    assert work.attention.keys() == reaches
    for reach, attention in work.attention.items():
        assert attention.total.pairs == sum(len(seen_pairs(s, reach)) for s in parts)
        classes = {
            name: [s.attention(reach) for s in parts if low <= s.attention(reach).queries <= high]
            for name, low, high in (("one", 1, 1), ("few", 2, MAX_VERIFY_TOKENS), ("many", MAX_VERIFY_TOKENS + 1, 99))
        }
        for name, asked in classes.items():
            assert getattr(attention, name) == sum(asked, AttentionSum())


@given(
    st.lists(segments(), max_size=5), st.lists(segments(), max_size=5), st.sets(REACHES | MORE, min_size=1, max_size=3)
)
def test_works_add_up(ours: list[StepSegment], theirs: list[StepSegment], reaches: set[AttentionPattern]) -> None:
    """The work of two steps is the work of one with the segments of both; of three alike, three times that of one."""
    assert Work.of(ours, reaches) + Work.of(theirs, reaches) == Work.of(ours + theirs, reaches)
    assert Work.of(ours, reaches) * 3 == Work.of(ours * 3, reaches)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=6), st.sets(REACHES | MORE, min_size=1))
def test_decode_is_a_segment_of_one_each(contexts: list[tuple[int, int]], reaches: set[AttentionPattern]) -> None:
    """The short cut for simulators."""
    parts = [StepSegment(1, context, encoded) for context, encoded in contexts]
    quick = Work.decode([context for context, _ in contexts], reaches, [encoded for _, encoded in contexts])
    assert quick == Work.of(parts, reaches)


def test_a_prefill_by_hand() -> None:
    """S (S + 1) / 2 pairs; in two chunks the same, and the second reads the first again."""
    window, chunks = AttentionPattern("window", 2), AttentionPattern("chunked", 2)
    assert StepSegment(5, 5).pairs() == 15
    assert StepSegment(3, 3).pairs() + StepSegment(2, 5).pairs() == 15
    assert (StepSegment(3, 3).keys(), StepSegment(2, 5).keys()) == (3, 5)
    assert (StepSegment(5, 5).pairs(window), StepSegment(2, 5).pairs(window), StepSegment(2, 5).keys(window)) == (
        9,
        4,
        3,
    )
    assert (StepSegment(5, 5).pairs(chunks), StepSegment(2, 5).pairs(chunks), StepSegment(2, 5).keys(chunks)) == (
        7,
        3,
        3,
    )


def test_queries_of_cross_attention_may_outnumber_keys() -> None:
    """Nine queries over two encoder positions: 18 pairs, two positions read."""
    assert StepSegment(9, 9, encoder_len=2).attention(CROSS) == AttentionSum(1, 9, 18, 2, 0)
    assert Work.of([StepSegment(9, 9, 2, runs_encoder=True)], {CROSS}).attention[CROSS] == AttentionWork(
        many=AttentionSum(1, 9, 18, 2, 2)
    )
