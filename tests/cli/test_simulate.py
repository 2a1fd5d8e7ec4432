"""`ridgeline simulate` as a user meets it: twelve lines, a file, requirements, and one line for each mistake."""

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from cli.running import FAULT, OK, USAGE, Run, assert_one_line
from ridgeline.cli.simulate_traffic import TrafficFlags
from ridgeline.cli.simulate_worker import AdviceWorker, Trial
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.adviser import TriedSetting

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
command = importlib.import_module("ridgeline.cli.simulate")
QUICK = ("--device", "h100-sxm", "--price-error", "0%")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Sixty requests in twelve seconds, one of which is longer than the model's context."""
    path = tmp_path / "conv.csv"
    rows = [f"2023-11-16 18:15:{at // 5:02}.{at % 5 * 2}000000,{100 + at},{5 + at % 7}\n" for at in range(60)]
    path.write_text(AZURE + "".join(rows[:30]) + "2023-11-16 18:15:06.0000000,90000,5\n" + "".join(rows[30:]))
    return str(path)


def test_the_answer_is_twelve_lines(ridgeline: Run, model: str, trace: str, tmp_path: Path) -> None:
    """Verdict first; a refused request is counted, not lost; the result is a file, the pictures a page."""
    result, page = tmp_path / "result.json", tmp_path / "report.html"
    files = ("--out", result, "--report", page)
    ended = ridgeline("simulate", model, *QUICK, "--trace", trace, "--slo", "ttft=1s", *files)
    assert ended.code == OK, ended.err
    assert "verdict  steady: 60 of 61 requests answered, 1 rejected" in ended.out
    heads = [line.split()[0] for line in ended.out.split("\n\n")[0].splitlines() if line[0].isalpha()]
    names = ("verdict", "TTFT", "TPOT", "ITL", "goodput", "load", "pages", "limit", "cost", "law", "trust", "advice")
    assert tuple(heads[-12:]) == names
    found = json.loads(result.read_text())
    assert (found["kind"], found["verdict"], found["inputs"]["device"]) == ("simulate", "steady", "h100-sxm")
    assert found["per_request"]["outcome"].count("rejected") == 1
    assert "90000 tokens" in "".join(found["per_request"]["reason"])
    assert "1 of 61 requests cannot run (for example: the prompt has 90000 tokens" in " ".join(ended.out.split())
    assert page.read_text().count("<svg") >= 8
    again = ridgeline("simulate", model, *QUICK, "--trace", trace, "--out", result)
    assert_one_line(again, USAGE, "exists")


def test_rope_admits_prompts_beyond_the_configs_context(ridgeline: Run, model: str) -> None:
    asked = ("simulate", model, *QUICK, "--rate", "5", "--requests", "4", "--input", "9k", "--output", "4")
    assert "the model's context is 8192" in " ".join(ridgeline(*asked).out.split())
    kept = ridgeline(*asked, "--rope", "yarn:2")
    assert kept.code == OK, kept.err
    assert "4 of 4 requests answered" in kept.out
    assert "with --rope yarn:2 on" in kept.out


def test_a_requirement_that_is_not_kept_fails(ridgeline: Run, model: str) -> None:
    asked = ("simulate", model, *QUICK, "--rate", "50", "--requests", "60", "--input", "64", "--output", "8")
    kept = ridgeline(*asked, "--require", "ttft_p50<1s", "--require", "requests_per_second>10", "--json")
    assert kept.code == OK, kept.err
    assert kept.json["figures"]["ttft_p50"]["high"] < 1
    broken = ridgeline(*asked, "--require", "ttft_p50<1us")
    assert broken.code == FAULT
    assert "ttft_p50<1us is not met: ttft_p50 is" in broken.err


def test_capacity_is_looked_for(ridgeline: Run, model: str, trace: str) -> None:
    """Of drawn requests, and of a trace that is hurried."""
    asked = ("--capacity", "--slo", "ttft=200ms", "--requests", "30", "--max-requests", "2", "--json")
    for more in (("--input", "64", "--output", "8"), ("--trace", trace)):
        found = ridgeline("simulate", model, *QUICK, *more, *asked).json["capacity"]
        assert 0 < found["rate"]["low"] <= found["rate"]["mid"] <= found["rate"]["high"]
        assert [level["rate"] for level in found["levels"] if level["good"]][-1] == found["rate"]["mid"]


