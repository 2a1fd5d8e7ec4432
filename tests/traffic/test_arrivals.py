"""Arrivals and lengths against the distributions that they claim, by scipy's tests."""

import math
import random
from itertools import islice, pairwise, takewhile

import numpy as np
import pytest
from scipy import stats

from ridgeline.insight.traffic import arrivals
from ridgeline.insight.traffic.arrivals import constant, poisson
from ridgeline.insight.traffic.lengths import MAX_TOKENS, Fixed, LogNormal, Uniform, parse_lengths
from ridgeline.insight.traffic.profile import parse_profile, shaped

COUNT = 20_000
SECOND = arrivals.SECOND


def gaps(moments: list[int]) -> list[float]:
    """Seconds between arrivals, the first's from the start."""
    return [(after - before) / SECOND for before, after in pairwise([0, *moments])]


def test_poisson_gaps_are_exponential_and_independent() -> None:
    found = gaps(list(islice(arrivals.poisson(7.0, 1), COUNT)))
    assert stats.kstest(found, "expon", args=(0, 1 / 7)).pvalue > 0.01
    assert abs(stats.pearsonr(found[1:], found[:-1]).statistic) < 4 / COUNT**0.5


def test_counts_of_poisson_arrivals_vary_as_their_mean() -> None:
    """Which rescaled gaps would not: in a second there are 7 on average, with variance 7."""
    moments = list(islice(arrivals.poisson(7.0, 2), COUNT))
    seconds = moments[-1] // SECOND
    counts = [0] * seconds
    for moment in moments:
        if moment // SECOND < seconds:
            counts[moment // SECOND] += 1
    dispersion = stats.variation(counts) ** 2 * 7.0
    assert abs(dispersion - 1) < 5 * (2 / seconds) ** 0.5


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_shape_and_the_rate_that_were_asked_for(burstiness: float) -> None:
    found = gaps(list(islice(arrivals.gamma(5.0, burstiness, 3), COUNT)))
    assert stats.kstest(found, "gamma", args=(burstiness, 0, 1 / (5 * burstiness))).pvalue > 0.01
    assert stats.variation(found) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_the_first_arrival_is_a_draw_like_the_others() -> None:
    firsts = [next(arrivals.poisson(3.0, seed)) / SECOND for seed in range(3000)]
    assert stats.kstest(firsts, "expon", args=(0, 1 / 3)).pvalue > 0.01


def test_a_seed_gives_the_same_arrivals_and_another_others() -> None:
    first, again, other = (list(islice(arrivals.poisson(3.0, seed), 100)) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_constant_arrivals_do_not_drift() -> None:
    moments = list(islice(arrivals.constant(3.0), 9_000))
    assert moments[:3] == [333_333_333, 666_666_667, SECOND]
    assert moments[-1] == 3000 * SECOND


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    for made in (arrivals.poisson(rate, 1), arrivals.constant(rate)):
        with pytest.raises(ValueError, match="above 0"):
            next(made)


def test_lengths_are_drawn_as_written() -> None:
    draw = random.Random(1)
    assert parse_lengths("1k", "--input") == Fixed(1024)
    uniform = parse_lengths("uniform:10:19", "--input")
    assert uniform.p99 == 19
    assert uniform == Uniform(10, 19)
    drawn = [uniform.draw(draw) for _ in range(5000)]
    assert stats.chisquare([drawn.count(length) for length in range(10, 20)]).pvalue > 0.01
    log_normal = parse_lengths("lognormal:512:0.5", "--input")
    assert log_normal == LogNormal(512, 0.5)
    lengths = [log_normal.draw(draw) for _ in range(5000)]
    assert stats.kstest(lengths, "lognorm", args=(0.5, 0, 512)).pvalue > 0.01
    assert 0.005 < sum(length > log_normal.p99 for length in lengths) / len(lengths) < 0.015
    assert all(1 <= LogNormal(1, 4.0).draw(draw) <= MAX_TOKENS for _ in range(5000))


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "1.5", "uniform:5", "uniform:9:3", "lognormal:5:x", "lognormal:5:nan", "99999999999", "1m"]
)
def test_lengths_that_are_none_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"--output is .*; write 512, 1k"):
        parse_lengths(text, "--output")


@pytest.mark.parametrize(
    ("text", "seconds", "rates"),
    [
        ("ramp:4:60s", (0, 20, 40, 60, 80), (1.5, 2.5, 3.5, 4.0)),
        ("spike:5:1m:30s", (0, 60, 90, 120), (1.0, 5.0, 1.0)),
        ("day:0.2:100s", (0, 25, 50, 75, 100), None),
    ],
)
def test_a_rate_that_changes(text: str, seconds: tuple[int, ...], rates: tuple[float, ...] | None) -> None:
    """As many come between two moments as the rate there says, by Poisson's own spread; even arrivals exactly."""
    profile = parse_profile(text)
    due = [profile.due(after) - profile.due(before) for before, after in pairwise(seconds)]
    if rates is not None:
        assert due == pytest.approx(
            [rate * (after - before) for rate, (before, after) in zip(rates, pairwise(seconds), strict=True)]
        )
    for process, spread in ((poisson(100.0, 4), 4.0), (constant(100.0), 0.02)):
        moments = np.array(list(takewhile(lambda at: at < seconds[-1] * SECOND, shaped(process, profile))))
        assert (np.diff(moments) > 0).all()
        counts = np.histogram(moments, np.array(seconds) * SECOND)[0]
        for count, expected in zip(counts, due, strict=True):
            assert abs(count - 100 * expected) <= spread * math.sqrt(100 * expected) + 1


def test_what_comes_moved_in_time_is_still_poisson() -> None:
    """Numbers in equal stretches of operational time vary as their mean does."""
    profile = parse_profile("ramp:6:100s")
    moments = list(islice(shaped(poisson(50.0, 9), profile), 20_000))
    operational = np.array([profile.due(at / SECOND) for at in moments])
    counts = np.bincount(operational.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / len(counts)))


@pytest.mark.parametrize("text", ["ramp", "ramp:4", "ramp:0:60s", "ramp:4:60", "spike:4:60s", "day:2:60s", "x:1:2s"])
def test_a_profile_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--profile is .*; write ramp:4:60s"):
        parse_profile(text)
