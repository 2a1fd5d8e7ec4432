"""The words of commands that take minutes: an estimate first, then lines now and then where stderr is no terminal."""

import importlib
import re
from pathlib import Path

import pytest

from cli.running import OK, Run
from ridgeline.cli import console, page_export, simulate_progress
from ridgeline.cli.console import rough_time
from ridgeline.cli.simulate_progress import request_count
from ridgeline.cli.simulate_traffic import TrafficFlags

STEPS = importlib.import_module("ridgeline.insight.simulate.simulation")
SLOW = ("--device", "h100-sxm", "--rate", "20", "--requests", "40", "--input", "64", "--output", "8")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is worth saying, at once."""
    monkeypatch.setattr(console, "LINE_EVERY", 0.0)
    monkeypatch.setattr(simulate_progress, "_WORTH_SAYING", 0.0)
    monkeypatch.setattr(simulate_progress, "_FEW", 0)
    monkeypatch.setattr(page_export, "_WORTH_SAYING", 0.0)
    monkeypatch.setattr(STEPS, "_STEPS_BETWEEN", 8)


def test_a_run_of_a_moment_says_nothing(ridgeline: Run, model: str) -> None:
    ended = ridgeline("simulate", model, *SLOW)
    assert (ended.code, ended.err) == (OK, "")


@pytest.mark.usefixtures("told")
def test_an_estimate_comes_before_the_runs(ridgeline: Run, model: str) -> None:
    quiet = ridgeline("simulate", model, *SLOW, "--json")
    first, *lines = quiet.err.splitlines()
    assert first.startswith("simulating 3 runs of 40 requests: about ")
    places = [line.split(": run ")[1].split(",")[0] for line in lines]
    assert list(dict.fromkeys(places)) == ["1 of 3", "2 of 3", "3 of 3"]
    assert lines[0].startswith("with the predicted step times: run 1 of 3, ")
    (shorter, longer) = (next(line for line in lines if f": run {place} of 3" in line) for place in (2, 3))
    assert re.match(r"with step times x 0\.\d+: ", shorter)
    assert re.match(r"with step times x [1-9]\.\d+: ", longer)
    shares = [int(line.split(", ")[1].removesuffix("%")) for line in lines if "1 of 3" in line]
    assert shares == sorted(shares)
    assert 90 <= shares[-1] <= 100
    assert len(quiet.json["per_request"]["outcome"]) == 40


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--advise", "--slo", "ttft=1s"), "simulating up to 19 runs of 40 requests: about "),
        (("--divide", "2", "--slo", "ttft=1s"), "simulating up to 6 runs of 40 requests: about "),
        (("--split", "1:1", "--link", "25Gb/s"), "simulating 5 runs of 40 requests: about "),
    ],
)
@pytest.mark.usefixtures("told")
def test_other_runs_count_too(ridgeline: Run, model: str, options: tuple[str, ...], says: str) -> None:
    ended = ridgeline("simulate", model, *SLOW, *options)
    assert ended.code == OK, ended.err
    assert ended.err.startswith(says)


@pytest.mark.usefixtures("told")
def test_a_capacity_is_some_runs(ridgeline: Run, model: str) -> None:
    options = ("--device", "h100-sxm", "--input", "64", "--output", "8", "--requests", "30", "--price-error", "0%")
    ended = ridgeline("simulate", model, *options, "--capacity", "--slo", "ttft=1s")
    assert ended.code == OK, ended.err
    assert ended.err.startswith("simulating some 10 runs of 30 requests: about ")


def test_a_status_on_a_terminal_changes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(console.err, "_force_terminal", True)

    class Status:
        def __enter__(self) -> "Status":
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, text: str) -> None:
            said.append(text)

    monkeypatch.setattr(console.err, "status", lambda _: Status())
    with console.changing_line() as line:
        line("a")
        line("b")
    assert said == ["a", "b"]


@pytest.mark.parametrize(
    "flags",
    [
        TrafficFlags(rate=20.0, requests=30),
        TrafficFlags(rate=5.0, duration="4s", arrival="constant"),
        TrafficFlags(rate=50.0, duration="1s", requests=7, arrival="constant"),
        TrafficFlags(users=3, requests=11),
        TrafficFlags(users=2, trace=Path("trace.csv")),
        TrafficFlags(users=2, trace=Path("trace.csv"), requests=9),
        TrafficFlags(trace=Path("trace.csv")),
        TrafficFlags(trace=Path("trace.csv"), speed=2.0, duration="3s"),
    ],
)
def test_requests_are_counted_beforehand(flags: TrafficFlags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as come in the end; of a rate for a time, as many as are expected."""
    rows = [f"2023-11-16 18:15:0{at // 5}.{at % 5 * 2}000000,{100 + at},5\n" for at in range(40)]
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    monkeypatch.chdir(tmp_path)
    made = flags.offered()
    offered, came = made(), 0
    while offered.upcoming is not None:
        request = offered.take()
        offered.ended(request, request.at + 10**9, answered=True)
        came += 1
    count = request_count(flags, made())
    assert count is not None
    assert abs(count - came) <= (flags.duration is not None)


def test_what_follows_from_responses_is_not_counted() -> None:
    for flags in (TrafficFlags(users=3), TrafficFlags(rate=1.0, turns=3)):
        assert request_count(flags, flags.offered()()) is None


@pytest.mark.usefixtures("told")
def test_an_export_says_how_far_it_is(ridgeline: Run, tmp_path: Path) -> None:
    ways = ("--models", "gpt2", "--weights", "stored,fp8", "--kv", "stored", "--devices", "1,2", "--no-runs")
    ended = ridgeline("page", "export", "--out", tmp_path / "page.html", *ways, "--trace", "")
    assert ended.code == OK, ended.err
    first, *lines = ended.err.splitlines()
    assert first.startswith("computing 4 tables of predicted times: about ")
    assert [line.partition(",")[0] for line in lines[:4]] == [f"tables: {done} of 4" for done in range(1, 5)]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (9.4, "9 s"), (43.0, "45 s"), (91.0, "2 min"), (400.0, "7 min"), (9000.0, "2.5 h")],
)
def test_rough_times(seconds: float, said: str) -> None:
    assert rough_time(seconds) == said
