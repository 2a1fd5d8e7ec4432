"""The report and the JSON of runs that are known, and what neither tells when the load generator was too late."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.test_load import always, job, played
from bench.test_sweep import swept
from bench.virtual import MS, text, tokens
from ridgeline.insight.bench.bench_export import findings_json, requests_csv
from ridgeline.insight.bench.bench_findings import BenchFindings, describe_load
from ridgeline.insight.bench.bench_report import report
from ridgeline.insight.bench.job import LoadPattern, PromptDataset
from ridgeline.insight.bench.prediction import LoadPoint, Prediction
from ridgeline.insight.bench.server_probe import PhaseSteps, ServerInfo, base_url
from ridgeline.insight.traffic.series import seconds, under_way
from ridgeline.insight.traffic.slo import SLO, parse_slo
from ridgeline.util.document.charts import Chart, Spans
from ridgeline.util.document.html import html
from ridgeline.util.document.terminal_renderer import plain

SERVED = ServerInfo("http://fake", "m", "ridgeline")
POINTS = tuple(LoadPoint(users, 4.0 * users, 12.0 * users, 0.05, 0.01 + 0.001 * users) for users in (1, 2, 4))
PREDICTED = Prediction("tales", "slate", True, 7, 3, POINTS)


def findings(slo: SLO | None = None, handing_over: int = 0, **load: Any) -> BenchFindings:
    asked = job(LoadPattern(**{"arrivals": "constant", "rate": 5.0, "requests": 40, **load}))
    run, _ = played(asked, always(), handing_over=handing_over, slo=slo)
    steps = {"decode": PhaseSteps(100, 1.0, 100, 0.8), "prefill": PhaseSteps(0, 0.0, 0, 0.0)}
    return BenchFindings(SERVED, asked, run, slo, None, steps, PREDICTED)


def table_row(page: str, name: str) -> list[str]:
    return next(line.split()[len(name.split()) :] for line in page.splitlines() if line.startswith(f"{name} "))


def test_a_terminal_is_not_filled_with_definitions() -> None:
    """Check that they are in the report alone: forty lines of them stood under every run."""
    found = findings()
    lines = plain(report(found, with_charts=False)).splitlines()
    assert lines[-1] == "definitions of these figures: --report FILE.html, --json or docs/bench.md"
    assert "c1 - a: time to first token" not in "".join(lines)
    assert "c1 - a: time to first token" in plain(report(found, with_charts=True))


def test_a_drawn_load_is_said_to_be_drawn() -> None:
    """Check that 3.81 per second under --rate 5 is explained where it stands; constant gaps need no words."""
    drawn = findings(arrivals="poisson")
    said = " ".join(plain(report(drawn, with_charts=False)).split())
    assert f"{drawn.run.offered:.2f} requests per second, with random gaps for a rate of 5." in said
    assert "the offered load was 5.00 requests per second." in plain(report(findings(), with_charts=False))


def test_too_short_a_run_says_what_cannot_be_told_and_what_would_do() -> None:
    said = (
        "answered in 3.9 s: too short to tell whether the server keeps up; give more --requests or --duration, for at "
        "least 30 requests."
    )
    assert said in " ".join(plain(report(findings(requests=20), with_charts=False)).split())
    assert "30 of 30 requests answered in 5.9 s: steady." in plain(report(findings(requests=30), with_charts=False))


def test_figures_stand_in_the_text_with_their_count() -> None:
    page = plain(report(findings(parse_slo("ttft=40ms,tpot=10ms")), with_charts=True))
    assert page.splitlines()[0] == "m at http://fake: constant arrivals, 5 per second"
    assert "Goodput 5.09 per second: 40 of 40 met ttft 40 ms, tpot 10 ms." in page
    assert "TTFT 40.0 ms (median), TPOT 10.0 ms (median), E2E 60.0 ms (median)." in page
    few = ["n", "too", "small"]
    assert table_row(page, "TTFT") == ["40.0", "40.0", *few * 3, "40.0", "40"]
    assert table_row(page, "ITL")[-1] == "80"
    assert table_row(page, "decode") == ["100", "10.0", "8.00", "+25%"]
    assert table_row(page, "5.00/s") == ["15.3", "15.0", "40.0", "50.0", "10.0", "12.0"]
    assert "predicted by the cost model for tales on slate (calibrated)" in page
    assert "nan" not in page


def test_a_late_load_generator_tells_no_latency_of_the_server() -> None:
    """6 ms late for a TTFT of 46: not in the text, not in a figure, not in the JSON; what it is to blame for is."""
    late = findings(parse_slo("ttft=40ms"), handing_over=6 * MS)
    assert late.refused
    document = report(late, with_charts=True)
    page = plain(document)
    assert "client limited" in page
    assert "no latencies are reported" in page
    rows = page[: page.index("Definitions")].splitlines()
    assert not [line for line in rows if line.startswith(("TTFT", "service TTFT", "ITL", "TPOT", "E2E"))]
    assert "Goodput" not in page[: page.index("Definitions")]
    assert not [figure for figure in document.figures if isinstance(figure, Spans) or "TTFT" in figure.title]
    metrics = findings_json(late)["metrics"]
    told = {name for name, found in metrics["latencies"].items() if found is not None}
    assert told == {"lateness", "queue_delay"}
    assert metrics["goodput"] is None


def test_a_late_load_generator_tells_goodput_that_it_cannot_have_changed() -> None:
    """46 ms of which 6 are ours: over 30 in any case, and under 50."""
    for limit, good in ((30, 0), (50, 40)):
        late = findings(parse_slo(f"ttft={limit}ms"), handing_over=6 * MS)
        assert late.refused
        assert f"{good} of 40 met ttft {limit} ms" in plain(report(late, with_charts=False))
        assert findings_json(late)["metrics"]["goodput"]["good"] == good


def test_a_few_late_requests_are_said_beside_their_figures() -> None:
    """Of 6 requests nobody can tell a p99: figures are given, with how late they were."""
    page = plain(report(findings(parse_slo("ttft=40ms"), handing_over=6 * MS, requests=6), with_charts=False))
    assert "sent up to 6.00 ms late, 5.67 ms on average of 6 requests" in page
    assert table_row(page, "TTFT")[0] == "45.7"
    assert "0 of 6 met ttft 40 ms; 6 missed it only because the load generator was late" in page


@pytest.mark.parametrize(("cpu", "says"), [(0.03, "more --processes would not help"), (0.6, "Use more --processes")])
def test_more_processes_are_advised_to_a_busy_client_alone(cpu: float, says: str) -> None:
    late = findings(handing_over=6 * MS)
    assert says in " ".join(replace(late, run=replace(late.run, cpu=cpu)).reasons)


def test_new_prompts_that_were_cached_are_said_at_the_top() -> None:
    """20 % of them is no template's beginning; a shared prefix is meant to be cached."""
    found = findings()
    known = replace(found.run.summary, prompt_tokens=1000, cached_tokens=200)
    cached = replace(found, run=replace(found.run, summary=known))
    assert "20% of the prompt tokens in its cache" in cached.reasons[0]
    asked = msgspec.structs.replace(cached.job, data=PromptDataset(prefix=10))
    assert not replace(cached, job=asked).reasons


