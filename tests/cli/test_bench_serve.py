"""`ridgeline bench serve` against a small server in this process: what it prints, writes and refuses."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.small_server import SmallServer, running
from cli.running import Run, assert_one_line
from ridgeline.cli import bench_serve as command
from ridgeline.cli.bench_serve import extent_of_level
from ridgeline.cli.process_setup import FAILED, UNREACHABLE, USAGE
from ridgeline.insight.bench.job import LoadPattern
from ridgeline.insight.traffic.request_record import COLUMNS

FEW = ("--requests", "6", "--output", "3", "--input", "20", "--warmup", "1")


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with running(SmallServer()) as up:
        yield up


def test_a_run_is_told_and_written(ridgeline: Run, server: SmallServer, tmp_path: Path) -> None:
    """Check the text, which has answers first and no definitions, the CSV with a line per request, and the page."""
    table, page = tmp_path / "requests.csv", tmp_path / "report.html"
    ended = ridgeline(
        "bench", "serve", server.url, "--concurrency", "2", *FEW, "--slo", "ttft=9s", "--csv", table, "--report", page
    )
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == f"small at {server.url}: closed loop of 2 users"
    assert lines[2].startswith("- 6 of 6 requests answered")
    assert "Goodput" in ended.out
    assert "c1 - a: time to first token" not in ended.out
    assert "c1 - a: time to first token" in page.read_text()
    rows = list(csv.DictReader(table.open()))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["outcome"], row["input_tokens"], row["output_tokens"]) for row in rows] == [("ok", "20", "3")] * 6
    assert page.read_text().count("<svg") >= 2


def test_the_object_has_all_that_was_seen(ridgeline: Run, server: SmallServer) -> None:
    """And what was asked for: 18 words and the two tokens that this server adds are the 20 that were."""
    key = ("--api-key", "s3cret")
    ended = ridgeline("bench", "serve", f"{server.url}/v1/", "--rate", "99", *FEW, "--json", "--processes", "1", *key)
    found = json.loads(ended.out)
    assert found["inputs"]["data"]["wording"] == {"fixed": 2.0, "per_word": 1.0, "measured": True}
    assert (found["metrics"]["requests"], found["metrics"]["ok"], found["metrics"]["output_tokens"]) == (6, 6, 18)
    assert {len(column) for column in found["per_request"].values()} == {6}
    assert set(found["per_request"]["input_tokens"]) == {20}
    assert found["definitions"]["TTFT"].startswith("c1 - a")
    assert found["predicted"] is None
    assert "s3cret" not in ended.out + ended.err
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer s3cret"}
    assert len(server.seen) == 2 + 1 + 6  # two that count words, one to warm up


def test_a_sweep_is_told_rate_by_rate(ridgeline: Run) -> None:
    """A server that turns everybody away after a while is good at no rate that comes then."""
    with running(SmallServer(refuse=429, before_refusing=40)) as server:
        ended = ridgeline(
            "bench", "serve", server.url, "--sweep", "--rate", "100", "--arrival", "constant", "--output", "2",
            "--requests", "60", "--input", "20", "--json", "--processes", "1", "--warmup", "0",
        )  # fmt: skip
    (level,) = json.loads(ended.out)["sweep"]["levels"]
    assert (level["rate"], level["metrics"]["ok"], level["metrics"]["rejected"]) == (100, 38, 22)
    assert ended.code == (FAILED if "the load generator" in level["fault"] else 0), ended.err
    assert level["fault"]
    assert json.loads(ended.out)["sweep"]["knee"] is None


def test_one_of_ours_is_held_against_its_price(ridgeline: Run) -> None:
    """Which needs no flag: it says whose it is, its model can be read here, and it tells of its steps."""
    with running(SmallServer(owner="ridgeline")) as server:
        ended = ridgeline("bench", "serve", server.url, *FEW, "--json", "--processes", "1", "--predict-on", "h100-sxm")
    found = json.loads(ended.out)
    assert found["inputs"]["ignore_eos"] is True
    assert server.seen[-1]["ignore_eos"] is True
    steps = found["steps"]["server"]["decode"]
    assert steps == {"count": 6, "measured": pytest.approx(0.12), "priced": 6, "predicted": pytest.approx(0.06)}
    predicted = found["predicted"]
    assert (predicted["model"], predicted["input"], predicted["output"]) == ("tales", 20, 3)
    one, two, *_ = (point["tokens_per_second"] for point in predicted["points"])
    assert one < two < 2 * one


def test_of_an_uncalibrated_server_nothing_is_probed(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so instead: to probe a machine beside its server measures neither."""
    monkeypatch.setattr("ridgeline.cli.bench_serve.device_named", lambda name: pytest.fail("the machine was probed"))
    with running(SmallServer(owner="ridgeline")) as server:
        ended = ridgeline("bench", "serve", server.url, *FEW, "--processes", "1")
    assert "the server's device is not calibrated here" in ended.out


