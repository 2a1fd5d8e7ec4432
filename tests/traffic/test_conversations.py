"""Conversations: what each question carries, when it is asked, and what is found of it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from scipy import stats

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.conversations import Conversations, FollowUps
from ridgeline.insight.traffic.lengths import Fixed, Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, Offered, OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import machine

THINK = 7_000
LATER = FollowUps(Uniform(5, 40), Uniform(2, 30), ThinkTime(THINK, constant=True), seed=3)


def begun(count: int) -> OpenLoop:
    return OpenLoop(draw_requests((1_000_000 * at for at in range(count)), Uniform(20, 60), Uniform(2, 30), 1))


def answered(offered: Offered, after: int = 500) -> list[tuple[TraceRequest, int]]:
    """What comes where each is answered after so many nanoseconds, with that moment."""
    found = []
    while offered.upcoming is not None:
        request = offered.take()
        found.append((request, request.at + after))
        offered.ended(request, request.at + after, answered=True)
    return found


def test_each_question_carries_what_was_said() -> None:
    found = answered(Conversations(begun(5), 4, LATER, None))
    assert sorted((one.session, one.turn) for one, _ in found) == [(s, t) for s in range(5) for t in range(4)]
    assert [one.at for one, _ in found] == sorted(one.at for one, _ in found)
    for session in range(5):
        own = [pair for pair in found if pair[0].session == session]
        for (before, over), (after, _) in pairwise(own):
            assert after.at == over + THINK
            question, answer, _ = LATER.of(session, after.turn)
            assert (after.input, after.output) == (before.input + before.output + question, answer)
            assert after.blocks == before.blocks
    assert len({one.blocks for one, _ in found}) == 5


def test_lengths_do_not_depend_on_what_comes_first() -> None:
    """So that the same requests come at another price, where answers end in another order."""
    sizes = [
        {(one.session, one.turn): (one.input, one.output) for one, _ in answered(made, after)}
        for after in (10, 3_000_000)
        for made in [Conversations(begun(6), 3, LATER, None)]
    ]
    assert sizes[0] == sizes[1]


def test_users_think_as_long_whatever_comes_first() -> None:
    """Draw think times by the turn too: exponential and independent ones."""
    later = replace(LATER, think=ThinkTime(1_000_000))
    thoughts = []
    for after in (10, 3_000_000):
        found = answered(Conversations(begun(2_000), 3, later, None), after)
        over = {(one.session, one.turn): end for one, end in found}
        thoughts.append(
            {(one.session, one.turn): one.at - over[one.session, one.turn - 1] for one, _ in found if one.turn}
        )
    assert thoughts[0] == thoughts[1]
    drawn = list(thoughts[0].values())
    assert len(drawn) == 4_000
    assert stats.kstest(drawn, "expon", args=(0, 1e6)).pvalue > 0.01
    pairs = [(thoughts[0][session, 1], thoughts[0][session, 2]) for session in range(2_000)]
    assert abs(stats.pearsonr(*zip(*pairs, strict=True)).statistic) < 4 / 2_000**0.5


def test_who_is_refused_at_a_later_question_begins_anew_and_at_a_first_one_leaves() -> None:
    asked = draw_requests(iter(lambda: 0, 1), Fixed(10), Fixed(5), 1)
    offered = Conversations(ClosedLoop(1, ThinkTime(), asked, None, 0), 9, LATER, None)
    first = offered.take()
    offered.ended(first, 100, answered=True)
    later = offered.take()
    assert (later.turn, later.at) == (1, 100 + THINK)
    offered.ended(later, 200, answered=False)
    other = offered.take()
    assert (other.session, other.turn, other.at) == (1, 0, 200)
    offered.ended(other, 300, answered=False)
    assert offered.upcoming is None


def test_nobody_asks_after_the_end() -> None:
    found = answered(Conversations(begun(3), 100, LATER, until=2_500_000))
    assert max(one.at for one, _ in found) < 2_500_000
    assert len(found) > 100


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_all_that_was_computed_of_a_conversation_is_found(prefix_cache: bool) -> None:
    """Whole pages of the prompt before and its answer, but for the last token, which was only sampled; with room for
    all. Without the cache nothing is, and every answer comes later."""
    one = machine(Limits(tokens=256, requests=8), prefix_cache=prefix_cache)
    log = run(one, Conversations(begun(6), 4, LATER, None))
    found, said = Columns(log), dict[int, tuple[int, int]]()
    assert (found.outcome == 0).all()
    sessions = [one.session for one, _ in answered(Conversations(begun(6), 4, LATER, None))]
    rows = sorted(range(len(found.input)), key=lambda row: (log.requests.arrived[row], row))
    assert len(rows) == len(sessions) == 24
    cached = {(int(found.input[row]), int(found.made[row])): int(found.cached[row]) for row in rows}
    by_turn = answered(Conversations(begun(6), 4, LATER, None))
    for request, _ in by_turn:
        before = said.get(request.session)
        computed = 0 if before is None else sum(before) - 1
        wanted = min(computed, request.input - 2) // 16 * 16 if prefix_cache else 0
        assert cached[request.input, request.output] == wanted
        said[request.session] = request.input, request.output


def test_users_hold_conversations_one_after_the_other() -> None:
    """Three users: never more than three under way; each question comes when its user has thought."""
    asked = bounded(draw_requests(iter(lambda: 0, 1), Fixed(30), Fixed(8), 1), 12, None)
    log = run(machine(), Conversations(ClosedLoop(3, ThinkTime(THINK, constant=True), asked, None, 4), 3, LATER, None))
    found = Columns(log)
    assert len(found.ok) == 36
    assert found.ok.all()
    assert set(sorted(found.arrived.tolist())[3:]) <= {end + THINK for end in found.last.tolist()}
