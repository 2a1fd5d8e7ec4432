"""`ridgeline run MODEL -i IN -o OUT`: files in, files out, and going on after an interruption."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.running import OK, USAGE, Run, assert_one_line
from ridgeline.cli.batch_options import BatchFlags
from ridgeline.cli.batch_run import EarlierOutput, read_earlier


def request(custom_id: str) -> str:
    body = {"model": "mine", "prompt": f"Once {custom_id}", "max_tokens": 3, "temperature": 0}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def records(path: Path) -> dict[Any, Any]:
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({each["custom_id"] for each in read}) == len(read)
    return {each["custom_id"]: each for each in read}


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join([request("a"), request("b"), "nonsense", "", request("c")]))  # no end of the last line
    return path


def test_a_run_that_was_interrupted_goes_on(ridgeline: Run, requests: Path, tmp_path: Path) -> None:
    """The line that was being written is not there afterwards, those before it are as they were; nothing is twice."""
    out = tmp_path / "out.jsonl"
    args = ("run", "tales", "--served-model-name", "mine", "-i", requests, "-o", out)
    first = ridgeline(*args)
    assert first.code == OK, first.err
    assert first.out == ""
    assert "3 answered, 1 line is not a request; " in first.err
    assert "9 output tokens in" in first.err
    whole = records(out)
    assert set(whole) == {"a", "b", "c", None}
    assert whole[None]["error"]["line"] == 3
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    again = ridgeline(*args)
    assert again.code == OK, again.err
    assert "2 already in the output file" in again.err
    assert out.read_bytes().startswith(b"".join(lines[:2]))
    resumed = records(out)
    assert set(resumed) == set(whole)
    for name in "abc":
        choices = [each[name]["response"]["body"]["choices"] for each in (whole, resumed)]
        assert choices[0] == choices[1]
    assert "0 answered, 4 already in the output file" in ridgeline(*args).err
    assert records(out) == resumed


def test_from_standard_input_to_standard_output(ridgeline: Run) -> None:
    ended = ridgeline("run", "tales", "--input-file", "-", stdin=request("x").replace('"mine"', '"tales"') + "\n")
    assert ended.json["custom_id"] == "x"
    assert ended.json["response"]["status_code"] == 200
    assert "1 answered; " in ended.err


def test_a_pipe_is_answered_as_it_comes(ridgeline: Run, tmp_path: Path) -> None:
    """The second line is written when the first has its answer; the last has no end."""
    out = tmp_path / "out.jsonl"
    reading, writing = os.pipe()
    answered: list[bool] = []

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for name, end in (("a", "\n"), ("b", "\n"), ("c", "")):
                pipe.write((request(name) + end).encode())
                if end:
                    answered.append(within(60, lambda name=name: out.exists() and name in records(out)))

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(reading, encoding="utf-8") as stdin:
        ended = ridgeline("run", "tales", "--served-model-name", "mine", "-i", "-", "-o", out, stdin=stdin)
    writer.join()
    assert ended.code == OK, ended.err
    assert answered == [True, True]
    assert set(records(out)) == {"a", "b", "c"}


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    """Whether it happens before an end to patience."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_an_output_that_is_something_else(ridgeline: Run, requests: Path, tmp_path: Path) -> None:
    """It stays as it is."""
    out = tmp_path / "notes.txt"
    out.write_text("my notes\n")
    assert_one_line(ridgeline("run", "tales", "-i", requests, "-o", out), USAGE, "is not the output of a batch")
    assert out.read_text() == "my notes\n"
    assert_one_line(ridgeline("run", "tales", "-i", requests, "-o", requests), USAGE, "both name")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "0"], "--seed is for a single prompt; leave it out and state it in each line of --input-file"),
        (["--max-tokens", "3"], "--max-tokens is for a single prompt"),
        (["-n", "2"], "--n is for a single prompt"),
        (["--raw"], "--raw is for a single prompt"),
        (["--json"], "--json is for a single prompt"),
        (["a prompt"], "prompt is for a single prompt"),
        (["-o", "nowhere/out"], "there is no folder nowhere"),
    ],
)
def test_what_a_batch_has_no_use_for(ridgeline: Run, requests: Path, arguments: list[str], says: str) -> None:
    assert_one_line(ridgeline("run", "tales", "-i", requests, *arguments), USAGE, says)


def test_neither_a_prompt_nor_a_file(ridgeline: Run, tmp_path: Path) -> None:
    assert_one_line(ridgeline("run", "tales"), USAGE, "give a prompt (- reads standard input), or --input-file")
    assert_one_line(ridgeline("run", "tales", "hi", "-o", "x"), USAGE, "--input-file")
    assert_one_line(ridgeline("run", "tales", "-i", tmp_path / "none"), USAGE, "none cannot be read: No such file")


def test_a_batch_may_name_the_folder_as_a_server_does(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    given = str(tmp_path / "mine")
    assert BatchFlags().names(given) == (given, "mine")
    assert BatchFlags().names("tales") == ("tales",)
    assert BatchFlags(served_model_name=["yours"]).names(given) == ("yours",)


def test_what_is_read_of_an_earlier_output(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert read_earlier(out) == EarlierOutput()
    whole = b'{"custom_id": "a", "response": {"x": 1}, "error": null}\n{"custom_id": null, "error": {"line": 7}}\n'
    out.write_bytes(whole + b'{"custom_id": "b", "error": null}')
    assert read_earlier(out) == EarlierOutput(frozenset("a"), frozenset({7}), len(whole))