def test_a_run_with_nothing_answered_is_a_report_too() -> None:
    asked = job(LoadPattern(users=1, requests=3))
    run, _ = played(asked, lambda fields, number: (429, [(MS, b'{"error": {"message": "<full>"}}')]))
    found = BenchFindings(SERVED, asked, run)
    page = html(report(found, with_charts=True))
    assert "0 of 3 requests answered, 3 rejected" in page
    assert "HTTP 429: &lt;full&gt;" in page
    json.dumps(findings_json(found), allow_nan=False)


def test_the_knee_of_a_sweep_is_told_and_drawn() -> None:
    found = swept(3.0)
    assert found.knee is not None
    whole = BenchFindings(SERVED, job(LoadPattern()), found.shown, parse_slo("ttft=101ms"), found, {}, PREDICTED)
    document = report(whole, with_charts=True)
    drawn = {figure.title: figure for figure in document.figures}
    goodput, ttft = drawn["Goodput by request rate"], drawn["Median TTFT by request rate"]
    assert isinstance(goodput, Chart)
    assert isinstance(ttft, Chart)
    assert goodput.marks == ((found.knee.rate, "the knee"),)
    assert [x for x, _ in goodput.series[0].points] == [level.rate for level in found.levels]
    assert ttft.series[1].name == PREDICTED.label
    assert ttft.series[1].points == ((4.0, 50.0), (8.0, 50.0))
    assert f"The knee: at {found.knee.rate:.4g} requests per second" in plain(document)
    exported = findings_json(whole)["sweep"]
    assert exported["reached"]
    assert exported["knee"] == found.knee.rate
    assert [bool(level["fault"]) for level in exported["levels"]] == [bool(level.why) for level in found.levels]


