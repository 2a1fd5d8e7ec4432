"""The adviser against the whole grid, and what it says."""

import json
import pickle
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate import adviser
from ridgeline.insight.simulate.adviser import Advice, Setting, TriedSetting, advise, simulate_setting, trial
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation_export import findings_json
from ridgeline.insight.simulate.simulation_findings import simulate
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.simulate.simulation_report import document
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import LogNormal, Uniform
from ridgeline.insight.traffic.offered import ClosedLoop, OpenLoop, bounded, draw_requests
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.util.document.terminal_renderer import show
from simulate.machines import machine
from support.exact_prices import EXACT
from support.planned import LLAMA_3_8B, case

EIGHT_B = case(LLAMA_3_8B)
BUDGETS, PLACES = (256, 1024, 4096), (4, 16, 64)


def offered(rate: float) -> OpenLoop:
    return OpenLoop(bounded(draw_requests(poisson(rate, 3), LogNormal(400, 0.8), Uniform(5, 25), 3), 120, None))


def rebuilt(limits: Limits, memory: float = 0.9) -> Machine:
    return machine(limits, pages=2000, on=EIGHT_B)


def asked(rate: float, slo: str, limits: Limits) -> SimulationQuery:
    return SimulationQuery(
        "8b",
        rebuilt(limits),
        "a test",
        True,
        partial(offered, rate),
        parse_slo(slo),
        EXACT,
        3,
    )


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adviser, "TOKEN_BUDGETS", BUDGETS)
    monkeypatch.setattr(adviser, "REQUEST_LIMITS", PLACES)


@pytest.mark.usefixtures("small_grid")
def test_it_finds_what_the_whole_grid_has() -> None:
    """From the worst corner, within 3 % of the best share of good requests."""
    rate, slo, whole = 20.0, "ttft=150ms,tpot=40ms", list[TriedSetting]()
    for tokens, places in product(BUDGETS, PLACES):
        only = asked(rate, slo, Limits(tokens, places))
        whole.append(simulate_setting(only, only.machine))
    found = advise(asked(rate, slo, Limits(256, 4)), rebuilt)
    shares = [each.comparable_to(found.current).share for each in whole]
    assert found.best.share >= 0.97 * max(shares)
    assert found.best.share == pytest.approx(shares[0] + found.gain.mid)
    assert found.current.share == found.current.metrics.good_share, "one figure for one thing"
    assert 0 < found.count < 120
    assert len(found.options) <= len(whole)


@pytest.fixture(scope="module")
def advised() -> Advice:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adviser, "TOKEN_BUDGETS", BUDGETS)
        patch.setattr(adviser, "REQUEST_LIMITS", PLACES)
        return advise(asked(20.0, "ttft=150ms,tpot=40ms", Limits(256, 4)), rebuilt)


def test_it_says_why(advised: Advice) -> None:
    """By the counts of both runs; and what to type."""
    assert advised.is_significant
    assert advised.sentence.startswith(f"--max-batch-tokens {advised.best.limits.tokens} --max-requests")
    assert "requests wait for places" in advised.sentence
    held = advised.current.metrics.steps.held["requests"]
    assert f"instead of {held:.0%}" in advised.sentence
    assert advised.best in advised.pareto


@pytest.mark.usefixtures("small_grid")
def test_pages_are_asked_for_where_requests_wait_for_them() -> None:
    """A share of memory that leaves more of them; where nobody waits for one it is not even tried."""

    def on(limits: Limits, memory: float = 0.9, pages: int = 120) -> Machine:
        more = {0.9: pages, 0.92: pages + 60, 0.95: pages + 400}[memory]
        return machine(limits, pages=more, on=replace(EIGHT_B, setup=replace(EIGHT_B.setup, utilization=memory)))

    one = replace(asked(20.0, "ttft=150ms,tpot=40ms", Limits(4096, 64)), machine=on(Limits(4096, 64)))
    found = advise(one, on)
    assert found.current.metrics.steps.held["pages"] > 0.05
    assert found.is_significant
    assert found.best.memory == 0.95
    assert found.flags.endswith("--memory-utilization 0.95")
    assert "KV pages" in found.sentence
    assert {each.memory for each in found.options} == {0.9, 0.92, 0.95}
    assert {each.memory for each in advise(one, on, shares=()).options} == {0.9}, "pages that are stated are a server's"
    ample = partial(on, pages=4000)
    rich = advise(replace(one, machine=ample(Limits(4096, 64))), ample)
    assert {each.memory for each in rich.options} == {0.9}


@pytest.mark.usefixtures("small_grid")
def test_smaller_steps_are_tried_where_they_leave_pages() -> None:
    """No step is as large as may be, but fewer positions leave memory for pages, which requests wait for."""

    def on(limits: Limits, memory: float = 0.9) -> Machine:
        return machine(limits, pages=100 if limits.tokens == 16384 else 600, on=EIGHT_B)

    large = Limits(16384, 64)
    found = advise(replace(asked(10.0, "ttft=300ms,tpot=60ms", large), machine=on(large)), on)
    assert found.current.most_positions < 4096
    assert found.current.is_short_of_pages
    assert 4096 in {option.limits.tokens for option in found.options}
    fixed = advise(replace(asked(10.0, "ttft=300ms,tpot=60ms", large), machine=on(large)), on, shares=())
    assert 4096 not in {option.limits.tokens for option in fixed.options}, "stated pages are the same for all"
    assert found.best.limits.tokens < 16384
    assert found.is_significant


