"""What is said of many requests, against counting by hand and against numpy's order statistics."""

import numpy as np
import pytest
from scipy import stats

from ridgeline.insight.traffic.percentiles import distribution, needed, weighted, wilson
from ridgeline.insight.traffic.request_record import COLUMNS, RequestRecord, columns
from ridgeline.insight.traffic.slo import SLO, parse_slo, parse_slos
from ridgeline.insight.traffic.stationarity import judge_stationarity
from ridgeline.insight.traffic.summary import DEFINITIONS, summarise

MS = 1_000_000


def answered(index: int, intended: int, sent: int, chunks: list[int], output: int) -> RequestRecord:
    """A request with moments in milliseconds."""
    return RequestRecord(
        index,
        intended * MS,
        intended * MS,
        sent=sent * MS,
        chunks=[at * MS for at in chunks],
        ended=(chunks[-1] + 1) * MS,
        input=10,
        output=output,
        counted=True,
        outcome="ok",
        status=200,
    )


def test_metrics_of_a_request_are_as_defined() -> None:
    """Two tokens in the last piece: TPOT divides by tokens, chunk gaps are of pieces."""
    record = answered(0, 100, 107, [150, 170, 200], output=4)
    assert (record.ttft, record.service_ttft, record.e2e, record.queue_delay, record.lateness) == (
        50 * MS, 43 * MS, 100 * MS, 7 * MS, 7 * MS,
    )  # fmt: skip
    assert record.tpot == pytest.approx(50 * MS / 3)
    assert record.gaps == [20 * MS, 30 * MS]
    assert record.tokens_per_gap == 1.5


def test_a_timer_that_is_early_makes_no_negative_lateness() -> None:
    early = answered(0, 100, 99, [150], output=1)
    assert early.lateness == 0
    assert early.queue_delay == -MS
    assert answered(0, 100, 101, [150], output=1).lateness == MS


def test_one_token_has_no_tpot_and_none_has_nothing() -> None:
    assert answered(0, 0, 0, [5], output=1).tpot is None
    assert answered(0, 0, 0, [5], output=9).tpot is None, "an answer in one piece says nothing of its gaps"
    nothing = answered(0, 0, 0, [5], output=1)
    nothing.chunks = []
    assert (nothing.ttft, nothing.tpot, nothing.e2e, nothing.gaps) == (None, None, None, [])


def test_pooled_gaps_weigh_as_many_tokens_as_came_with_them() -> None:
    """One request of a token a piece with gaps of 10 ms, one of two tokens a piece with gaps of 60 ms: ITL of three
    gaps of 10 and four of 30, chunk gaps of three of 10 and two of 60."""
    found = summarise([answered(0, 0, 0, [1, 11, 21, 31], 4), answered(1, 0, 0, [1, 61, 121], 5)])
    itl, chunk_gap = found.latencies["ITL"], found.latencies["chunk gap"]
    assert itl is not None
    assert chunk_gap is not None
    assert (itl.count, itl.mean, itl.least, itl.most) == (7, pytest.approx((3 * 10 + 4 * 30) / 7e3), 0.010, 0.030)
    assert (chunk_gap.count, chunk_gap.mean, chunk_gap.most) == (5, pytest.approx((30 + 120) / 5e3), 0.060)


def test_throughput_runs_from_the_first_intended_moment_to_the_last_token() -> None:
    found = summarise([answered(0, 1000, 1000, [1100, 1200], 20), answered(1, 1500, 1500, [2000, 3000], 20)])
    assert found.duration == 2.0
    assert (found.requests_per_second, found.tokens_per_second) == (1.0, 20.0)


def test_what_was_not_answered_is_in_no_average_and_counted() -> None:
    rejected = RequestRecord(1, 0, 0, sent=0, ended=9 * MS, outcome="rejected", status=429, reason="HTTP 429")
    cut = RequestRecord(2, 0, 0, sent=0, ended=900 * MS, chunks=[800 * MS], output=1, outcome="failed", reason="cut")
    found = summarise([answered(0, 0, 0, [10, 20], 2), rejected, cut, RequestRecord(3, 5 * MS, 5 * MS)])
    assert found.counts == {"ok": 1, "rejected": 1, "failed": 1, "unfinished": 1}
    assert found.total == 4
    assert found.reasons == {"HTTP 429": 1, "cut": 1, "": 1}
    assert found.duration == 0.020
    ttft = found.latencies["TTFT"]
    assert ttft is not None
    assert (ttft.count, ttft.most) == (1, 0.010)