def test_a_knee_that_was_not_reached_is_a_bound() -> None:
    """The load generator gave out at the lowest rate that was too much: of the server nothing is known above."""
    found = swept(3.0)
    assert found.knee is not None
    limited = tuple(
        replace(level, why="the load generator is the limit") if level.rate > found.knee.rate else level
        for level in found.levels
    )
    bound = replace(found, levels=limited)
    document = report(
        BenchFindings(SERVED, job(LoadPattern()), bound.shown, parse_slo("ttft=101ms"), bound), with_charts=True
    )
    assert f"The knee was not reached: at {found.knee.rate:.4g} requests per second 99% of them meet" in plain(document)
    assert {chart.marks for chart in document.figures if isinstance(chart, Chart) and chart.marks} == {
        ((found.knee.rate, "the highest good rate"),)
    }
    assert not findings_json(BenchFindings(SERVED, job(LoadPattern()), bound.shown, None, bound))["sweep"]["reached"]


def test_tokens_that_nobody_counted_are_said_to_be_pieces() -> None:
    asked = job(LoadPattern(users=1, requests=3))
    run, _ = played(asked, lambda fields, number: (200, [(MS, text()), (2 * MS, text() + b"data: [DONE]\n\n")]))
    assert "The server reports no token counts" in plain(report(BenchFindings(SERVED, asked, run), with_charts=False))


def test_the_object_is_json_and_its_columns_are_the_records() -> None:
    found = findings_json(findings())
    assert json.loads(json.dumps(found, allow_nan=False))["per_request"]["ttft"] == [0.04] * 40
    assert set(found) >= {"format", "inputs", "verdict", "metrics", "per_request", "steps", "replicas", "reasons"}
    assert found["metrics"]["latencies"]["ttft"]["p50"] == {"low": 0.04, "mid": 0.04, "high": 0.04}
    assert requests_csv(findings()).count("\n") == 41


def test_a_run_second_by_second() -> None:
    """Two users, 500 ms an answer of 5 tokens: two under way all the time, 20 tokens and 4 answers a second."""
    asked = job(LoadPattern(users=2, seconds=5.0))
    *words, (_, end) = tokens(5, 99 * MS, 100 * MS)
    run, _ = played(asked, lambda fields, number: (200, [*words, (500 * MS, end)]))
    whole = seconds(run.records)[1:-1]
    assert {second.tokens for second in whole} == {20.0}
    assert {second.finished for second in whole} == {4}
    assert all(second.under_way == pytest.approx(2, abs=0.2) for second in whole)
    assert under_way(run.records, 2_000 * MS, 3)[1] == (1.0, 2.0)
    assert seconds([]) == []


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (LoadPattern(users=1), "closed loop of 1 user"),
        (LoadPattern(rate=2.5, most_under_way=3), "Poisson arrivals, 2.5 per second, at most 3 in flight"),
        (LoadPattern(arrivals="gamma", burstiness=0.5), "gamma (0.5) arrivals, 1 per second"),
        (LoadPattern(arrivals="trace", speed=2.0), "arrival times of the trace 2 times as fast"),
    ],
)
def test_a_load_in_words(load: LoadPattern, words: str) -> None:
    assert describe_load(load) == words


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1", "http://localhost:8000/v1/"]
)
def test_a_server_is_named_in_several_ways(url: str) -> None:
    assert base_url(url) == "http://localhost:8000"


def test_data_in_words() -> None:
    traced = findings()
    traced = BenchFindings(SERVED, job(LoadPattern(), PromptDataset(kind="file", path="p.jsonl")), traced.run)
    assert "Prompts of p.jsonl" in plain(report(traced, with_charts=False))
