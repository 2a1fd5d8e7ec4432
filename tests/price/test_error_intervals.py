"""The intervals around predictions: which one a case has, what it says, and that 80 % of new sources lie within."""

import random
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import ANY

import numpy as np
import pytest
from scipy import stats

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.error_interval import (
    KINDS,
    LEVELS,
    ErrorInterval,
    Kind,
    Known,
    error_intervals,
    intervals_for,
    intervals_of_class,
    known_of,
)
from ridgeline.price.interval_text import (
    cost_interval,
    describe_cases,
    describe_factors,
    describe_interval,
    rate_interval,
    time_interval,
)
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.price.unmodelled import ALL_MODELLED, UnmodelledBytes
from support.class_models import ARCHITECTURE, register_class
from support.planned import TINY, card, fields

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
WORK = Work.of([StepSegment(100, 100)])
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


# -- models that are traced from a class ------------------------------------------------------------------------------


@pytest.mark.parametrize("known", LEVELS)
def test_the_interval_of_a_class_holds_that_of_a_family_and_of_another_engine(known: Known) -> None:
    """Check that nothing is narrower, whatever the device: less is known of a model that was not measured."""
    own = {kind: error_intervals()[kind, known] for kind in KINDS}
    found = intervals_of_class(own, "transformers 5.24", {"prefill": 0.25})
    for kind, interval in found.items():
        family = error_intervals()[kind, "family"]
        assert interval.known == ("unknown" if known == "unknown" else "family")
        assert interval.low <= min(own[kind].low, family.low), kind
        assert interval.high == max(own[kind].high, error_intervals()[kind, interval.known].high), kind
        assert "none of a model traced from transformers 5.24" in interval.measurements
    assert "traced" not in own["decode"].measurements


def test_what_is_not_modelled_is_free_at_the_lower_end_and_counted_at_the_upper_end() -> None:
    own = {kind: error_intervals()[kind, "timed"] for kind in KINDS}
    without, some = (intervals_of_class(own, "a package", {"decode": share}) for share in (0.0, 0.25))
    assert some["decode"].low == pytest.approx(0.75 * without["decode"].low)
    assert some["decode"].high == without["decode"].high
    assert some["prefill"] == without["prefill"]


def test_a_class_of_a_measured_machine_is_no_longer_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    register_class(monkeypatch)
    device, config = card(calibrated=True), {**TINY, "architectures": [ARCHITECTURE]}
    own = ModelCache(fields(TINY)).scenario(Deployment(device, engine=load_engine("ridgeline")))
    traced = ModelCache(fields(config)).scenario(Deployment(device, engine=load_engine("ridgeline")))
    assert {each.known for each in own.intervals.values()} == {"measured"}
    assert {each.known for each in traced.intervals.values()} == {"family"}
    assert "a model traced from transformers 5.24" in describe_cases(traced.intervals["decode"], device)
    assert own.price.step(WORK) == traced.price.step(WORK), "the price itself does not change"


def test_the_share_that_is_not_modelled_is_that_of_the_bytes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare it with the norms that add, written out: two inputs and two outputs of each row, and the weights.

    There are two in each layer; the first layer's first norm adds nothing, and the last norm only has rows with logits.
    """
    register_class(monkeypatch)
    case = ModelCache(fields({**TINY, "architectures": [ARCHITECTURE]})).scenario(Deployment(card()))
    width, inner = TINY["hidden_size"], 2 * TINY["num_hidden_layers"] - 1
    steps: dict[Kind, Work] = {
        "prefill": Work.of([StepSegment(2048, 2048)]),
        "decode": Work.decode([2048] * 256),
    }
    for kind, work in steps.items():
        moved = 2 * width * (4 * (inner * work.tokens + work.logit_rows) + inner + 1)
        share = moved / case.price.step(work).total_bytes
        assert getattr(case.unmodelled, kind) == {"elementwise": pytest.approx(share)}
        assert case.unmodelled.fused[kind] == pytest.approx(share)
    fused = case.unmodelled.fused
    assert fused["load"] == fused["static"] == max(fused["prefill"], fused["decode"])
    register_class(monkeypatch, unmodelled=False)
    whole = ModelCache(fields({**TINY, "architectures": [ARCHITECTURE]})).scenario(Deployment(card()))
    assert whole.unmodelled == ALL_MODELLED
    assert not any("not modelled" in note for note in whole.notes)
    assert any("not modelled" in note for note in case.notes)


def test_products_and_gathers_that_are_not_modelled_are_counted_at_both_ends() -> None:
    """Check that only what an engine may fuse is free at the lower end."""
    shares = UnmodelledBytes({"matrix product": 0.2, "elementwise": 0.1, "copy": 0.05, "index": 0.01}, {})
    assert shares.fused == {"prefill": pytest.approx(0.15), "decode": 0, "static": pytest.approx(0.15), "load": ANY}
    assert shares.describe() == (
        "not modelled: matrix product 20.0%, elementwise 10.0%, copy 5.0%, index 1.0% of a prompt's bytes "
        "(2,048 tokens); counted by the shapes of their tensors"
    )


def test_a_note_lists_what_is_large_in_either_step() -> None:
    """Check a state, which is read once for a prompt and once for each sequence of a decode step."""
    shares = UnmodelledBytes({"elementwise": 0.1, "cache": 0.0004}, {"elementwise": 0.004, "cache": 0.8})
    assert shares.describe().startswith(
        "not modelled: elementwise 10.0% of a prompt's bytes (2,048 tokens); cache 80.0% of a decode step's bytes "
    )
    assert UnmodelledBytes({"copy": 0.004}, {"copy": 0.001}).describe() == ""


@pytest.mark.parametrize("context", [512, 8192])
def test_what_is_not_modelled_is_said_of_a_prompt_that_fits_the_context(
    context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_class(monkeypatch)
    config = {**TINY, "architectures": [ARCHITECTURE], "max_position_embeddings": context}
    unmodelled = ModelCache(fields(config)).scenario(Deployment(card())).unmodelled
    assert f"of a prompt's bytes ({min(context, 2048):,} tokens)" in unmodelled.describe()


# -- as text ----------------------------------------------------------------------------------------------------------


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