def test_goodput_wants_every_objective_and_counts_apart_who_lacks_a_metric() -> None:
    slo = SLO(ttft=50 * MS, tpot=20 * MS)
    records = [
        answered(0, 0, 0, [50, 70], 2),  # both on the limit
        answered(1, 0, 0, [51, 60], 2),  # TTFT
        answered(2, 0, 0, [10, 31], 2),  # TPOT
        answered(3, 0, 0, [10], 1),  # has no TPOT
        answered(4, 0, 0, [60], 1),  # has none and missed the other
        answered(5, 0, 0, [10, 2000], 200),
    ]
    found = summarise(records, slo).goodput
    assert found is not None
    assert (found.good, found.missed, found.unknown) == (2, 3, 1)
    assert found.rate == 1.0
    assert summarise(records).goodput is None


def test_a_late_client_is_told() -> None:
    """Three percent of TTFT is the network's; six are the client's fault. One late request in a few is said and no
    more: a p99 takes 1,000, and so does judging by it; fewer are judged by what there are enough of."""

    def late(count: int, of: int) -> list[RequestRecord]:
        return [answered(i, 0, 6 if i < count else 3, [100, 200], 2) for i in range(of)]

    for of, percent in ((20, 50), (100, 90), (200, 95), (1000, 99)):
        beyond = of * (100 - percent) // 100
        assert not summarise(late(beyond, of)).client_late
        assert summarise(late(beyond, of)).some_late
        assert summarise(late(beyond + 1, of)).client_late
    assert not summarise(late(19, 19)).client_late
    assert summarise(late(19, 19)).some_late
    assert not summarise(late(0, 20)).some_late


def test_who_missed_by_the_clients_lateness_alone_is_uncertain() -> None:
    """47 ms of which 6 are ours might have been 41: over 40 still, not over 42. What is good stays so."""
    records = [answered(i, 0, 6, [47, 50], 2) for i in range(3)]
    found = {limit: summarise(records, parse_slo(f"ttft={limit}ms")).goodput for limit in (40, 42, 47)}
    assert {limit: (g.good, g.missed, g.uncertain) for limit, g in found.items() if g is not None} == {
        40: (0, 3, 0),
        42: (0, 3, 3),
        47: (3, 0, 0),
    }


def test_nothing_at_all() -> None:
    found = summarise([], SLO(ttft=1))
    assert (found.total, found.duration, found.tokens_per_second, found.good_share) == (0, 0.0, 0.0, 0.0)
    assert set(found.latencies.values()) == {None}


def test_every_latency_is_defined() -> None:
    assert set(summarise([]).latencies) < set(DEFINITIONS)


def test_columns_are_one_to_a_record_in_seconds() -> None:
    found = columns([answered(7, 100, 110, [150, 250], 2), RequestRecord(8, 0, 0)])
    assert tuple(found) == COLUMNS
    assert {len(column) for column in found.values()} == {2}
    assert (found["index"], found["ttft"], found["worst_gap"]) == ([7, 8], [0.05, None], [0.1, None])


# -- percentiles ------------------------------------------------------------------------------------------------------


def test_percentiles_are_order_statistics() -> None:
    samples = np.random.default_rng(1).exponential(size=4000)
    found = distribution(samples.tolist())
    assert found is not None
    for percent in (50, 90, 95, 99):
        made = found.percentiles[percent]
        assert made is not None
        assert made.mid == np.percentile(samples, percent, method="inverted_cdf")
    assert found.mean == pytest.approx(samples.mean())


def test_the_interval_of_a_p99_of_1000() -> None:
    """Ranks 984 and 997 of 1,000: 990 +- 1.96 sqrt(1000 x 0.99 x 0.01) = 990 +- 6.17."""
    found = distribution([float(rank) for rank in range(1, 1001)])
    assert found is not None
    made = found.percentiles[99]
    assert made is not None
    assert (made.low, made.mid, made.high) == (984.0, 990.0, 997.0)


def test_intervals_hold_the_true_value_as_often_as_they_say() -> None:
    draw = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        found = distribution(draw.exponential(size=200).tolist(), [90])
        assert found is not None
        made = found.percentiles[90]
        assert made is not None
        held += made.low <= stats.expon.ppf(0.9) <= made.high
    assert 0.91 < held / 400 < 0.985


@pytest.mark.parametrize(("percent", "least"), [(50, 20), (90, 100), (95, 200), (99, 1000)])
def test_a_percentile_of_too_few_is_none(percent: int, least: int) -> None:
    assert needed(percent) == least
    enough, few = distribution([1.0] * least), distribution([1.0] * (least - 1))
    assert enough is not None
    assert few is not None
    assert enough.percentiles[percent] is not None
    assert few.percentiles[percent] is None
    assert distribution([]) is None


