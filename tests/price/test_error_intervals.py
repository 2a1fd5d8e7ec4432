"""The intervals around predictions: which one a case has, what it says, and that 80 % of new sources lie within."""

import random
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.error_interval import KINDS, LEVELS, ErrorInterval, error_intervals, intervals_for, known_of
from ridgeline.price.interval_text import (
    cost_interval,
    describe_factors,
    describe_interval,
    rate_interval,
    time_interval,
)
from support.planned import card

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
WIDE = ErrorInterval("decode", "timed", 0.8, 2.0, 26, 6)


@pytest.fixture(scope="module")
def intervals() -> ModuleType:
    """Return benchmarks/accuracy_intervals.py, a script outside of the package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return import_module("accuracy_intervals")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def fitting(intervals: ModuleType) -> ModuleType:
    return sys.modules["error_interval_fit"]


# -- the package's table ----------------------------------------------------------------------------------------------


def test_every_kind_has_an_interval_at_every_level() -> None:
    """Check that nothing lacks an interval, and that each holds the prediction itself."""
    assert set(error_intervals()) == {(kind, known) for kind in KINDS for known in LEVELS}
    for found in error_intervals().values():
        assert 0 < found.low <= 1 <= found.high
        assert found.rows >= found.sources >= 4


def test_less_knowledge_never_narrows_an_interval() -> None:
    for kind in KINDS:
        timed, family, unknown = (error_intervals()[kind, known] for known in ("timed", "family", "unknown"))
        assert timed.low >= family.low >= unknown.low, kind
        assert timed.high <= family.high <= unknown.high, kind


def test_figures_under_load_have_the_wider_ends_of_prefills_and_decodes() -> None:
    """Check the factors of `plan` under load, which `simulate` applies to each step."""
    for known in LEVELS:
        load, prefill, decode = (error_intervals()[kind, known] for kind in ("load", "prefill", "decode"))
        assert load.low == min(prefill.low, decode.low), known
        assert load.high == max(prefill.high, decode.high), known


@pytest.mark.parametrize(
    ("device", "engine", "weights", "known"),
    [
        ("h100-sxm", "vllm", "bf16", "timed"),
        ("h100-sxm", "vllm", "fp8", "timed"),
        ("h100-sxm", "vllm", "int4", "timed"),
        ("h100-sxm", "vllm", "nvfp4", "family"),
        ("h100-sxm", "vllm", "fp32", "family"),
        ("h100-sxm", "llama.cpp", "q4_k_m", "timed"),
        ("h100-sxm", "llama.cpp", "int8", "family"),
        ("h100-sxm", "other", "bf16", "unknown"),
        ("rtx-4090", "vllm", "bf16", "family"),
        ("mi300x", "vllm", "bf16", "unknown"),
        ("epyc-9654", "llama.cpp", "bf16", "unknown"),
    ],
)
def test_how_well_a_case_is_known(device: str, engine: str, weights: str, known: str) -> None:
    assert known_of(load_device(device), load_engine(engine), weights) == known
    found = intervals_for(load_device(device), load_engine(engine), weights)
    assert {each.known for each in found.values()} == {known}


def test_a_calibrated_machine_is_measured_under_its_own_engine() -> None:
    assert known_of(card(calibrated=True), load_engine("ridgeline"), "bf16") == "measured"
    assert known_of(card(calibrated=True), load_engine("vllm"), "bf16") == "family"


def test_a_rate_is_low_where_the_time_is_high() -> None:
    low, high = WIDE.around_time(10.0)
    assert (low, high) == (8.0, 20.0)
    assert WIDE.around_rate(1 / 10.0) == pytest.approx((1 / high, 1 / low))


def test_an_interval_ends_at_the_floor_and_holds_the_prediction() -> None:
    assert WIDE.around_time(10.0, 9.0) == (9.0, 20.0)
    assert WIDE.around_time(10.0, 5.0) == (8.0, 20.0)
    assert WIDE.around_rate(10.0, 11.0) == (5.0, 11.0)
    assert WIDE.around_rate(10.0, 20.0) == (5.0, 12.5)
    # A price below its own floor would be a fault, but the interval still holds it.
    assert WIDE.around_time(10.0, 11.0)[0] == 10.0
    assert WIDE.around_rate(10.0, 9.0)[1] == 10.0
    assert time_interval(WIDE, 0.010, 0.009) == "[9.00 .. 20.0 ms]"
    assert rate_interval(WIDE, 100.0, 110.0) == "[50.0 .. 110]"
    assert cost_interval(WIDE, 0.5, 0.45) == "[$0.45 .. $1.00]"


def test_intervals_as_text() -> None:
    assert time_interval(WIDE, 0.010) == "[8.00 .. 20.0 ms]"
    assert time_interval(WIDE, 0.9) == "[720 ms .. 1.80 s]"
    assert rate_interval(WIDE, 100.0) == "[50.0 .. 125]"
    assert cost_interval(WIDE, 0.5) == "[$0.40 .. $1.00]"
    said = "decode 10.0 ms, 8.00 to 20.0 ms in 8 of 10 cases like this one (26 measurements of 6 sources)"
    assert describe_interval("decode", WIDE, 0.010) == said
    seen = replace(WIDE, development=True)
    assert describe_factors("times", seen) == (
        "times x 0.80 to x 2.00 of predicted times (26 measurements of 6 sources, seen in development)"
    )


# -- the method -------------------------------------------------------------------------------------------------------


def drawn(fitting: ModuleType, sources: int, seed: int) -> list[object]:
    """Draw rows of sources whose errors have a mean of their own: a few rows or many, skewed to slow systems."""
    draw = random.Random(seed)
    rows = []
    for source in range(sources):
        middle = draw.gauss(0.2, 0.3) + draw.expovariate(4.0)
        for _ in range(draw.choice((1, 3, 20))):
            factor = np.exp(middle + draw.gauss(0, 0.15))
            rows.append(fitting.Sample("decode", "timed", str(source), float(factor)))
    return rows


@pytest.mark.parametrize("sources", [4, 5, 7, 12, 30])
def test_a_new_source_lies_within_in_eight_of_ten_cases(fitting: ModuleType, sources: int) -> None:
    """Check the coverage by simulation: of a source that is drawn anew, with intervals of a number of others.

    The standard error of the share is 1.2 %.
    """
    held = []
    for seed in range(1000):
        rows = drawn(fitting, sources + 1, seed)
        new = [row for row in rows if row.source == str(sources)]
        low, high = fitting.bounds([row for row in rows if row.source != str(sources)])
        held.append(np.mean([low <= row.factor <= high for row in new]))
    assert 0.75 <= np.mean(held) <= 0.85


def test_a_source_with_many_rows_weighs_no_more(fitting: ModuleType) -> None:
    rows = drawn(fitting, 12, 1)
    many = rows + [row for row in rows if row.source == "3"] * 50
    assert fitting.bounds(many) == fitting.bounds(rows)


def test_few_sources_widen_by_students_t(fitting: ModuleType) -> None:
    """Check against scipy's own prediction interval for one row per source, which has no spread within."""
    factors = [0.9, 1.1, 1.3, 1.2]
    rows = [fitting.Sample("decode", "timed", str(place), factor) for place, factor in enumerate(factors)]
    logs = np.log(factors)
    expected = stats.t.interval(0.8, 3, loc=logs.mean(), scale=logs.std(ddof=1) * np.sqrt(1 + 1 / 4))
    assert np.log(fitting.bounds(rows)) == pytest.approx(expected)