def test_no_two_runs_ask_the_same_unless_told(ridgeline: Run, server: SmallServer) -> None:
    """A server would have kept the prompts of the run before. The seed is named, and gives them again."""
    few = ("bench", "serve", server.url, "--requests", "2", "--output", "2", "--input", "20", "--warmup", "0", "--json")
    first, second = (json.loads(ridgeline(*few).out)["inputs"]["data"]["seed"] for _ in range(2))
    again = json.loads(ridgeline(*few, "--seed", first).out)["inputs"]["data"]["seed"]
    prompts = [fields["prompt"] for fields in server.seen if fields["max_tokens"] == 2]
    runs = [frozenset(prompts[place + 2 : place + 4]) for place in (0, 4, 8)]
    assert first == again != second
    assert runs[0] == runs[2] != runs[1]
    assert f"{first}; --seed {first} repeats the same requests" in ridgeline(*few[:-1], "--seed", first).out


@pytest.mark.parametrize(
    ("load", "extent"),
    [
        (LoadPattern(seconds=4.0), {"requests": 20, "seconds": None}),
        (LoadPattern(seconds=60.0), {}),
        (LoadPattern(requests=30), {}),
        (LoadPattern(), {"requests": 50}),
    ],
)
def test_a_rate_is_tried_for_as_long_as_judging_it_takes(load: LoadPattern, extent: dict[str, Any]) -> None:
    assert extent_of_level(load, 0.7) == extent


@pytest.mark.parametrize(
    ("context", "asked", "lengths"),
    [
        (2048, (), ("512", "128")),
        (512, (), ("256", "128")),
        (300, (), ("150", "75")),
        (512, ("--input", "400"), ("400", "56")),
        (512, ("--output", "200"), ("156", "200")),
        (512, ("--prefix", "112", "--turns", "2"), ("100", "50")),
        (512, ("--output", "uniform:50:100"), ("206", "uniform:50:100")),
    ],
)
def test_lengths_that_nobody_asked_for_fit_the_context(
    ridgeline: Run, context: int, asked: tuple[str, ...], lengths: tuple[str, str]
) -> None:
    """Those that were asked for stay; what was made to fit is said."""
    with running(SmallServer(context=context)) as server:
        few = ("bench", "serve", server.url, "--requests", "2", "--warmup", "1", "--processes", "1", *asked)
        found = json.loads(ridgeline(*few, "--json").out)
    data = found["inputs"]["data"]
    assert (data["input"], data["output"]) == lengths
    assert found["metrics"]["ok"] == 2 * data["turns"]
    assert found["fitted"] == (context != 2048)


def test_shorter_lengths_are_said_in_a_line(ridgeline: Run) -> None:
    few = ("--requests", "2", "--warmup", "0", "--processes", "1")
    with running(SmallServer(context=512)) as server:
        said = ridgeline("bench", "serve", server.url, *few).out
    text = " ".join(said.split())
    assert (
        "Prompts have 256 tokens and responses 128, because the default lengths do not fit the model's context of 512"
        in text
    )


def test_requests_beyond_the_context_are_told_the_cure(ridgeline: Run, server: SmallServer) -> None:
    """Before the run, where it is warmed up; in the report, where it is not; at a sweep's first request."""
    long, cure = ("--input", "300", "--output", "9"), "give shorter --input and --output"
    assert_one_line(ridgeline("bench", "serve", server.url, *long), USAGE, "maximum context length is 256", cure)
    cold = ("bench", "serve", server.url, *long, "--requests", "20", "--warmup", "0", "--processes", "1")
    ended = ridgeline(*cold)
    assert ended.code == FAILED
    assert cure in " ".join(ended.out.split())
    assert_one_line(ridgeline(*cold, "--sweep"), USAGE, cure)


def test_chat_files_and_traces(ridgeline: Run, server: SmallServer, tmp_path: Path) -> None:
    prompts, trace = tmp_path / "p.jsonl", tmp_path / "t.csv"
    prompts.write_text('{"prompt": "one two", "max_tokens": 2}\n')
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,9,2\n2023-11-16 18:15:46,8,3\n")
    few = ("--prompts", prompts, "--requests", "2", "--json")
    ended = ridgeline("bench", "serve", server.url, "--endpoint", "chat", *few)
    assert ended.code == 0, ended.err
    assert server.seen[-1]["messages"] == [{"role": "user", "content": "one two"}]
    assert server.seen[-1]["max_tokens"] == 2
    found = json.loads(ridgeline("bench", "serve", server.url, "--trace", trace, "--warmup", "0", "--json").out)
    assert sorted(found["per_request"]["input_tokens"]) == [8, 9]
    assert sorted(found["per_request"]["output_tokens"]) == [2, 3]


