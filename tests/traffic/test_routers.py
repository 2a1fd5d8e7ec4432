"""Routers, each against what its name promises."""

from collections import Counter

import pytest

from ridgeline.insight.traffic.routers import ROUTERS, ReplicaRouter, Signal, router_named
from ridgeline.insight.traffic.workload_trace import TraceRequest

PLAIN = TraceRequest(0, 100, 5)


def chosen(router: ReplicaRouter, loads: list[int], count: int = 4000) -> Counter[int]:
    return Counter(router.choose(PLAIN, [Signal(load) for load in loads]) for _ in range(count))


def test_round_robin_and_random_look_at_no_load() -> None:
    assert chosen(ROUTERS["round-robin"](0), [9, 0, 0, 0]) == {0: 1000, 1: 1000, 2: 1000, 3: 1000}
    assert all(900 < count < 1100 for count in chosen(ROUTERS["random"](0), [9, 0, 0, 0]).values())


def test_two_choices_spare_the_busiest_alone() -> None:
    """Of four with different loads the least is taken when it is drawn, in half of the cases, the busiest never."""
    found = chosen(ROUTERS["two"](0), [3, 0, 2, 1])
    assert found[0] == 0
    assert found[1] == pytest.approx(2000, rel=0.1)
    assert found[3] == pytest.approx(4000 / 3, rel=0.1)
    assert chosen(ROUTERS["two"](0), [3]) == {0: 4000}


def test_least_takes_the_least() -> None:
    assert chosen(ROUTERS["least"](0), [3, 1, 2, 1]) == {1: 4000}


def test_a_prefix_stays_where_it_is_up_to_a_cap() -> None:
    router = ROUTERS["prefix"](0)
    asked = TraceRequest(0, 100, 5, ("system", "own"), 16)
    first = router.choose(asked, [Signal(0)] * 4)
    assert {router.choose(asked, [Signal(500)] * 4) for _ in range(20)} == {first}
    busy = [Signal(5000 if place == first else 100) for place in range(4)]
    moved = router.choose(asked, busy)
    assert moved != first
    assert router.choose(asked, [Signal(0)] * 4) == moved, "where it went is where it stays"
    assert len(chosen(router, [0, 0, 0, 0])) == 4, "prompts without names go anywhere"


def test_equal_seeds_choose_alike() -> None:
    """And another seed otherwise, where anything is drawn."""
    for name in ROUTERS:
        routers = [router_named(name, seed) for seed in (3, 3, 4)]
        one, again, other = ([router.choose(PLAIN, [Signal(0)] * 8) for _ in range(100)] for router in routers)
        assert one == again
        assert (one != other) == (name in ("two", "random", "prefix"))
    with pytest.raises(ValueError, match="must be one of two, least"):
        router_named("best", 0)