def test_levels_and_kinds_are_taken_together_until_four_sources_speak(fitting: ModuleType) -> None:
    def rows(kind: str, known: str, sources: range) -> list[object]:
        return [fitting.Sample(kind, known, str(source), 1 + source / 100) for source in sources]

    own = rows("decode", "timed", range(4))
    assert fitting.interval(own, "decode", "timed").pooled == ""
    assert fitting.interval(own, "prefill", "timed").pooled == "of decode, prefill and static"
    assert fitting.interval(own, "memory", "timed").pooled == "of all kinds and levels"
    few = [*rows("memory", "timed", range(2)), *rows("memory", "family", range(2, 4))]
    assert fitting.interval(few, "memory", "timed").pooled == "of the levels timed, family"
    assert fitting.interval(few[:3], "memory", "timed") is None


def test_rows_under_load_do_not_make_the_intervals_under_load(fitting: ModuleType) -> None:
    """Check that prefills and decodes alone make them, so that all rows under load judge them."""
    steps = [fitting.Sample(kind, "timed", str(n), 1 + n / 10) for n in range(4) for kind in ("prefill", "decode")]
    load = [fitting.Sample("load", "timed", str(source), 9.0) for source in range(4)]
    made = fitting.interval([*steps, *load], "load", "timed")
    assert made == fitting.interval(steps, "load", "timed")
    assert (made.rows, made.sources, made.pooled) == (8, 4, "of decode and prefill")


def test_coverage_counts_with_intervals_that_end_at_the_floor(fitting: ModuleType) -> None:
    row = fitting.Sample("decode", "timed", "a", 0.85)
    assert row.lies_in(WIDE)
    assert not replace(row, least=0.9).lies_in(WIDE)


# -- the rows ---------------------------------------------------------------------------------------------------------


def test_the_page_says_that_the_intervals_hold_what_they_are_meant_to() -> None:
    """Check the committed page, which `test_the_page_has_the_coverage_of_this_code` compares with the code."""
    page = (BENCHMARKS / "accuracy.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*The intervals hold (\d+)% of the measurements of a source", page)
    assert found is not None
    assert 75 <= int(found[1]) <= 90


@pytest.mark.slow
def test_the_page_has_the_coverage_of_this_code(intervals: ModuleType) -> None:
    """Price all published rows anew: the package's intervals and the page's section are of this code."""
    judged = intervals.judge()
    unseen = [each for each in judged.test if not each.development]
    whole = sys.modules["error_interval_fit"].coverage(judged.test, unseen)
    assert 0.75 <= whole.share <= 0.90
    assert 0.75 <= whole.held / whole.rows <= 0.90
    assert intervals.OUT.read_text(encoding="utf-8") == intervals.written(judged.intervals)
    assert intervals.interval_section(judged) in (BENCHMARKS / "accuracy.md").read_text(encoding="utf-8")
