"""`ridgeline bench engine` on `tales` and tiny workloads: what it prints and refuses. No time is asserted."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.running import REFUSED, USAGE, Run, assert_one_line
from ridgeline.backends.cpu.library import library
from ridgeline.insight.bench.engine.workload import choose, read_workloads
from ridgeline.insight.calibrate.calibration import Calibration, FittedClass
from ridgeline.insight.calibrate.calibration_file import save
from ridgeline.insight.calibrate.roofs import MemoryStream
from ridgeline.price.device import Efficiency
from ridgeline.price.slowdown import Slowdown
from support.kernels import SETS

WORKLOADS = {
    "pair": {"sequences": 2, "prompt": 12, "output": 4},
    "one token": {"sequences": 1, "prompt": 5, "output": 1},
    "sampled": {"sequences": 2, "prompt": 6, "output": 3, "temperature": 0.8, "top_p": 0.95},
    "mixed": {"requests": 5, "prompt": [3, 20], "output": [2, 6], "seed": 0},
}
ROOT = Path(__file__).parents[2]
FIGURES = ["output_tok_s", "prefill_tok_s", "decode_tok_s", "decode_step_ms"]


@pytest.fixture(autouse=True)
def _uncalibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps(WORKLOADS))
    return path


def rows_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_row_for_each_workload(ridgeline: Run, file: Path) -> None:
    """With the keys, in their order, that the scripts print which time other engines; then what the roofs say."""
    ended = ridgeline("bench", "engine", "tales", "--workloads", file, "--json")
    assert ended.code == 0, ended.err
    rows = rows_of(ended.out)
    assert [row["workload"] for row in rows] == list(WORKLOADS)
    own = dict(zip(WORKLOADS, (FIGURES, FIGURES[:2], FIGURES, FIGURES[:1]), strict=True))
    for row in rows:
        names = own[row["workload"]]
        assert list(row)[: 3 + len(names)] == ["engine", "workload", *names, "ceiling"]
        assert row["engine"] == "ridgeline"
        for part in ("ceiling", "share", "spread", "roof"):
            assert list(row[part]) == names
        assert all(row[name] > 0 and row["ceiling"][name] > 0 for name in names)
        assert (row["roofs"]["basis"], row["rounds"], row["threads"], row["preemptions"]) == ("probed", 1, 1, 0)
    pair = rows[0]
    assert pair["decode_step_ms"] == pytest.approx(2 * 1000 / pair["decode_tok_s"], abs=0.006)  # of two decimals
    assert pair["share"]["decode_tok_s"] == pair["share"]["decode_step_ms"]
    share = pair["decode_tok_s"] / pair["ceiling"]["decode_tok_s"]
    assert pair["share"]["decode_tok_s"] == pytest.approx(share, abs=1e-3)


def test_the_kernels_that_ran_are_named(
    ridgeline: Run, file: Path, monkeypatch: pytest.MonkeyPatch, torch_only: None
) -> None:
    """Figures are theirs: the best that there are, plain ones, or torch's."""
    command = ("bench", "engine", "tales", "one token", "--workloads", file, "--json")
    assert [row["kernels"] for row in rows_of(ridgeline(*command).out)] == ["torch's"]
    for name in SETS:
        monkeypatch.setenv("RIDGELINE_KERNELS", name)
        library.cache_clear()
        assert [row["kernels"] for row in rows_of(ridgeline(*command).out)] == [name]


def test_progress_goes_to_stderr(ridgeline: Run, file: Path) -> None:
    """A line for each run, where that is no terminal; the row alone goes to stdout."""
    ended = ridgeline("bench", "engine", "tales", "pair", "--workloads", file, "--rounds", 2, "--json")
    (row,) = rows_of(ended.out)
    assert ended.err.splitlines() == [
        "warming up", "round 1 of 2: pair, 2 x 12 in, 4 out", "round 2 of 2: pair, 2 x 12 in, 4 out",
    ]  # fmt: skip
    least, most = row["spread"]["decode_tok_s"]
    assert least <= row["decode_tok_s"] <= most
    assert row["rounds"] == 2


def test_the_table_begins_with_the_ceiling(ridgeline: Run, file: Path) -> None:
    ended = ridgeline("bench", "engine", "tales", "mixed", "pair", "--workloads", file)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].startswith("tales on ")
    assert "Roofs probed before and after each run" in ended.out
    head = next(number for number, line in enumerate(lines) if line.startswith("tok/s"))
    assert lines[head].split() == ["tok/s", "ceiling", "measured", "share", "roof"]
    assert [line.split()[0] for line in lines[head + 1 : head + 7]] == [
        "mixed:", "output", "pair:", "prefill", "decode", "output",
    ]  # fmt: skip


