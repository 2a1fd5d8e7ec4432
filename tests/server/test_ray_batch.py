"""A file of requests on Ray Data: the answers of one engine, each once; what cannot be is said in a line."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli.running import USAGE
from ridgeline.cli.batch_options import BatchFlags
from ridgeline.cli.batch_run import run_batch
from ridgeline.cli.engine_flags import TextFlags
from ridgeline.engine.async_llm import EngineDied
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.server.openai_batch import Tally
from ridgeline.server.replicas import ray_batch, ray_cluster
from ridgeline.server.replicas.chosen_lines import LineReader, chosen_lines
from ridgeline.server.replicas.ray_batch import BatchActor, take_output

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
    lines = [line(str(number), prompt) for number, prompt in enumerate(PROMPTS)]
    settings = EngineSettings(kv_bytes=32e6)
    answering = BatchActor(
        "tales", settings, ("tales",), 1, dummy_weights=False, lines=lambda places: [lines[each] for each in places]
    )
    for parts in ([bytes(range(6))], [bytes(range(2)), bytes(range(2, 6))]):
        outputs = [json.loads(each) for each in answering({"places": parts})["output"]]
        assert sorted(each["custom_id"] for each in outputs) == [str(number) for number in range(len(PROMPTS))]
        assert {each["response"]["status_code"] for each in outputs} == {200}
    answering.close()


def test_an_engine_that_cannot_be_loaded_says_so() -> None:
    settings = EngineSettings(context=10**6)
    answering = BatchActor("tales", settings, ("tales",), 1, dummy_weights=False, lines=lambda places: [])
    (said,) = answering({"places": [b""]})["not_loaded"]
    assert "--context is 1,000,000, but" in json.loads(said)[1]


@pytest.mark.parametrize("flags", [TextFlags(device="cuda"), TextFlags(tensor_parallel=2)])
def test_replicas_are_engines_of_processors(tmp_path: Path, flags: TextFlags) -> None:
    source = tmp_path / "in"
    source.write_bytes(line("0", "Once"))
    with pytest.raises(ValueError, match=r"of one CPU process each; leave out --(device|tensor-parallel)"):
        run_batch("tales", flags, BatchFlags(str(source), replicas=2), {})


FAKE_ACTORS = """
import sys
from contextlib import nullcontext
from ridgeline.cli import batch_run
from ridgeline.cli.engine_flags import TextFlags
from ridgeline.cli.batch_options import BatchFlags
from ridgeline.server.openai_batch import read_line
from ridgeline.server.replicas import ray_batch, ray_cluster
from ridgeline.server.replicas.chosen_lines import LineReader

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))

def answered(lines, engines, cores, made, write, tally):
    for first in range(0, len(lines), 1024):
        for line in LineReader(lines.path).lines(lines.part(first, first + 1024)):
            write(read_line(line).custom_id.encode() + b"\\n")

ray_batch.answer_on_ray, ray_batch.check_ray_data = answered, lambda: None
ray_cluster.ray_cluster = lambda *_: nullcontext()
flags = TextFlags(threads=1)
flags.settings("tales", adapters={})
before = peak()
for source, target in zip(("-", sys.argv[1]), sys.argv[2:], strict=True):
    batch_run.run_batch("tales", flags, BatchFlags(source, target, replicas=2, ray_address="auto"), {})
print(peak() - before)
"""


def test_a_long_file_is_not_held_in_memory(tmp_path: Path) -> None:
    """Of 100,000 lines, 100 MB, the ids and the places alone: all that this process has but for Ray. Once as standard
    input, once as a file."""
    source, targets = tmp_path / "in", [tmp_path / "one", tmp_path / "two"]
    before, after = line("NUMBER", "Once upon a time " * 50).split(b"NUMBER")
    with source.open("wb") as file:
        file.writelines(before + str(number).encode() + after for number in range(100_000))
    command = [sys.executable, "-c", FAKE_ACTORS, str(source), *map(str, targets)]
    with source.open("rb") as stdin:
        ended = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 50_000  # KB
    for target in targets:
        assert target.read_bytes().split() == [str(number).encode() for number in range(100_000)]


def test_lines_are_found_again(tmp_path: Path) -> None:
    """Those that are wanted, empty ones and a last one without its end among them; of a pipe in a copy, which goes."""
    file = tmp_path / "lines"
    file.write_bytes(b"a\n\nno\nbcd\nno\n" + b"e" * 10**5 + b"\nlast")
    wanted = [each for each in file.read_bytes().splitlines(keepends=True) if each != b"no\n"]
    for path in (file, None):
        with file.open("rb") as stream, chosen_lines(stream, path, lambda each: each != b"no\n") as lines:
            assert len(lines) == 5
            found = [LineReader(lines.path).lines(lines.part(first, first + 2)) for first in (0, 2, 4)]
            assert found == [wanted[:2], wanted[2:4], wanted[4:]]
        assert Path(lines.path).exists() == (path is not None)
    file.write_bytes(b"a\n")
    with pytest.raises(OSError, match="became shorter"):
        LineReader(str(file)).lines(lines.part(0, 3))


def test_a_line_that_was_changed_ends_the_run() -> None:
    """It was a request when it was dealt. What an engine says of it is not written, as the number is that in a part."""
    lines, settings = [line("0", "Once"), b"x\n"], EngineSettings(kv_bytes=32e6)
    answering = BatchActor("tales", settings, ("tales",), 1, dummy_weights=False, lines=lambda places: lines)
    changed, answered = sorted(answering({"places": [b""]})["output"], key=lambda each: b'"custom_id":"0"' in each)
    answering.close()
    written, tally = list[bytes](), Tally()
    take_output(answered, "in", written.append, tally)
    with pytest.raises(EngineDied, match="in has changed: do not change it"):
        take_output(changed, "in", written.append, tally)
    assert written == [answered]
    assert (tally.answered, tally.wrong) == (1, 0)


def test_a_link_is_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/stdin is one, which is another file in an actor."""
    source, link, read = tmp_path / "in", tmp_path / "link", []
    source.write_bytes(line("0", "Once"))
    link.symlink_to(source)
    monkeypatch.setattr(ray_batch, "check_ray_data", lambda: None)
    monkeypatch.setattr(ray_batch, "answer_on_ray", lambda lines, *_: read.append(lines.path))
    monkeypatch.setattr(ray_cluster, "ray_cluster", lambda *_: nullcontext())
    batch = BatchFlags(str(link), str(tmp_path / "out"), replicas=2, ray_address="auto")
    run_batch("tales", TextFlags(threads=1), batch, {})
    assert read == [str(source.resolve())]


@with_ray_data
def test_what_no_engine_can_have_is_told_in_a_line(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(line("0", "Once"))
    ended = run("--input-file", source, "--output-file", target, "--replicas", 2, "--context", 10**6)
    assert ended.returncode == USAGE
    assert ended.stderr.splitlines()[-1].startswith("ridgeline: --context is 1,000,000, but"), ended.stderr
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
