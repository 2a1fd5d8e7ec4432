"""Whose turn it is: shares of time are equal, whatever a turn takes and whoever comes when."""

import pytest

from ridgeline.server.fair_queue import FairQueue


def test_equal_turns_alternate_in_the_order_of_arrival() -> None:
    turns: FairQueue[str] = FairQueue()
    for who in "abc":
        turns.join(who)
    order = []
    for _ in range(7):
        order.append(turns.next())
        turns.took(order[-1], 1.0)
    assert "".join(order) == "abcabca"


def test_who_takes_longer_has_fewer_turns() -> None:
    """Three to one: priced seconds are shared, not turns. At any time they differ by one turn at most."""
    turns: FairQueue[str] = FairQueue()
    seconds, had = {"short": 0.1, "long": 0.3}, {"short": 0.0, "long": 0.0}
    for who in seconds:
        turns.join(who)
    for _ in range(400):
        who = turns.next()
        turns.took(who, seconds[who])
        had[who] += seconds[who]
        assert abs(had["short"] - had["long"]) <= 0.3 + 1e-9
    assert had["short"] == pytest.approx(had["long"], abs=0.3)


def test_who_comes_later_is_owed_nothing_and_waits_for_no_one() -> None:
    turns: FairQueue[str] = FairQueue()
    turns.join("old")
    for _ in range(100):
        turns.took(turns.next(), 1.0)
    turns.join("new")
    order = []
    for _ in range(6):
        order.append(turns.next())
        turns.took(order[-1], 1.0)
    assert sorted(order) == ["new"] * 3 + ["old"] * 3


def test_a_stream_of_newcomers_starves_nobody() -> None:
    """Somebody new at every turn, each for one turn: who was there before has turns too, and they have."""
    turns: FairQueue[object] = FairQueue()
    turns.join("old")
    old = 0
    for number in range(200):
        turns.join(number)
        who = turns.next()
        turns.took(who, 1.0)
        old += who == "old"
        if who != "old":
            turns.leave(who)
    assert 10 <= old <= 100


def test_who_leaves_has_no_turn() -> None:
    turns: FairQueue[str] = FairQueue()
    turns.join("a")
    turns.join("b")
    turns.leave("a")
    turns.leave("a")
    assert (turns.next(), len(turns), "a" in turns, "b" in turns) == ("b", 1, False, True)


def test_many_short_visits_come_to_no_more_than_a_share() -> None:
    """Somebody who leaves after every turn and comes again at once, beside somebody who stays."""
    turns: FairQueue[str] = FairQueue()
    had = {"stays": 0.0, "comes": 0.0}
    turns.join("stays")
    before = 0.0
    for _ in range(400):
        if "comes" not in turns:
            turns.join("comes", before)
        who = turns.next()
        seconds = 0.1 if who == "stays" else 1.0
        turns.took(who, seconds)
        had[who] += seconds
        if who == "comes":
            before = turns.leave("comes")
    assert had["stays"] == pytest.approx(had["comes"], abs=1.0 + 1e-6)