def test_nothing_is_said_where_nothing_differs() -> None:
    """All requests are good whatever the limits, at a rate that nobody notices: other settings need not even be run
    where nothing came near a limit."""
    idle = SimulationQuery(
        "8b",
        rebuilt(Limits(4096, 64)),
        "a test",
        True,
        partial(offered, 0.5),
        parse_slo("ttft=9s"),
        EXACT,
        3,
    )
    found = advise(idle, rebuilt)
    assert not found.is_significant
    assert found.sentence.startswith("No other setting is significantly better")
    assert {option.limits.requests for option in found.options} == {64}


def test_it_is_told_as_data_and_as_a_table(advised: Advice, capsys: pytest.CaptureFixture[str]) -> None:
    one = asked(20.0, "ttft=150ms,tpot=40ms", Limits(256, 4))
    findings = replace(simulate(one), advised=advised)
    result = findings_json(findings)["advised"]
    assert result["worth"]
    assert result["best"]["tokens"] == advised.best.limits.tokens
    assert len(result["options"]) == len(advised.options)
    show(document(findings))
    out = capsys.readouterr().out
    assert "Other settings" in out
    assert "yours" in out
    assert "best" in out


def test_what_falls_behind_calmly_is_no_better(advised: Advice) -> None:
    """Than what is asked about, which preempts and has good requests; what preempts is not advised."""

    def option(good: float, preemptions: int) -> TriedSetting:
        metrics = replace(advised.current.metrics, preemptions=preemptions)
        return replace(advised.current, metrics=metrics, good=np.arange(120) < round(120 * good))

    own, idle, rough, better = option(0.9, 10), option(0.0, 0), option(1.0, 10), option(0.95, 0)
    assert adviser._best(own, [idle]) is own
    assert adviser._best(own, [idle, rough]) is own
    assert adviser._best(own, [idle, rough, better]) is better


def test_pairs_tell_what_totals_do_not() -> None:
    """Of 1,000 requests ten are won and none lost: surely better; ten won and nine lost: not."""
    own = np.arange(1000) >= 10
    surely = adviser._gain(own, np.ones(1000, dtype=bool))
    assert 0 < surely.low < surely.mid == 0.01 < surely.high
    other = ~((np.arange(1000) >= 20) & (np.arange(1000) < 29))
    assert adviser._gain(own, other).low < 0 < adviser._gain(own, other).high


def test_users_are_not_compared() -> None:
    users = SimulationQuery(
        "8b",
        rebuilt(Limits()),
        "",
        False,
        lambda: ClosedLoop(1, ThinkTime(), (), None, 0),
        parse_slo("ttft=1s"),
        EXACT,
        0,
    )
    with pytest.raises(ValueError, match="give --slo, and --rate or --trace"):
        advise(users, rebuilt)


class Later:
    """A second process that has a result when it is asked whether it has, or for it; and that may be lost."""

    def __init__(self, answers: int = 99, takes: int = 99) -> None:
        self.ready, self.given, self.ended, self._answers, self._takes = True, list[Setting](), False, answers, takes

    def submit(self, limits: Limits, memory: float) -> "Future[TriedSetting | None]":
        if len(self.given) == self._takes:
            raise BrokenExecutor
        self.given.append((limits, memory))
        return _Asked(limits, memory, lost=len(self.given) > self._answers)

    def close(self) -> None:
        self.ended = True


class _Asked(Future[TriedSetting | None]):
    """Done when it has been asked twice."""

    def __init__(self, limits: Limits, memory: float, *, lost: bool) -> None:
        super().__init__()
        self._setting, self._lost, self._asked = (limits, memory), lost, 0

    def done(self) -> bool:
        self._asked += 1
        return self._asked > 2

    def result(self, timeout: float | None = None) -> TriedSetting | None:
        if self._lost:
            raise BrokenExecutor
        return pickle.loads(pickle.dumps(on_trial(*self._setting)))  # as it comes from another process


def on_trial(limits: Limits, memory: float) -> TriedSetting | None:
    return trial(asked(20.0, "ttft=150ms,tpot=40ms", Limits(256, 4)), rebuilt, limits, memory)


def told(found: Advice) -> str:
    one = asked(20.0, "ttft=150ms,tpot=40ms", Limits(256, 4))
    return json.dumps(findings_json(replace(simulate(one), advised=found)))


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize(("answers", "takes"), [(99, 99), (1, 99), (0, 99), (99, 1), (99, 3)])
def test_a_second_process_changes_nothing(advised: Advice, answers: int, takes: int) -> None:
    """Settings that it runs ahead of time are taken in their order, those that need not be run are not; one that is
    lost on the way, or takes no more, loses nothing."""
    second = Later(answers, takes)
    found = advise(asked(20.0, "ttft=150ms,tpot=40ms", Limits(256, 4)), rebuilt, second=second)
    assert [each.limits for each in found.options] == [each.limits for each in advised.options]
    assert second.given
    assert second.ended
    assert told(found) == told(advised)
