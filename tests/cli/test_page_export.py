"""`ridgeline page export`: the file holds what `page tables` and `page devices` print, and stands over no other."""

import json
from pathlib import Path

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from page.test_export import blocks_of


def test_a_file_holds_tables_cards_and_what_there_is(ridgeline: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    ways = (
        "--models",
        "gpt2, Qwen/Qwen3-0.6B",
        "--weights",
        "stored,fp8",
        "--kv",
        "stored",
        "--devices",
        "1,8",
        "--no-runs",
        "--trace",
        "",
    )
    done = ridgeline("page", "export", "--out", out, *ways)
    assert done.code == OK, done.err
    blocks = blocks_of(out.read_text("utf-8"))
    assert blocks["cards.json"] == json.loads(ridgeline("page", "devices").out)
    models = blocks["models.json"]
    assert isinstance(models, dict)
    assert [each["name"] for each in models["models"]] == ["gpt2", "qwen3-0.6b"]
    tables = [f"tables/gpt2.json{way}" for way in ("", "?weights=fp8")]
    tables += [f"tables/qwen3-0.6b.json{way}" for way in ("", "?devices=8", "?weights=fp8", "?weights=fp8&devices=8")]
    assert models["tables"] == tables == list(blocks)[2:]
    assert "6 tables of 2 models" in done.err
    told = ridgeline("page", "tables", "qwen3-0.6b", "--weights", "fp8", "--devices", "8")
    assert blocks[tables[-1]] == json.loads(told.out)


def test_a_file_that_is_there_stays_unless_told(ridgeline: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    quick = ("--models", "gpt2", "--weights", "stored", "--kv", "stored", "--devices", "1", "--trace", "")
    assert_one_line(ridgeline("page", "export", "--out", out, *quick), USAGE, "exists already", "--force")
    assert out.read_text() == "mine"
    assert ridgeline("page", "export", "--out", out, "--force", "--no-runs", *quick).code == OK
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_runs_are_recorded(ridgeline: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    quick = ("--models", "gpt2", "--weights", "stored", "--kv", "stored", "--devices", "1", "--trace", "")
    assert ridgeline("page", "export", "--out", out, *quick).code == OK
    runs = blocks_of(out.read_text("utf-8"))["runs.json"]
    assert isinstance(runs, dict)
    assert [run["id"] for run in runs["runs"]] == ["batching", "chunked", "preempted", "shared"]
    assert all(run["frames"][-1]["priced"]["predicted"] > 0 for run in runs["runs"])


def test_a_file_holds_the_requests_that_it_plays(ridgeline: Run, tmp_path: Path) -> None:
    """One that is recorded here, and one that a server gave."""
    served = tmp_path / "served.json"
    served.write_text(json.dumps({"version": 1, "steps": [], "text": "</script>"}))
    out, quick = (
        tmp_path / "page.html",
        ("--models", "gpt2", "--weights", "stored", "--kv", "stored", "--devices", "1", "--no-runs"),
    )
    done = ridgeline("page", "export", "--out", out, *quick, "--trace", "Once upon a", "--trace", served)
    assert done.code == OK, done.err
    assert "2 recorded requests" in done.err
    recordings = blocks_of(out.read_text("utf-8"))["recordings.json"]
    assert isinstance(recordings, list)
    assert [each["text"] for each in recordings] == ["Once upon a", "</script>"]
    assert [step["name"] for step in recordings[0]["steps"]] == ["prefill", "decode"]
    served.write_text("{}")
    again = ridgeline("page", "export", "--out", out, "--force", *quick, "--trace", served)
    assert_one_line(again, USAGE, "has no recording of version 1")
    long = ridgeline("page", "export", "--out", out, "--force", *quick, "--trace", "a bear " * 64)
    assert_one_line(long, USAGE, "give 1 to 64")


def test_a_file_holds_the_runs_under_load_that_it_shows(ridgeline: Run, tmp_path: Path) -> None:
    run, other = tmp_path / "run.json", tmp_path / "other.json"
    run.write_text(json.dumps({"format": 1, "metrics": {}, "per_request": {"outcome": []}}))
    other.write_text('{"format": 2, "per_request": {}}')
    out = tmp_path / "page.html"
    quick = ("--models", "gpt2", "--weights", "stored", "--kv", "stored", "--devices", "1", "--no-runs", "--trace", "")
    done = ridgeline("page", "export", "--out", out, *quick, "--traffic", run)
    assert done.code == OK, done.err
    assert blocks_of(out.read_text("utf-8"))["traffic.json"] == [
        {"name": "run.json", "result": json.loads(run.read_text())}
    ]
    command = ("page", "export", "--out", out, "--force", *quick)
    assert_one_line(ridgeline(*command, "--traffic", other), USAGE, "other.json has no run under load")
    assert_one_line(ridgeline(*command, *(("--traffic", run) * 3)), USAGE, "at most 2 runs can be compared")


def test_what_cannot_be_exported_is_refused_in_a_line(ridgeline: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert_one_line(ridgeline("page", "export", "--out", out, "--models", "nowhere"), REFUSED, "no such model")
    assert_one_line(
        ridgeline("page", "export", "--out", out, "--models", "bert-base-uncased"), USAGE, "does not generate text"
    )
    assert_one_line(ridgeline("page", "export", "--out", out, "--models", ","), USAGE, "--models is empty")
    assert_one_line(
        ridgeline("page", "export", "--out", out, "--devices", "1,x"), USAGE, "devices must be a number from 1 to 8"
    )
    gpt2 = ("--models", "gpt2", "--devices", "8")
    assert_one_line(ridgeline("page", "export", "--out", out, *gpt2), USAGE, "do not divide over 8")
    assert not out.exists()
