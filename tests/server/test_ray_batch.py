"""A file of requests on Ray Data: the answers of one engine, each once; what cannot be is said in a line."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli.running import USAGE
from ridgeline.engine.setup import EngineSettings
from ridgeline.server.replicas.ray_batch import Answering

with_ray_data = pytest.mark.skipif(
    any(find_spec(name) is None or find_spec(name).origin is None for name in ("ray", "pyarrow", "pandas")),  # type: ignore[union-attr]
    reason="Ray Data is not installed: pip install 'ridgeline[ray]'",
)
PROMPTS = [f"Once upon a time there was a {animal}" for animal in ("cat", "dog", "bird", "frog", "bear", "fox")]


def line(name: str, prompt: object, **more: Any) -> bytes:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}).encode() + b"\n"


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ridgeline", "run", "tales", *map(str, arguments), "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_an_engine_answers_rows() -> None:
    """What an actor does, without Ray."""
    answering = Answering("tales", EngineSettings(kv_bytes=32e6), ("tales",), 1, dummy_weights=False)
    rows = {"line": [line(str(number), prompt) for number, prompt in enumerate(PROMPTS)]}
    for _ in range(2):
        outputs = [json.loads(each) for each in answering(rows)["output"]]
        assert sorted(each["custom_id"] for each in outputs) == [str(number) for number in range(len(PROMPTS))]
        assert {each["response"]["status_code"] for each in outputs} == {200}
    answering.close()


def test_an_engine_that_cannot_be_loaded_says_so() -> None:
    answering = Answering("tales", EngineSettings(context=10**6), ("tales",), 1, dummy_weights=False)
    (said,) = answering({"line": [line("0", "Once")]})["not_loaded"]
    assert "a context of 1,000,000 was asked for" in json.loads(said)[1]


@with_ray_data
def test_what_no_engine_can_have_is_told_in_a_line(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(line("0", "Once"))
    ended = run("--input-file", source, "--output-file", target, "--replicas", 2, "--context", 10**6)
    assert ended.returncode == USAGE
    assert ended.stderr.splitlines()[-1].startswith("ridgeline: a context of 1,000,000 was asked for"), ended.stderr
    assert "Traceback" not in ended.stderr


@with_ray_data
def test_two_engines_answer_a_file(tmp_path: Path) -> None:
    """What is no request, and what an earlier run has answered, goes to no engine; a refusal is an answer."""
    source, one, two = (tmp_path / name for name in ("in", "one", "two"))
    lines = [line(f"{number}-{n}", prompt, n=n) for number, prompt in enumerate(PROMPTS) for n in (1, 2)]
    lines += [line("refused", "Once", max_tokens=-1), b"no request\n", b"\n", line("0-1", "twice")]
    source.write_bytes(b"".join(lines))
    assert run("--input-file", source, "--output-file", one).returncode == 0
    kept = [each for each in one.read_bytes().splitlines(keepends=True) if b'"3-1"' in each]
    two.write_bytes(b"".join(kept))
    ended = run("--input-file", source, "--output-file", two, "--replicas", 2)
    assert ended.returncode == 0, ended.stderr
    assert "11 answered, 1 refused, 2 lines are no request, 1 there already" in ended.stderr, ended.stderr
    assert len(two.read_bytes().splitlines()) == len(one.read_bytes().splitlines()) == 15
    told = [
        {each["custom_id"]: each for each in map(json.loads, path.read_bytes().splitlines()) if each["custom_id"]}
        for path in (one, two)
    ]
    assert told[0].keys() == told[1].keys()
    for name, wanted in told[0].items():
        found, said = told[1][name]["response"], wanted["response"]
        assert found["status_code"] == said["status_code"]
        assert found["body"].get("choices") == said["body"].get("choices")