def test_weights_are_repetitions() -> None:
    """Of the same percentiles and mean; they make nobody surer of them."""
    draw = np.random.default_rng(3)
    samples, weights = draw.random(500), draw.integers(1, 6, 500)
    found = weighted(samples, weights.astype(float))
    repeated = distribution(np.repeat(samples, weights).tolist())
    assert found is not None
    assert repeated is not None
    assert found.mean == pytest.approx(repeated.mean)
    for percent in (50, 90, 95, 99):
        one, other = found.percentiles[percent], repeated.percentiles[percent]
        assert one is not None
        assert other is not None
        assert one.mid == other.mid
        assert one.low <= other.low < other.high <= one.high
        assert one.high - one.low > other.high - other.low


def test_intervals_of_weighted_samples_hold_the_true_value() -> None:
    """Each sample stands for 1 to 30 equal ones, as a step's gap does for all that it gave a token."""
    draw = np.random.default_rng(4)
    held = 0
    for _ in range(400):
        found = weighted(draw.exponential(size=400), draw.integers(1, 31, 400).astype(float), [90])
        assert found is not None
        made = found.percentiles[90]
        assert made is not None
        held += made.low <= stats.expon.ppf(0.9) <= made.high
    assert 0.91 < held / 400 < 0.985


# -- objectives, steadiness -------------------------------------------------------------------------------------------


def test_objectives_are_read() -> None:
    assert parse_slo("ttft=200ms, tpot=0.05s,e2e=5s") == SLO(200 * MS, 50 * MS, 5000 * MS)
    assert str(parse_slo("tpot=50ms")) == "tpot 50 ms"
    both = parse_slos(["ttft=1s", "batch: e2e=60s"])
    assert both == SLO(1000 * MS, classes={"batch": SLO(e2e=60_000 * MS)})
    assert str(both) == "ttft 1000 ms; batch: e2e 60000 ms"
    assert both.of("batch").met(9000 * MS, None, 50_000 * MS)
    assert not both.of("chat").met(9000 * MS, None, 50_000 * MS)
    assert not SLO()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write one of ttft, tpot, e2e"), ("ttft", "a time above 0 with its unit"), ("ttft=-1s", "a time above 0"),
        ("ttft=200", "without a unit; write ttft=200ms or ttft=200s"), ("ttft=0ms", "must be above 0"),
        ("itl=5ms", "write one of ttft, tpot, e2e"), ("ttft=1s,ttft=2s", "has ttft twice"),
        ("ttft=0.0001us", "must be above 0"), (f"ttft={'9' * 400}s", "a time above 0 with its unit"),
    ],
)  # fmt: skip
def test_objectives_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"--slo has .*{says}|--slo {says}"):
        parse_slo(text)


def queue(rate: float, service: float, seconds: float, seed: int) -> tuple[list[tuple[float, float]], ...]:
    """One server, exponential services, Poisson arrivals: (moment, under way) and (arrival, seconds there)."""
    draw = np.random.default_rng(seed)
    at, free, ends = 0.0, 0.0, []
    waits = []
    while (at := at + draw.exponential(1 / rate)) < seconds:
        free = max(at, free) + draw.exponential(service)
        ends.append(free)
        waits.append((at, free - at))
    moments = np.arange(0, seconds, 0.25)
    under_way = [(float(t), float(sum(a <= t < e for (a, _), e in zip(waits, ends, strict=True)))) for t in moments]
    return under_way, waits


def test_a_queue_that_grows_is_told_from_one_that_does_not() -> None:
    """Of an M/M/1 queue: at 150 % of what it can do always, at 60 % hardly ever."""
    verdicts = {}
    for load in (0.6, 1.5):
        found = [judge_stationarity(*queue(20 * load, 0.05, 60.0, seed), 20 * load) for seed in range(20)]
        verdicts[load] = sum(one is not None and one.overloaded for one in found)
    assert verdicts[1.5] == 20
    assert verdicts[0.6] <= 1
    assert judge_stationarity([], [], 1.0) is None
    assert judge_stationarity([(1.0, 1.0)] * 100, [(1.0, 1.0)] * 100, 1.0) is None


@pytest.mark.parametrize("count", [1, 7, 60, 1000])
def test_an_interval_of_a_share_is_wilsons(count: int) -> None:
    """As scipy has it; of none and of all it has a width too."""
    for good in {0, 1, count // 3, count - 1, count}:
        expected = stats.binomtest(good, count).proportion_ci(0.95, method="wilson")
        assert wilson(good / count, count) == pytest.approx((expected.low, expected.high), abs=1e-4)
    assert wilson(1.0, count)[0] < 0.9999 < wilson(1.0, count)[1]
    assert wilson(0.0, count)[1] > 0.0001 > wilson(0.0, count)[0]
    assert wilson(0.0, 0) == (0.0, 1.0)