def test_processes_share_the_work(ridgeline: Run, server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are asked for, on a machine with one core too."""
    monkeypatch.setattr(command, "cores", lambda: 1)
    ended = ridgeline("bench", "serve", server.url, "--rate", "100", *FEW, "--processes", "2", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["metrics"]["ok"] == 6
    assert sorted(found["per_request"]["index"]) == list(range(6))
    assert set(found["per_request"]["process"]) == {0, 1}


def test_nobody_there_is_exit_code_4(ridgeline: Run) -> None:
    assert_one_line(ridgeline("bench", "serve", "http://127.0.0.1:1"), UNREACHABLE, "no server responds", "127.0.0.1:1")


def test_a_server_that_wants_a_key_says_so(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(SmallServer(key="k")) as server:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        assert_one_line(ridgeline("bench", "serve", server.url), USAGE, "needs an API key", "--api-key")
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        assert ridgeline("bench", "serve", server.url, *FEW).code == 0
        assert_one_line(ridgeline("bench", "serve", server.url, "--model", "large"), USAGE, "no model 'large'", "small")


def test_a_server_that_answers_nothing(ridgeline: Run) -> None:
    """Its own words, before a hundred requests are sent; all turned away is a result, and exit code 1."""
    with running(SmallServer(refuse=400)) as server:
        assert_one_line(ridgeline("bench", "serve", server.url), USAGE, "HTTP 400: not now")
        assert len(server.seen) == 1
    with running(SmallServer(refuse=429)) as server:
        ended = ridgeline("bench", "serve", server.url, *FEW)
        assert ended.code == FAILED
        assert "0 of 6 requests answered, 6 rejected" in ended.out
        assert "HTTP 429: not now" in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "5", "--concurrency", "2"], "give one"),
        (["--rate", "0"], "--rate is 0.0"),
        (["--rate", "nan"], "--rate is nan"),
        (["--concurrency", "0"], "--concurrency is 0"),
        (["--concurrency", "2", "--max-concurrency", "1"], "--max-concurrency"),
        (["--requests", "0"], "--requests is 0"),
        (["--processes", "257"], "--processes is 257; it must be at most 256"),
        (["--sweep", "--requests", "3"], "--requests is 3; a sweep needs at least 20 to judge each rate"),
        (["--input", "none"], "--input is 'none'; write 512"),
        (["--output", "0"], "--output is '0'"),
        (["--slo", "ttft=fast"], "--slo has 'ttft=fast'"),
        (["--duration", "60"], "--duration is '60'"),
        (["--token-ids", "100", "--endpoint", "chat"], "--token-ids"),
        (["--extra-body", "[1]"], "--extra-body"),
        (["--trace", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["--csv", "a", "--report", "a"], "both name"),
        (["--report", "no/where.html"], "no folder"),
        (["--max-errors", "2"], "--max-errors"),
        (["--arrival", "constant"], "--arrival applies only to an open loop"),
        (["--rate", "2", "--burstiness", "0.5"], "--burstiness is the shape of --arrival gamma"),
        (["--rate", "2", "--speed", "3"], "--speed applies only to a --trace"),
        (["--prefixes", "2"], "--prefixes is the number of different prefixes of --prefix tokens"),
        (["--think", "2s"], "--think is the time between --turns"),
        (["--prompts", "p.jsonl", "--input", "20"], "--input is for prompts of random words"),
        (["--trace", "t.csv", "--output", "20"], "--output does not apply to a trace"),
    ],
)
def test_what_goes_together_with_nothing_is_refused_unasked(ridgeline: Run, arguments: list[str], says: str) -> None:
    assert_one_line(ridgeline("bench", "serve", "127.0.0.1:1", *arguments), USAGE, says)


@pytest.mark.parametrize("option", ["--csv", "--report"])
def test_49_a_file_that_exists_is_written_over_by_force_only(
    ridgeline: Run, server: SmallServer, tmp_path: Path, option: str
) -> None:
    """Links too, wherever they lead; refused before the first request."""
    kept, link, dangling = tmp_path / "kept", tmp_path / "link", tmp_path / "dangling"
    kept.write_text("mine")
    link.symlink_to(kept)
    dangling.symlink_to(tmp_path / "nowhere")
    for path in (kept, link, dangling):
        assert_one_line(ridgeline("bench", "serve", "127.0.0.1:1", option, path), USAGE, "--force")
    assert kept.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert ridgeline("bench", "serve", server.url, *FEW, option, kept, "--force").code == 0
    assert kept.read_text() != "mine"


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://a:b", "http://x:99999999"])
def test_a_url_that_is_none_is_refused(ridgeline: Run, url: str) -> None:
    assert_one_line(ridgeline("bench", "serve", url), USAGE, "not the URL of a server")


def test_the_help_teaches_what_words_mean(ridgeline: Run) -> None:
    text = " ".join(ridgeline("bench", "serve", "--help").out.split())
    for word in ("TTFT:", "TPOT:", "ITL:", "E2E:", "Goodput:", "uniform:50:200", "Open loop"):
        assert word in text, word
