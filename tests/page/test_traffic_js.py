"""What the tab *Traffic* makes of a result, without a browser: the same figures that the report has."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from bench.test_load import job, played
from bench.test_report import findings
from bench.test_sweep import swept
from bench.virtual import MS, tokens
from page.conftest import apart
from page.modules import Modules
from ridgeline.insight.bench.bench_export import findings_json
from ridgeline.insight.bench.job import LoadPattern
from ridgeline.insight.traffic.series import counts_at
from ridgeline.insight.traffic.slo import parse_slo

SLO = parse_slo("ttft=40ms,tpot=10ms")
LOAD = job(LoadPattern(arrivals="poisson", rate=30.0, requests=150, seed=3))
RUN, _ = played(LOAD, lambda fields, number: (200, tokens(3, (20 + 7 * number % 53) * MS, 10 * MS)), slo=SLO)
FOUND = replace(findings(SLO), run=RUN)
"""Of a server that lets some wait longer than others."""


@lru_cache
def module() -> Modules:
    made = Modules("traffic.js")
    made.stand_in("dom.js")
    return made


def read(told: Mapping[str, Any] | str, then: str = "found") -> Any:
    """What comes of a result, or the words in which it is refused."""
    text = told if isinstance(told, str) else json.dumps(told)
    return module().eval(f"""(() => {{
      try {{
        const found = modules["traffic.js"].readResult("run.json", {json.dumps(text)});
        return {then};
      }} catch (error) {{
        return error.message;
      }}
    }})()""")


def test_a_result_is_read() -> None:
    told = findings_json(FOUND)
    found = read(told)
    assert found["count"] == len(FOUND.run.records)
    assert found["slo"] == {"ttft": 0.04, "tpot": 0.01}, "in seconds"
    assert (found["verdict"], found["kind"]) == (FOUND.verdict, "bench-serve")
    assert found["predicted"]["points"][0]["tokens_per_second"] == 12.0


def test_a_distribution_is_that_of_the_requests() -> None:
    points = read(findings_json(FOUND), "modules['traffic.js'].cumulative(found, 'e2e')")
    values = sorted(
        record.e2e / 1e9 for record in FOUND.run.records if record.outcome == "ok" and record.e2e is not None
    )
    assert (points[0], points[-1]) == ([values[0], 0], [values[-1], 1])
    assert len({value for value, _ in points}) > 20
    for value, share in points[1:]:
        assert sum(each < value for each in values) < share * len(values) <= sum(each <= value for each in values)


def test_requests_under_way_are_those_of_the_series() -> None:
    points = read(findings_json(FOUND), "modules['traffic.js'].underWay(found).all")
    moments = np.array([moment for moment, _ in points]) * 1e9
    until = max(record.over for record in FOUND.run.records)
    counted = counts_at(FOUND.run.records, np.round(moments), until)
    assert max(counted) > 1
    assert [count for _, count in points] == counted.tolist()


def test_a_sweep_has_its_rates() -> None:
    slo = parse_slo("ttft=101ms")
    sweep = apart(lambda: swept(3.0, slo))
    told = findings_json(replace(FOUND, sweep=sweep, slo=slo))
    levels = read(told, "modules['traffic.js'].levelsOf(found)")
    assert [level["rate"] for level in levels] == [level.rate for level in sweep.levels]
    assert levels[0]["good"] == pytest.approx(sweep.levels[0].run.summary.goodput.rate)  # type: ignore[union-attr]
    assert levels[0]["ttft"] == pytest.approx(0.1, abs=2e-3)


def test_a_late_load_generator_tells_no_latency_of_the_server() -> None:
    """As in the report; how many were under way it does."""
    late = apart(lambda: findings(parse_slo("ttft=40ms"), handing_over=6 * MS))
    assert late.refused
    told = findings_json(late)
    for column in ("ttft", "tpot", "e2e"):
        assert read(told, f"modules['traffic.js'].cumulative(found, '{column}')") == []
    found = read(told, "modules['traffic.js'].underWay(found)")
    assert found["waiting"] == []
    assert max(count for _, count in found["all"]) >= 1


def test_a_simulation_is_read_too() -> None:
    """It has no clients who end, levels of its capacity, and advice."""
    told = findings_json(FOUND)
    told |= {"kind": "simulate", "advice": "buy two", "sweep": None}
    told |= {"capacity": {"levels": [{"rate": 3.0, "metrics": {"requests_per_second": 2.5}}]}}
    del told["per_request"]["ended"], told["reasons"]
    found = read(told)
    assert (found["kind"], found["reasons"]) == ("simulate", ["buy two"])
    assert [each["good"] for each in read(told, "modules['traffic.js'].levelsOf(found)")] == [2.5]
    with_ends = read(findings_json(FOUND), "modules['traffic.js'].underWay(found).all")
    assert read(told, "modules['traffic.js'].underWay(found).all") == with_ends


def test_a_run_that_answered_nothing_is_read_too() -> None:
    told = findings_json(FOUND)
    told["per_request"] = {name: [] for name in told["per_request"]}
    told["metrics"]["latencies"] = {}
    assert read(
        told, "[modules['traffic.js'].cumulative(found, 'ttft'), modules['traffic.js'].underWay(found).all]"
    ) == [[], []]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("{", "run.json is not valid JSON"),
        ("null", "is not the result of a run"),
        ("[1]", "is not the result of a run"),
        ({"format": 1, "metrics": [], "per_request": {}}, "is not the result of a run"),
        ({"format": "<b>9</b>", "metrics": {}, "per_request": {}}, "format <b>9</b>; this page reads 1"),
        ({"format": 1, "metrics": {}, "per_request": {"outcome": "ok"}}, "lacks the column outcome"),
        ({"format": 1, "metrics": {}, "per_request": {"outcome": ["ok"], "intended": []}}, "lacks the column intended"),
    ],
)
def test_what_is_no_result_is_said(told: Mapping[str, Any] | str, words: str) -> None:
    assert words in read(told)


def test_odd_values_are_passed_over() -> None:
    told = findings_json(FOUND)
    told["per_request"]["ttft"][0] = "<img>"
    told["inputs"]["slo"] = {"ttft": "soon", "tpot": -1}
    told["reasons"] = [{"a": 1}]
    told["sweep"] = {"levels": [{"rate": "x"}, None]} | {"knee": None}
    told["sweep"]["levels"][1] = {"rate": 2, "metrics": {"goodput": {"rate": 1}, "latencies": {"ttft": {"mean": "x"}}}}
    found = read(told)
    assert (found["slo"], found["reasons"]) == ({}, [])
    assert len(read(told, "modules['traffic.js'].cumulative(found, 'ttft')")) == len(FOUND.run.records)
    assert read(told, "modules['traffic.js'].levelsOf(found)") == [
        {"rate": 2, "fault": "", "good": 1, "ttft": None, "tpot": None}
    ]


@pytest.mark.parametrize("values", [[3.0], [2.0, 2.0], [0.0], [0.0, 5.0], [1e-4, 3.0], [1e-9, 1e9], [7.3e-3, 7.4e-3]])
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_holds_its_values(values: list[float], log: bool) -> None:
    """One, equal ones, zero; a logarithmic axis has the decades that they lie in."""
    made = Modules()
    made.stand_in("dom.js")
    made.stand_in("chart_parts.js")
    made.read("chart_lines.js")
    scale = f"modules['chart_lines.js'].scale({json.dumps(values)}, {json.dumps(log)}, [0, 100], true)"
    places = made.eval(f"[{json.dumps(values)}.map({scale}.at), {scale}.ticks.map({scale}.at)]")
    for place in (*places[0], *places[1]):
        assert math.isfinite(place)
        assert -1e-9 <= place <= 100 + 1e-9
    assert 2 <= len(places[1]) <= 19
    assert places[1][-1] == pytest.approx(100)