def test_a_calibration_gives_the_roofs(ridgeline: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, for so many threads; with --probe they are probed all the same."""
    save([
        Calibration(
            title="A Chip", kind="cpu", threads=1, made="2026-11-21 12:00", seconds=48.6, memory=float(8 << 30),
            streams=(MemoryStream(1 << 20, 40e9, 20e9),), bandwidth=10e9, caches=(),
            products={"fp32": 2e11, "bf16": 5e10},
            classes={"default": FittedClass(Efficiency(1e-6, 0.7, 0.8), 1, 0.0, 0.0)},
            host=None, host_error=0.0, pace=Slowdown(1e-3, 2e-3, 3e-3), disturbed=Slowdown(1, 1, 1), residuals=(),
            native=True,
        )
    ])  # fmt: skip
    command = ("bench", "engine", "tales", "pair", "--workloads", file)
    (probed,) = rows_of(ridgeline(*command, "--json", "--probe").out)
    assert probed["roofs"]["basis"] == "probed"
    monkeypatch.setattr("ridgeline.insight.calibrate.estimate.probed", lambda *_: pytest.fail("the machine was probed"))
    (row,) = rows_of(ridgeline(*command, "--json").out)
    roofs = {"basis": "calibrated", "bytes_per_second": 1e10, "flops_per_second": {"fp32": 2e11, "bf16": 2e11}}
    assert row["roofs"] == roofs
    page = " ".join(ridgeline(*command).out.split())
    assert "Roofs calibrated, measured on this machine, 2026-11-21 12:00, 1 thread: memory 10.0 GB/s" in page


def test_settings_go_by_the_names_of_others(ridgeline: Run, file: Path) -> None:
    """Two requests at a time of five in steps of 8 positions, in memory that does not hold both to their ends."""
    few = ("--max-num-seqs", 2, "--max_num_batched_tokens", 8, "--kv-cache-memory-bytes", "90KiB", "--block-size", 4)
    command = ("bench", "engine", "--model", "tales", "--workloads", file, "mixed", "--json")
    (row,) = rows_of(ridgeline(*command, *few, "--no-enable-prefix-caching", "--dummy-weights").out)
    assert row["workload"] == "mixed"
    ended = ridgeline(*command, "--enable-prefix-caching")
    assert_one_line(ended, USAGE, "--enable-prefix-caching is not supported: this command has no prefix cache")


def test_names_may_stand_in_a_file_of_options(ridgeline: Run, file: Path, tmp_path: Path) -> None:
    """One or several, as those of an option that may be repeated."""
    options = tmp_path / "options.toml"
    for names, run in (('["mixed", "one token"]', ["mixed", "one token"]), ('"one token"', ["one token"])):
        options.write_text(f'[bench.engine]\nworkloads = "{file}"\nnames = {names}\n')
        ended = ridgeline("bench", "engine", "tales", "--config", options, "--json")
        assert [row["workload"] for row in rows_of(ended.out)] == run, ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nowhere"], REFUSED, "no such model or folder: nowhere"),
        (["tales", "pear"], USAGE, "there is no workload 'pear'; did you mean pair?"),
        (["tales", "--rounds", "0"], USAGE, "--rounds is 0; it must be at least 1"),
        (["tales", "--context", "14"], USAGE, "'pair' has requests of 16 tokens, prompt and output; the model's"),
        (["tales", "pair", "--kv-memory", "24KiB", "--page-size", "4"], USAGE, "has room for 12 (--kv-memory)"),
        (["tales", "--dtype", "fp8"], USAGE, "--dtype is 'fp8'"),
        (["tales", "--prefix-cache"], USAGE, "unknown option --prefix-cache"),
        (["qwen3-0.6b"], REFUSED, "add --dummy-weights"),
        (["translate"], USAGE, "translate has an encoder, but workloads describe no encoder input"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(
    ridgeline: Run, file: Path, arguments: list[str], code: int, says: str
) -> None:
    assert_one_line(ridgeline("bench", "engine", *arguments, "--workloads", file), code, says)


def test_a_file_is_wanted_that_can_be_read(ridgeline: Run, tmp_path: Path) -> None:
    assert_one_line(ridgeline("bench", "engine", "tales"), USAGE, "--workloads", "(see ridgeline bench engine --help)")
    gone = ridgeline("bench", "engine", "tales", "--workloads", tmp_path / "gone.json")
    assert_one_line(gone, USAGE, "gone.json cannot be read: No such file")
    (tmp_path / "bad.json").write_text('{"a": {"sequences": 1, "prompt": 0, "output": 1}}')
    bad = ridgeline("bench", "engine", "tales", "--workloads", tmp_path / "bad.json")
    assert_one_line(bad, USAGE, "bad.json: workload 'a': prompt is 0; give a whole number from 1")


def test_make_bench_asks_for_what_there_is(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the Makefile are understood, and name workloads of their file."""
    monkeypatch.chdir(ROOT)
    told = subprocess.run(
        ["make", "--dry-run", "bench"], capture_output=True, text=True, check=True, env={**os.environ, "MAKEFLAGS": ""}
    )
    commands = [line.split()[1:] for line in told.stdout.splitlines() if "ridgeline bench engine" in line]
    assert len(commands) == 2
    for command in commands:
        ended = ridgeline(*command, "--print-config")
        assert ended.code == 0, ended.err
        asked = tomllib.loads(ended.out)
        choose(read_workloads(Path(asked["workloads"])), asked.get("names", ()))


def test_the_help_teaches_what_words_mean(ridgeline: Run) -> None:
    text = " ".join(ridgeline("bench", "engine", "--help").out.split())
    for word in ("Output:", "Prefill:", "Decode:", "Ceiling:", "Share:", "--workloads", "NAME"):
        assert word in text, word


def test_load_on_a_server_does_without_the_engine() -> None:
    """The commands of one group are imported together."""
    program = "import sys, ridgeline.cli.bench; print('ridgeline.engine.engine' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == "False\n"
