"""`--emit` of `plan` and `simulate`: standard output is the command and nothing else, mistakes are one line."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from cli.running import REFUSED, USAGE, Ended, Run, assert_one_line
from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.util.document.humanize import say_seconds

CARD = ("--device", "h100-sxm")


def assert_refused(ended: Ended, says: str) -> None:
    """Check that a command was refused in one line, for its options or for what they mean together."""
    assert ended.code in {USAGE, REFUSED}
    assert_one_line(ended, ended.code, says)


def words_of(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", " "), comments=True)


@pytest.mark.parametrize(
    ("target", "start"),
    [
        ("vllm", ["vllm", "serve", "Qwen/Qwen3-8B"]),
        ("sglang", ["python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"]),
        ("llama.cpp", ["llama-server", "--model", "Qwen3-8B-BF16.gguf"]),
    ],
)
def test_plan_prints_the_command_alone_and_prices_its_engine(ridgeline: Run, target: str, start: list[str]) -> None:
    words = ("plan", "qwen3-8b", *CARD, "--input", "4k")  # llama.cpp has few slots
    ended = ridgeline(*words, "--emit", target)
    assert (ended.code, ended.err) == (0, "")
    assert words_of(ended.out)[: len(start)] == start
    # The engine of the command is the one that was priced, as with --engine.
    priced = ridgeline(*words, "--engine", target, "--json").json
    users = priced["answer"]["users"]
    assert f"expected with {users:,} running requests" in ended.out


@pytest.mark.parametrize("load", [("--users", "24"), ("--rate", "3"), ("--rate", "3", "--requests", "60")])
def test_the_comments_of_a_load_are_the_answer(ridgeline: Run, load: tuple[str, ...]) -> None:
    """Check the comments against the simulated latencies, which differ from those of the formulas."""
    words = ("plan", "qwen3-8b", "--device", "a100-sxm-80gb", *load, "--engine", "vllm")
    priced, emitted = ridgeline(*words, "--json").json, ridgeline(*words, "--emit", "vllm").out
    metrics = priced["queue"]["metrics"]
    means = {name: metrics["latencies"][name]["mean"] for name in ("ttft", "tpot")}
    assert means["ttft"] != pytest.approx(priced["fleet"]["load"]["ttft"]["expected"], rel=0.02)
    line = next(line for line in emitted.splitlines() if line.startswith("# simulated with "))
    assert f"mean TTFT {say_seconds(means['ttft'])}, mean TPOT {say_seconds(means['tpot'])}" in line
    command = words_of(emitted)
    running = int(command[command.index("--max-num-seqs") + 1])
    if load[0] == "--users":
        assert running == 24
    else:
        assert running > priced["fleet"]["load"]["users"]  # random arrivals meet


def test_plan_emits_a_manifest(ridgeline: Run) -> None:
    ended = ridgeline("plan", "Qwen/Qwen3-8B", *CARD, "--users", "1000", "--emit", "kubernetes")
    assert ended.code == 0
    assert [each["kind"] for each in yaml.safe_load_all(ended.out)] == ["Deployment", "Service"]


def test_a_folder_is_what_the_engine_loads(ridgeline: Run, tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text((CATALOGUE / "qwen3-8b.json").read_text())
    for named in (folder, folder / "config.json"):
        ended = ridgeline("plan", named, *CARD, "--emit", "vllm")
        assert (ended.code, words_of(ended.out)[2]) == (0, str(folder))
    assert_refused(ridgeline("plan", folder, *CARD, "--emit", "kubernetes"), "a pod cannot load")


def test_simulate_prints_the_limits_that_it_simulated(ridgeline: Run, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    ended = ridgeline(
        "simulate", "qwen3-8b", *CARD, "--rate", "4", "--requests", "60", "--input", "256", "--output", "16",
        "--context", "4k", "--max-requests", "32", "--chunk", "512", "--replicas", "2", "--emit", "vllm", "--out",
        str(result), "--price-error", "0%",
    )  # fmt: skip
    assert ended.code == 0
    assert json.loads(result.read_text())
    words = words_of(ended.out)
    for flag, value in (
        ("--max-model-len", "4096"), ("--max-num-seqs", "32"), ("--long-prefill-token-threshold", "512"),
    ):  # fmt: skip
        assert words[words.index(flag) + 1] == value
    assert "--enable-prefix-caching" in words
    assert "# replicas: 2 " in ended.out
    assert "simulated with Poisson arrivals, 4 per second" in ended.out


def test_a_refusal_comes_before_the_simulation(ridgeline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that nothing of a run of minutes is lost."""
    monkeypatch.setattr("ridgeline.cli.simulate._found", lambda *_: pytest.fail("it was simulated"))
    words = ("simulate", "qwen3-8b", *CARD, "--rate", "1", "--chunk", "512", "--emit", "llama.cpp")
    assert_refused(ridgeline(*words), "no option for --chunk")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "qwen3-8b", *CARD, "--emit", "trt"), "give one of vllm, sglang, llama.cpp, kubernetes"),
        (("plan", "qwen3-8b", *CARD, "--emit", "vllm", "--json"), "leave out --json"),
        (("plan", "qwen3-8b", *CARD, "--emit", "vllm", "--compare"), "leave out --compare"),
        (("plan", "qwen3-8b", *CARD, "--emit", "sglang", "--engine", "vllm"), "but vllm was priced"),
        (("plan", "qwen3-8b", *CARD, "--emit", "vllm", "--rope", "yarn:4"), "does not write the engines' options"),
        (("plan", "bge-m3", *CARD, "--emit", "vllm"), "does not"),
        (("plan", "t5-small", *CARD, "--input", "256", "--emit", "vllm"), "models that continue a text"),
        (("plan", "mistral-small-3.1-24b", *CARD, "--emit", "vllm"), "ORGANISATION/NAME"),
        (("plan", "qwen3-8b", *CARD, "--emit", "vllm", "--ttft", "1ms", "--users", "2"), "no number of replicas"),
        (("simulate", "qwen3-8b", *CARD, "--rate", "1", "--emit", "vllm", "--json"), "leave out --json"),
        (("simulate", "qwen3-8b", *CARD, "--rate", "1", "--emit", "vllm", "--split", "1:1"), "leave out --split"),
        (
            ("simulate", "qwen3-8b", *CARD, "--rate", "1", "--slo", "ttft=1s", "--advise", "--emit", "vllm"),
            "leave out --advise",
        ),
    ],
)
def test_a_mistake_is_one_line(ridgeline: Run, words: tuple[str, ...], says: str) -> None:
    assert_refused(ridgeline(*words), says)