def test_a_capacity_of_a_split_is_beside_the_same_cards_at_that_rate(ridgeline: Run, model: str) -> None:
    asked = ("--capacity", "--slo", "ttft=200ms", "--requests", "40", "--input", "64", "--output", "8", "--json")
    found = ridgeline("simulate", model, *QUICK, *asked, "--split", "1:1", "--link", "25Gb/s").json
    for each in found["together"]:
        assert each["metrics"]["offered_per_second"] == found["metrics"]["offered_per_second"]
    assert found["metrics"]["offered_per_second"] > 2, "the rate that was looked for is none of drawing's"


def test_a_pipe_is_read_once(ridgeline: Run, model: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert_one_line(ridgeline("simulate", model, *QUICK, "--trace", pipe), USAGE, "write it to a file first")


def test_a_price_is_of_its_card_alone(ridgeline: Run, model: str) -> None:
    asked = ("simulate", model, *QUICK, "--rate", "9", "--requests", "9", "--input", "64", "--output", "8", "--json")
    own, one, both = (
        ridgeline(*asked, *more).json["inputs"]["dollars_per_hour"]
        for more in ((), ("--price", "2.5"), ("--price", "2.5", "--also", "2xh100-sxm"))
    )
    assert one == 2.5
    assert both == pytest.approx(2.5 + 2 * own)


def test_a_capacity_of_conversations_counts_them(ridgeline: Run, model: str) -> None:
    asked = ("--capacity", "--slo", "ttft=200ms", "--requests", "10", "--turns", "3", "--input", "64", "--output", "8")
    told = ridgeline("simulate", model, *QUICK, *asked)
    assert told.code == OK, told.err
    assert "conversations per second, 99% of the requests within ttft 200 ms" in " ".join(told.out.split())


def test_a_rate_is_that_of_the_requests_that_are_kept(trace: str) -> None:
    """Of a trace that is thinned at the rate that --capacity asks for."""
    for keep in (1.0, 0.5):
        offered = TrafficFlags(trace=Path(trace), keep=keep, requests=20).at(10).offered()()
        moments = [offered.take().at for _ in range(20)]
        assert (len(moments) - 1) / (moments[-1] - moments[0]) * 1e9 == pytest.approx(10, rel=1e-6)


def test_replicas_are_dealt_to(ridgeline: Run, model: str) -> None:
    """Their figures and their dollars are of all of them."""
    asked = ("simulate", model, *QUICK, "--rate", "50", "--requests", "60", "--input", "64", "--output", "8")
    one = ridgeline(*asked, "--json").json
    two = ridgeline(*asked, "--replicas", "2", "--router", "round-robin", "--json").json
    assert [each["requests"] for each in two["replicas"]] == [30, 30]
    assert set(two["per_request"]["replica"]) == {0, 1}
    assert two["inputs"]["fleet"]["router"] == "round-robin"
    assert two["inputs"]["dollars_per_hour"] == 2 * one["inputs"]["dollars_per_hour"]
    assert two["law"]["load"] == pytest.approx(one["law"]["load"] / 2, rel=0.1)
    said = ridgeline(*asked, "--replicas", "2").out
    assert said.startswith("2 replicas of ")
    assert "by two (--router) with load reports up to 50 ms old" in " ".join(said.split())


def test_a_split_has_the_same_cards_beside_it(ridgeline: Run, model: str) -> None:
    asked = ("simulate", model, *QUICK, "--rate", "50", "--requests", "60", "--input", "64", "--output", "8")
    found = ridgeline(*asked, "--split", "1:2", "--link", "25Gb/s", "--json").json
    assert [each["limits"]["tokens"] for each in found["together"]] == [2048, 512]
    assert found["inputs"]["fleet"]["split"] == {"prompts": 1, "bandwidth": 25e9 / 8}
    assert (found["law"], len(found["replicas"])) == (None, 3)
    said = " ".join(ridgeline(*asked, "--split", "1:2", "--link", "25Gb/s").out.split())
    assert "1 for prefill, 2 for decode, over 3.12 GB/s" in said
    assert "Prefill and decode on the same GPUs" in said


def test_other_cards_and_replicas_that_come(ridgeline: Run, model: str) -> None:
    """What starts is read from storage first; all are paid for while they are there."""
    asked = ("simulate", model, *QUICK, "--rate", "200", "--requests", "400", "--input", "64", "--output", "8")
    two = ridgeline(*asked, "--also", "2xl40s", "--json").json
    assert two["inputs"]["fleet"]["others"] == ["l40s", "l40s"]
    assert sum(each["requests"] for each in two["replicas"]) == 400
    scale = ("--scale", "1:3", "--scale-at", "1", "--scale-every", "100ms", "--start-up", "200ms")
    scaled = ridgeline(*asked, *scale, "--json").json
    assert scaled["inputs"]["fleet"]["scaling"]["start_up"] > 200_000_000
    assert 1 <= scaled["metrics"]["replicas"] <= 3
    assert "1 to 3 replicas of" in ridgeline(*asked, *scale).out


def test_dollars_are_those_of_a_file(ridgeline: Run, model: str, tmp_path: Path) -> None:
    """And a price in it of what is no card is told."""
    prices = tmp_path / "prices.toml"
    prices.write_text(
        '[us]\ntitle = "Us"\ndate = "2026-11-20"\nsource = "bills"\ndollars = { "h100-sxm" = 7.2, "h10-sxm" = 1 }\n'
    )
    ended = ridgeline("simulate", model, *QUICK, "--rate", "50", "--requests", "30", "--prices", prices, "--json")
    assert ended.json["inputs"]["dollars_per_hour"] == 7.2
    assert "h10-sxm (did you mean" in ended.err


class Ready(AdviceWorker):
    """A second process that is waited for, so that a short search has its help too."""

    given = 0

    def __init__(self, make: Callable[[], Trial]) -> None:
        super().__init__(make)
        while not self._made.done():
            time.sleep(0.02)

    def submit(self, limits: Limits, memory: float) -> "Future[TriedSetting | None]":
        Ready.given += 1
        return super().submit(limits, memory)


def test_advice_of_two_processes_is_that_of_one(ridgeline: Run, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte; and the second one is gone, though it may have been in the midst of something."""
    asked = ("simulate", model, *QUICK, "--rate", "3000", "--requests", "100", "--input", "600", "--output", "16")
    advised = (*asked, "--slo", "ttft=20ms,tpot=1ms", "--max-requests", "4", "--advise", "--json")
    one = ridgeline(*advised)
    assert len(json.loads(one.out)["advised"]["options"]) > 3
    monkeypatch.setattr(command, "cores", lambda: 2)
    monkeypatch.setattr(command, "AdviceWorker", Ready)
    monkeypatch.setattr(command, "_LONG", 0.0)
    two = ridgeline(*advised)
    assert two.out == one.out
    assert Ready.given
    assert not multiprocessing.active_children()


def test_where_nothing_can_be_answered(ridgeline: Run, model: str) -> None:
    """Every prompt is longer than the context: that is the answer, in all ways of asking, and no success."""
    slo = ("--slo", "ttft=1s")
    asked = ("simulate", model, *QUICK, "--input", "20k", "--requests", "25")
    for more in (("--rate", "9"), ("--rate", "9", *slo, "--advise"), ("--users", "3"), ("--capacity", *slo)):
        ended = ridgeline(*asked, *more)
        assert (ended.code, ended.err) == (FAULT, "")
        assert "nothing answered: 0 of" in ended.out
        assert "the model's context is 8192" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "9", "--max-batch-tokens", "1", "--requests", "9"),
        ("--rate", "9", "--max-batch-tokens", "3", "--max-requests", "1", "--requests", "9"),
        ("--rate", "99", "--pages", "3", "--page-size", "8", "--requests", "30", "--input", "uniform:1:30"),
        ("--rate", "5", "--arrival", "gamma", "--burstiness", "0.1", "--requests", "30", "--output", "1"),
        ("--rate", "50", "--profile", "spike:4:100ms:200ms", "--requests", "60", "--between-steps", "300us"),
        ("--users", "7", "--requests", "3"),
        ("--rate", "9", "--requests", "40", "--advise", "--divide", "2"),
        ("--users", "4", "--requests", "20", "--split", "2:1", "--link", "1GB/s", "--output", "3"),
        ("--users", "2", "--duration", "50ms", "--replicas", "5", "--router", "prefix"),
        ("--users", "2", "--trace", "TRACE", "--no-prefix-cache", "--chunk", "1"),
        ("--trace", "TRACE", "--keep", "0.5", "--speed", "9", "--context", "64"),
        (
            "--rate",
            "9",
            "--requests",
            "30",
            "--turns",
            "2",
            "--scale",
            "1:3",
            "--scale-at",
            "2",
            "--front",
            "1ms/request",
        ),
        ("--rate", "40", "--requests", "40", "--also", "2xl40s", "--router", "least", "--require", "goodput>0"),
        ("--users", "100", "--requests", "100", "--split", "1:2", "--link", "25Gb/s", "--router", "two"),
        ("--rate", "9", "--requests", "40", "--divide", "4", "--router", "least", "--signal-age", "10ms"),
    ],
)
def test_whatever_goes_together_is_answered(ridgeline: Run, model: str, trace: str, words: tuple[str, ...]) -> None:
    """At the edges of what may be asked too, in twelve lines and as data."""
    asked = ("simulate", model, *QUICK, *(trace if word == "TRACE" else word for word in words))
    lengths = () if "TRACE" in words or "--input" in words else ("--input", "20", "--exact")
    ended = ridgeline(*asked, *lengths, "--slo", "ttft=1s,tpot=50ms", "--json")
    assert ended.code in (OK, FAULT), ended.err
    assert ended.err == ""
    metrics = ended.json["metrics"]
    assert metrics["requests"] == metrics["ok"] + metrics["rejected"] > 0
    assert metrics["unfinished"] == 0


def test_equal_seeds_give_equal_bytes(ridgeline: Run, model: str) -> None:
    """In another process, whose hashes differ, too; and another seed other ones."""
    asked = (
        "simulate",
        model,
        *QUICK,
        "--users",
        "3",
        "--think",
        "20ms",
        "--requests",
        "40",
        "--output",
        "16",
        "--json",
    )
    here = ridgeline(*asked, "--seed", "4").out
    command = [sys.executable, "-m", "ridgeline", *asked, "--seed", "4"]
    there = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "7"}
    )
    assert there.stdout == here
    assert ridgeline(*asked, "--seed", "5").out != here


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "the traffic is missing: give"),
        (("--rate", "5", "--users", "3"), "give one"),
        (("--rate", "0"), "--rate is 0.0; it must be a number from 1e-09 to 1e+09"),
        (("--rate", "1e-300"), "--rate is 1e-300; it must be a number from"),
        (("--rate", "1e300"), "--rate is 1e+300; it must be a number from"),
        (("--rate", "5", "--arrival", "gamma", "--burstiness", "1e308"), "--burstiness is 1e+308; it must be"),
        (("--users", "1000000000"), "--users is 1000000000; it must be from 1 to 1,000,000"),
        (
            ("--rate", "1e9", "--duration", "1s"),
            "--rate 1e+09 makes 1,000,000,000 requests, but at most 10,000,000 can be simulated",
        ),
        (("--rate", "5", "--duration", "366d"), "--duration is '366d'; write a time above 0 with its unit"),
        (("--users", "2", "--think", "300d"), "--think is '300d'; write a time"),
        (("--users", "2", "--think", "9" * 400 + "s"), "write a time above 0 with its unit, like 500ms or 2s"),
        (("--users", "2", "--think", "8760h", "--requests", "999"), "a century; give a shorter --think"),
        (
            (
                "--users",
                "2",
                "--turns",
                "999",
                "--think",
                "8760h",
                "--requests",
                "2",
                "--context",
                "8k",
                "--input",
                "1",
                "--output",
                "1",
                "--exact",
            ),
            "a century; give a shorter --think",
        ),
        (("--rate", "5", "--profile", f"day:0.2:{'9' * 400}s"), "--profile is"),
        (("--rate", "5", "--input", "uniform:5:9", "--output", "uniform:5:9", "--exact"), "--exact needs a fixed"),
        (("--trace", "TRACE", "--exact"), "--exact does not apply to a trace"),
        (("--rate", "5", "--pages", "99", "--memory-utilization", "0.5"), "leave one of them out"),
        (("--rate", "5", "--pages", "100000000000"), "but NVIDIA H100 SXM 80GB has"),
        (("--users", "5", "--arrival", "gamma"), "--arrival needs --rate"),
        (("--rate", "5", "--burstiness", "0.5"), "--burstiness is the shape of --arrival gamma"),
        (("--trace", "TRACE", "--output", "5"), "--output does not apply to a trace"),
        (("--rate", "5", "--replicas", "2", "--signal-age", "soon"), "--signal-age is 'soon'; write a time"),
        (("--rate", "5", "--price", "2", "--seller", "unknown"), "--price replaces the prices of sellers"),
        (("--rate", "5", "--split", "1:1", "--link", "1GB/s", "--router", "least"), "need --replicas 2 or more"),
        (("--rate", "5", "--replicas", "2", "--router", "random", "--signal-age", "1s"), "leave out --signal-age"),
        (("--rate", "5", "--split", "1:1", "--link", "0.0001MB/s"), "write 1MB/s or more"),
        (("--rate", "5", "--scale", "1:4", "--scale-at", "4", "--scale-every", "1us"), "give 1ms or more"),
        (("--rate", "5", "--require", "goodput>12%"), "goodput is not a share"),
        (("--rate", "1e-9", "--requests", "99"), "requests would arrive over more than a century"),
        (("--rate", "5", "--think", "1s"), "--think needs --users"),
        (
            ("--rate", "5", "--pages", "99", "--also", "l40s"),
            "--pages is for the devices of one server, but --also adds others",
        ),
        (("--rate", "5", "--pages", "99", "--slo", "ttft=1s", "--divide", "2"), "but --divide adds others"),
        (("--rate", "5", "--turns", "2", "--slo", "ttft=1s", "--advise"), "leave out --turns"),
        (("--capacity", "--slo", "ttft=1s", "--requests", "0"), "--requests is 0"),
        (("--capacity", "--slo", "chat:ttft=1s", "--requests", "9"), "--slo names class 'chat'"),
        (("--rate", "5", "--speed", "2"), "--speed applies only to a --trace"),
        (("--users", "0"), "--users is 0"),
        (("--trace", "TRACE", "--input", "5"), "--input does not apply to a trace"),
        (("--trace", "TRACE", "--keep", "1.5"), "--keep is 1.5"),
        (("--trace", "nowhere.csv"), "cannot be read"),
        (("--rate", "5", "--context", "1M"), "the model's context is 8,192"),
        (("--rate", "5", "--rope", "yarn:1"), "the factor must be a finite number above 1"),
        (("--rate", "5", "--pages", "0"), "--pages is 0"),
        (("--rate", "5", "--price-error", "12"), "write a share"),
        (("--rate", "5", "--require", "speed>1"), "names the unknown figure 'speed'"),
        (("--rate", "5", "--slo", "ttft=5"), "a time without a unit"),
        (("--rate", "5", "--replicas", "0"), "--replicas is 0"),
        (("--rate", "5", "--replicas", "0", "--also", "l40s"), "--replicas is 0"),
        (("--rate", "5", "--replicas", "-1", "--also", "3xl40s"), "--replicas is -1"),
        (("--rate", "5", "--split", "600:600", "--link", "25Gb/s"), "1,200 replicas in total are too many"),
        (("--rate", "5", "--router", "least"), "need --replicas 2 or more"),
        (("--rate", "5", "--replicas", "2", "--router", "best"), "--router is 'best'; it must be one of two, least"),
        (("--rate", "5", "--users", "2", "--advise", "--slo", "ttft=1s"), "--advise compares"),
        (("--rate", "5", "--divide", "2"), "--divide compares"),
        (("--rate", "5", "--slo", "ttft=1s", "--divide", "65"), "--divide is 65; it must be from 1 to 64"),
        (("--users", "5", "--slo", "ttft=1s", "--divide", "2"), "give --rate or --trace in place of --users"),
        (("--capacity", "--slo", "ttft=1s", "--divide", "2"), "leave out --capacity"),
        (("--capacity", "--slo", "ttft=1s", "--advise"), "leave out --capacity"),
        (("--rate", "5", "--advise"), "requests: give --slo, like ttft=1s,tpot=50ms"),
        (("--rate", "5", "--slo", "ttft=1s", "--divide", "2", "--also", "l40s"), "--divide needs equal replicas"),
        (("--capacity",), "give --slo"),
        (("--capacity", "--slo", "ttft=1s", "--rate", "5"), "leave out --rate and --users"),
        (("--capacity", "--slo", "ttft=1s", "--duration", "5s"), "give --requests"),
        (("--capacity", "--slo", "ttft=1s", "--trace", "TRACE", "--speed", "2"), "leave out --speed and --profile"),
        (("--rate", "5", "--max-requests", "0"), "limit of requests is 0"),
        (("--rate", "5", "--split", "1:1"), "--split transfers the KV cache over --link"),
        (("--rate", "5", "--link", "25Gb/s"), "give both or neither"),
        (("--rate", "5", "--split", "1", "--link", "25Gb/s"), "write two numbers of replicas"),
        (("--rate", "5", "--split", "0:1", "--link", "25Gb/s"), "--split is '0:1'"),
        (("--rate", "5", "--split", "1:1", "--link", "25"), "--link is '25'; write 1MB/s or more"),
        (("--rate", "5", "--split", "1:1", "--link", "0GB/s"), "--link is '0GB/s'"),
        (("--rate", "5", "--split", "1:1", "--link", "1GB/s", "--replicas", "3"), "leave out --replicas"),
        (("--rate", "5", "--split", "1:1", "--link", "1GB/s", "--also", "l40s"), "leave one of them out"),
        (("--rate", "5", "--also", "no-such-card"), "no-such-card"),
        (("--rate", "5", "--also", "0xl40s"), "--also is '0xl40s'; write devices"),
        (("--rate", "5", "--scale", "1:4"), "--scale needs --scale-at"),
        (("--rate", "5", "--scale-at", "4"), "--scale-at applies only with --scale; give both"),
        (("--rate", "5", "--scale", "4:1", "--scale-at", "4"), "write the smaller number first"),
        (("--rate", "5", "--scale", "1:9999", "--scale-at", "4"), "--scale is '1:9999'"),
        (("--rate", "5", "--scale", "1:4", "--scale-at", "4", "--replicas", "2"), "leave out --replicas and --also"),
        (("--rate", "5", "--scale", "1:4", "--scale-at", "4", "--router", "prefix"), "give another"),
        (("--rate", "5", "--scale", "1:4", "--scale-at", "4", "--storage", "fast"), "--storage is 'fast'"),
        (("--rate", "5", "--scale", "1:4", "--scale-at", "4", "--start-up", "5"), "--start-up is '5'"),
        (("--rate", "5", "--between-steps", "5"), "--between-steps has '5'; write it like 110us+20us/sequence"),
        (("--rate", "5", "--between-steps", "5us/token"), "--between-steps has '5us/token'; write it like"),
        (("--rate", "5", "--front", "5us"), "--front has '5us'; write it like 0.8ms/request+190us/step"),
        (("--rate", "5", "--front", "5us/step+6us/step"), "--front has step twice"),
        (("--rate", "5", "--profile", "wave"), "--profile is 'wave'; write ramp:4:60s"),
        (("--users", "5", "--profile", "ramp:4:60s"), "--profile sets how --rate changes"),
        (
            ("--rate", "5", "--slo", "ttft=1s", "--advise", "--scale", "1:2", "--scale-at", "4"),
            "leave out --split, --scale",
        ),
    ],
)
def test_mistakes_are_one_line(ridgeline: Run, model: str, trace: str, words: tuple[str, ...], says: str) -> None:
    given = [trace if word == "TRACE" else word for word in words]
    assert_one_line(ridgeline("simulate", model, *QUICK[:2], *given), USAGE, says)


def test_a_broken_trace_is_told_by_its_line(ridgeline: Run, model: str, tmp_path: Path) -> None:
    """Wherever in the file: what was simulated up to there is nothing that could be trusted."""
    path = tmp_path / "broken.csv"
    path.write_text(AZURE + "2023-11-16 18:15:46,374,44\n" * 20 + "2023-11-16 18:15:45,374,44\n")
    ended = ridgeline("simulate", model, *QUICK, "--trace", path)
    assert_one_line(ended, USAGE, "line 22: its time is before that of the previous request")


def test_what_continues_no_text_is_refused(ridgeline: Run, model: str) -> None:
    assert_one_line(ridgeline("simulate", "FLUX.1-schnell", *QUICK, "--rate", "1"), USAGE, "is a diffusion pipeline")
    assert_one_line(ridgeline("simulate", "translate", *QUICK, "--rate", "1"), USAGE, "models that continue a text")
    assert_one_line(ridgeline("simulate", model, "--rate", "1"), USAGE, "--device is missing")
    assert_one_line(
        ridgeline("simulate", "llama-3.1-70b", "--device", "rtx-4090", "--rate", "1"), USAGE, "do not fit", "GiB"
    )


def recorded(folder: Path) -> Path:
    lines: list[dict[str, object]] = [{"kind": "ridgeline-record", "format": 1, "page_size": 16}]
    for place in range(60):
        own = {"class": "batch"} if place % 4 == 0 else {"class": "chat"}
        lines.append({"kind": "request", "at": place / 5, "input": 50, "output": 9, "pages": [], **own})
    path = folder / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_classes_of_a_trace_are_held_to_their_own(ridgeline: Run, model: str, tmp_path: Path) -> None:
    ask = partial(ridgeline, "simulate", model, *QUICK, "--trace", str(recorded(tmp_path)))
    ended = ask("--slo", "chat:ttft=1s", "--slo", "batch:e2e=0.01us")
    assert ended.code == OK, ended.err
    assert "Request classes" in ended.out
    assert "missed" in ended.out
    slos = ("--slo", "chat:ttft=1s", "--slo", "batch:e2e=10s")
    kept_both = ask(*slos, "--require", "chat:good_share>50%", "--require", "batch:e2e_p50<1s", "--json")
    assert kept_both.code == FAULT, "of 15 requests there is no median"
    assert "batch:e2e_p50<1s is not met" in kept_both.out + kept_both.err
    assert "chat:good_share" not in kept_both.err
    for wrong, says in (
        (
            ("--slo", "vip:ttft=1s"),
            "names class 'vip', which no request of this traffic has; its classes are batch, chat",
        ),
        (("--slo", "ttft=1s", "--slo", "tpot=1s"), "given twice without a class"),
        (("--slo", "a:ttft=1s", "--slo", "a:tpot=1s"), "given twice for a"),
        (("--slo", ":ttft=1s"), "write the class before the colon"),
        (("--slo", "batch:"), "--slo has ''"),
        (("--slo", "batch:ttft=5"), "a time without a unit"),
        (("--require", "batch:busy>1%"), "--require names the unknown figure 'busy'; figures are ttft_p50"),
        (("--require", "batch:ttft_p50<9"), "give a time with its unit"),
        (("--turns", "3"), "--turns is for generated conversations"),
        (("--turns", "0"), "--turns is 0; it must be from 1 to"),
    ):
        assert_one_line(ask(*wrong), USAGE, says)
