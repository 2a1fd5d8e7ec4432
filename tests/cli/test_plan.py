"""`ridgeline plan` as a user meets it: its figures in JSON, its tables, and one line for each mistake."""

import json
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.running import Run
from ridgeline.cli import console
from ridgeline.cli.options import parse_dollars, parse_seconds, parse_share, parse_tokens
from ridgeline.core.checkpoint.source import open_source
from ridgeline.insight.calibrate import local_device
from ridgeline.insight.simulate import demand_simulation, tail_latency
from ridgeline.price.devices import device_names
from ridgeline.price.error_interval import error_intervals
from ridgeline.price.hourly_prices import builtin_snapshots
from ridgeline.price.interval_text import costs_between, durations_between, rate_interval, time_interval
from ridgeline.price.plan.demand import Demand, ReplicaCount, SimulatedQueue, fleet_of
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.plan_document import SECTIONS, needs_simulation
from ridgeline.price.plan.plan_text import describe_users
from ridgeline.util.document.humanize import say_duration, say_seconds, three_digits
from support.planned import TINY, TINY_MIXTURE

CARD = ("--device", "h100-sxm")


@pytest.fixture(autouse=True)
def few_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate few requests of a demand, and print no progress on a slow machine."""
    monkeypatch.setattr(tail_latency, "TOKENS", 6_000)
    monkeypatch.setattr(console, "LINE_EVERY", 1e9)


@pytest.fixture
def plan(ridgeline: Run) -> Any:
    """Return a function that runs the command and returns its exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        ended = ridgeline("plan", *words)
        return ended.code, ended.out, ended.err

    return run


@pytest.mark.parametrize(
    ("text", "tokens"), [("1k", 1024), ("1K", 1024), ("128k", 131_072), ("2000", 2000), ("1M", 1 << 20), ("1.5k", 1536)]
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text, "--input") == tokens


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("50 us", 50e-6), ("50 µs", 50e-6), ("10m", 600), ("1 h", 3600), ("1.5ms", 0.0015)],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--ttft") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-5", "1.3", "k", "1KB", "1kB", "many", "1e3", "0.0001k"])
def test_no_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="--input is"):
        parse_tokens(text, "--input")


@pytest.mark.parametrize("text", ["", "500", "0ms", "-1s", "1 d", "ms", "nan s", "0.0001us", "9999h"])
def test_no_seconds(text: str) -> None:
    with pytest.raises(ValueError, match="--ttft is"):
        parse_seconds(text, "--ttft")


def test_dollars() -> None:
    assert parse_dollars("$2.5", "--price") == parse_dollars("2.5", "--price") == 2.5
    for text in ("", "0", "-1", "2 EUR", "free"):
        with pytest.raises(ValueError, match="--price is"):
            parse_dollars(text, "--price")


def test_a_model_is_a_config_a_folder_or_a_name(plan: Any, model: str) -> None:
    figures = []
    for name in (model, str(Path(model).parent)):
        code, out, err = plan(name, *CARD, "--json")
        assert (code, err) == (0, "")
        figures.append({k: v for k, v in json.loads(out).items() if k != "model"})
    assert figures[0] == figures[1]
    code, out, _ = plan("gpt2", *CARD, "--input", "500", "--json")
    assert code == 0
    assert json.loads(out)["model"]["parameters"] == 124_439_808


def test_the_fields_of_json_are_a_contract(plan: Any, model: str) -> None:
    shown = json.loads(
        plan(model, *CARD, "--json", "--batch", "4", "--ttft", "1s", "--tpot", "50ms", "--price", "3")[1]
    )
    assert set(shown) == {
        "model", "device", "workload", "answer", "memory", "weights", "ways_to_fit", "phases", "prefill", "decode",
        "request", "crossings", "sweep", "experts_touched", "load", "levers", "batching", "sensitivities", "cards",
        "words", "definitions", "demand", "fleet", "attention", "trust", "engine", "loading", "queue",
    }  # fmt: skip
    assert {"TTFT", "ITL", "TPOT", "floor", "bound", "expected", "FLOP/B", "ridge", "gain"} <= set(shown["definitions"])
    assert "measured or a default" in shown["definitions"]["expected"]  # no card but a calibrated one was all measured
    for phase in ("prefill", "decode"):
        assert {"flops", "memory_bytes", "intensity", "ridge", "limit", "classes", "seconds"} <= set(shown[phase])
        assert set(shown[phase]["seconds"]) == {"floor", "bound", "expected"}
    assert [phase["name"] for phase in shown["phases"]] == ["prefill", "decode"]
    for phase in shown["phases"]:
        assert phase.items() <= shown[phase["name"]].items()
    for figure in ("floor", "bound", "expected"):
        total = sum(phase["count"] * phase["seconds"][figure] for phase in shown["phases"])
        assert shown["request"][figure] == pytest.approx(total)
    for figure in ("floor", "bound", "expected"):  # 256 tokens: the prefill gives one, 255 steps the others
        prompt, step = shown["prefill"]["seconds"][figure], shown["decode"]["seconds"][figure]
        assert shown["request"][figure] == pytest.approx(prompt + 255 * step)
        assert shown["request"]["tokens_per_second"][figure] == pytest.approx(4 * 256 / (prompt + 255 * step))
    assert shown["device"]["dollars_per_hour"] == 3
    assert shown["cards"] is None
    assert shown["experts_touched"] is None
    answer = shown["answer"]
    assert answer["fits"]
    load = shown["load"]["most"]
    assert answer["users"] == load["users"]
    assert load["tpot"]["expected"] <= 0.05
    assert answer["dollars_per_million_tokens"] == pytest.approx(3 / 3600 / load["tokens_per_second"]["expected"] * 1e6)


ANSWER = ("fits", "users", "speed", "limit", "lever", "cost", "trust")


def answered(out: str) -> dict[str, str]:
    """The lines of an answer by their names, each as one line."""
    found: dict[str, str] = {}
    name = ""
    for line in out.splitlines():
        named = re.match(rf"({'|'.join((*ANSWER, 'queue', 'job'))})  +(.*)", line)
        name = named[1] if named else name if line.startswith("      ") else ""
        if name:
            found[name] = f"{found.get(name, '')} {named[2] if named else line.strip()}".strip()
    return found


def test_a_plan_answers_in_fifteen_lines(plan: Any) -> None:
    """352 users at 6.95 tokens a second were the headline, which nobody would serve."""
    code, out, err = plan("llama-3-8b", "--device", "a100-sxm-80gb")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 23
    assert max(map(len, out.splitlines())) <= 100
    said = answered(out)
    assert tuple(said) == ANSWER
    assert "with the targets TTFT 1 s and TPOT 50 ms on average" in out
    assert re.match(
        r"\d+ \[\d+ \.\. \d+\] concurrent, [\d.]+ \[[\d.]+ \.\. [\d.]+\] evenly spaced requests/s within TTFT 1 s and "
        "TPOT 50 ms; one more would miss",
        said["users"],
    )
    users, each = re.match(
        r"(\d+) users: mean TTFT [\d.]+ ms \[[^]]+\] \([\d.]+ s \[[^]]+\] if all arrive at once\), "
        r"then ([\d.]+) \[[^]]+\] tok/s each",
        said["speed"],
    ).groups()  # type: ignore[union-attr]
    assert 20 <= float(each) < 21
    assert said["users"].startswith(f"{users} [")
    assert "6.95" not in out
    around = {name: len(re.findall(r"\[[^]]+ \.\. [^]]+\]", line)) for name, line in said.items()}
    assert (around["fits"], around["users"], around["cost"], around["speed"]) == (0, 2, 2, 6)
    told = json.loads(plan("llama-3-8b", "--device", "a100-sxm-80gb", "--json")[1])
    low, high = told["answer"]["intervals"]["itl"]
    assert said["trust"].startswith(f"decode {say_seconds(told['answer']['itl']['expected'])}, ")
    assert f" to {say_seconds(high)} in 8 of 10 cases like this one (" in said["trust"]
    assert low < told["answer"]["itl"]["expected"] < high
    # A lever on the same device is a ratio; another device has dollars of its own, with their interval.
    assert re.match(r"[^:]+: x [\d.]+ users, x [\d.]+ tokens, x [\d.]+ dollars \(", said["lever"])
    assert all("$" not in part or re.search(r"\$[\d.]+ \[", part) for part in said["lever"].split("; "))


def test_users_are_those_within_the_targets_at_both_ends_of_the_times(plan: Any) -> None:
    """Check that targets that are as much stricter as slow times are longer leave the lower end, and vice versa."""
    asked = ("llama-3-8b", "--device", "a100-sxm-80gb", "--json", "--slo")
    told = json.loads(plan(*asked, "tpot=50ms")[1])
    least, most = told["answer"]["intervals"]["users"]
    assert least < told["answer"]["users"] < most
    high = told["trust"]["intervals"]["load"]["high"]
    assert json.loads(plan(*asked, f"tpot={50 / high}ms")[1])["answer"]["users"] == least
    free = json.loads(plan(*asked, "none")[1])["answer"]
    assert free["intervals"]["users"] == [free["users"], free["users"]]


def test_no_interval_reaches_beyond_the_floor(plan: Any) -> None:
    """Check a case that is predicted close to its floor: its interval would reach beyond it."""
    told = json.loads(plan("llama-3-70b", "--device", "h100-sxm", "--devices", "8", "--json")[1])
    answer, around = told["answer"], told["answer"]["intervals"]
    for name in ("ttft", "itl"):
        assert answer[name]["floor"] <= around[name][0] <= answer[name]["expected"] <= around[name][1], name
    for name in ("tokens_per_second", "requests_per_second"):
        assert around[name][0] <= answer[name]["expected"] <= around[name][1] <= answer[name]["floor"], name
    decode = told["trust"]["intervals"]["decode"]
    long = json.loads(plan("llama-3-70b", "--device", "h100-sxm", "--devices", "8", "--input", "7k", "--json")[1])
    step, (low, _) = long["answer"]["itl"], long["answer"]["intervals"]["itl"]
    assert low == pytest.approx(max(step["floor"], step["expected"] * decode["low"]))


def test_all_first_tokens_of_a_line_are_means(plan: Any) -> None:
    """Check the one statistic of the line: a mean for one load stood next to the last request's TTFT of another."""
    asked = ("llama-3-8b", *CARD, "--batch", "32")
    said, told = answered(plan(*asked)[1])["speed"], json.loads(plan(*asked, "--json")[1])
    mean, last = told["load"]["asked"]["ttft_marching"]["expected"], told["answer"]["ttft"]["expected"]
    assert mean < 0.7 * last
    assert f"; 32 requests at once: mean TTFT {say_seconds(mean)} [" in said
    assert len(re.findall("mean TTFT", said)) == len(re.findall("TTFT", said)) == 2
    table = plan(*asked, "--section", "time")[1]
    assert re.search(rf"^mean TTFT, 32 prompts at once .* {say_seconds(mean)}  \[[^]]+\]$", table, re.M)
    assert re.search(rf"^TTFT of the last, 32 prompts at once .* {say_seconds(last)}  \[[^]]+\]$", table, re.M)


def test_a_short_plan_is_five_lines_with_the_figures_of_the_answer(plan: Any) -> None:
    """Each fits a line of a file, and none of them needs a glossary."""
    asked = ("llama-3-8b", *CARD)
    code, out, err = plan(*asked, "--short")
    assert (code, err) == (0, "")
    title, *lines = out.splitlines()
    more = " ".join(lines[lines.index("") :])
    lines = re.sub(r"\n {7}", " ", "\n".join(lines[: lines.index("")])).splitlines()
    assert title == plan(*asked)[1].splitlines()[0]
    assert [line.split()[0] for line in lines] == ["fits", "users", "speed", "limit", "cost"]
    assert max(map(len, out.splitlines())) <= 100
    assert not re.search(r"TTFT|TPOT|ITL", out)
    assert "[a .. b] holds 8 of 10 measurements" in more
    assert "without --short" in more
    full = json.loads(plan(*asked, "--json")[1])
    told, most = full["answer"], full["load"]["most"]
    users, rate = told["users"], most["tokens_per_second_per_user"]["expected"]
    least, many = told["intervals"]["users"]
    assert lines[1].startswith(
        f"users  {users} [{least} .. {many}] concurrent: the first token within 1 s on average, the next ones every 50"
    )
    assert lines[2].startswith(f"speed  {users} users: {rate:.1f} [")
    assert re.search(rf" {told['tokens_per_second']['expected']:,.0f} \[[^]]+\] in total; a single user: ", lines[2])
    assert re.search(rf"\${told['dollars_per_million_tokens']:.2f} \[[^]]+\] per million output tokens", lines[4])


def test_a_short_plan_of_what_is_asked_of_it(plan: Any) -> None:
    """What does not fit, what misses its targets, batches, demands, and speech."""
    large = ("llama-3-70b", "--device", "rtx-4090")
    fits, speed, *_ = plan(*large, "--short")[1].splitlines()[1:]
    assert fits.startswith("fits   NO: the device lacks 111.70 GiB; it would fit with int4 weights on 2 devices")
    assert speed.startswith("speed  if it fitted, a single user: ")
    several = ("llama-3-70b", *CARD, "--devices", "4", "--short")
    assert "left for keys and values on each device" in plan(*several)[1]
    assert "users  40.0 requests/s: " in plan(*several, "--rate", "40")[1]
    assert "users  none: a single user gets a TTFT of " in plan(*several, "--ttft", "1ms")[1]
    free = plan(*several, "--slo", "none", "--batch", "8")[1]
    assert re.search(r"users  [\d,]+ concurrent\n", free)
    assert "; 8 requests at once: " in re.sub(r"\s+", " ", free)
    sound = re.sub(r"\s+", " ", plan("whisper-large-v3-turbo", "--device", "l40s", "--short")[1])
    assert re.search(r"\[[^]]+\] per hour of audio, at \$", sound)
    assert (
        "no known price; give --price"
        in plan("tales", "--device", "mi100", "--short", "--input", "9", "--output", "9")[1]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--full",), "leave out --short or --full"),
        (("--section", "time", "--json"), "leave out --short or --section and --json"),
        (("--compare",), "leave out --short or --compare"),
    ],
)
def test_a_short_plan_shows_nothing_else(plan: Any, words: tuple[str, ...], said: str) -> None:
    code, out, err = plan("llama-3-8b", *CARD, "--short", *words)
    assert (code, out, err) == (2, "", f"ridgeline: --short shows five lines and nothing else; {said}\n")


@pytest.mark.parametrize("model", ["bge-m3", "flux.1-schnell"])
def test_only_models_that_write_have_a_short_plan(plan: Any, model: str) -> None:
    code, out, err = plan(model, "--device", "l4", "--short")
    assert (code, out) == (2, "")
    assert err == f"ridgeline: --short is for models that generate text, but {model} does not; leave it out\n"


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("100", 100), ("200", 100), ("wide", 100), ("0", 100)])
def test_columns_narrow_what_goes_into_a_pipe(
    plan: Any, columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 100 wide, whatever COLUMNS said."""
    monkeypatch.setenv("COLUMNS", columns)
    longest = max(map(len, plan("gpt2", *CARD, "--input", "500")[1].splitlines()))
    assert width - 20 < longest <= width


def test_a_plan_is_called_as_the_models_folder(plan: Any, model: str) -> None:
    folder = Path(model).parent
    for words in ((str(folder), *CARD), (model, *CARD), (model, "--compare-devices", "l40s")):
        assert re.match(rf"{re.escape(folder.name)}( on|:)", plan(*words)[1])


def test_formats_as_files_of_llama_cpp_spell_them(plan: Any, model: str) -> None:
    """`Q4_K_M` is q4_k_m."""
    ways = (("--weights", "Q4_K_M", "--kv", "FP8"), ("--weights", "q4_k_m", "--kv", "fp8"))
    upper, lower = (plan(model, *CARD, *way, "--json")[1] for way in ways)
    assert upper == lower
    assert json.loads(upper)["model"]["weights"] == "q4_k_m"


def test_an_index_that_states_other_bytes_is_told(plan: Any, model: str) -> None:
    """Within 1 % of the bytes priced nothing is said, nor where --weights prices other bytes, nor of an index without a
    size."""
    index = Path(model).with_name("model.safetensors.index.json")
    folder = str(index.parent)

    def notes(metadata: object, *words: str) -> list[str]:
        index.write_text(json.dumps({"metadata": metadata, "weight_map": {}}))
        found: list[str] = json.loads(plan(folder, *CARD, "--json", *words)[1])["model"]["notes"]
        return found

    nbytes = int(json.loads(plan(model, *CARD, "--json")[1])["model"]["weight_bytes"])
    for stated in (nbytes, int(nbytes * 1.009), int(nbytes * 0.991)):
        assert notes({"total_size": stated}) == []
    for stated in (int(nbytes * 1.02), nbytes // 2):
        (note,) = notes({"total_size": stated})
        assert "the checkpoint's index states" in note
    assert notes({"total_size": nbytes // 2}, "--weights", "fp8") == []
    assert f"note   {note[:40]}" in plan(folder, *CARD)[1]
    assert notes({}) == []
    for metadata in (None, {"total_size": "2 GB"}, {"total_size": 0}, 3):
        index.write_text(json.dumps({"metadata": metadata, "weight_map": {}}))
        assert open_source(folder).index_total_bytes is None


def test_targets_are_the_users(plan: Any, model: str) -> None:
    def shown(*words: str) -> Any:
        return json.loads(plan(model, *CARD, "--json", "--price", "3", *words)[1])

    default, slow, none = shown(), shown("--slo", "tpot=1s"), shown("--slo", "none")
    assert (default["workload"]["ttft"], default["workload"]["tpot"]) == (1.0, 0.05)
    assert (slow["workload"]["ttft"], slow["workload"]["tpot"]) == (None, 1.0)
    assert (none["workload"]["ttft"], none["workload"]["tpot"]) == (None, None)
    assert none["answer"]["users"] == none["memory"]["users"] == default["load"]["all_that_memory_holds"]["users"]
    one = shown("--tpot", "20ms")
    assert (one["workload"]["ttft"], one["workload"]["tpot"]) == (1.0, 0.02)


def test_full_is_every_section(plan: Any, model: str) -> None:
    code, out, err = plan(model, *CARD, "--full")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert any(line.split() == ["floor", "bound", "expected", "8", "of", "10", "measurements"] for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= 100
    assert "maximum concurrency for 1,280 tokens" in out
    for name in SECTIONS:
        code, part, _ = plan(model, *CARD, "--section", name)
        assert code == 0
        assert set(part.splitlines()[1:]) <= set(lines)
    both = plan(model, *CARD, "--section", "time,users")[1]
    assert both == plan(model, *CARD, "--section", "time", "--section", "users")[1]
    assert "Weights" not in both


def test_the_two_roofs_of_a_step_stand_beside_each_other(plan: Any) -> None:
    """Seed row 6: 8B on an A100 at 2 TB/s reads for 7.50 ms and computes for 0.048."""
    out = plan("llama-3-8b", "--device", "a100-sxm-80gb", "--input", "1", "--output", "1", "--section", "steps")[1]
    found = re.search(r"arithmetic time .* ([\d.]+) µs\n.*weights and KV time .* ([\d.]+) ms", out)
    assert found is not None
    assert 47.5 < float(found[1]) < 48.5
    assert float(found[2]) == pytest.approx(15.01 / 2.039, rel=0.01)


def test_littles_law_stands_in_figures(plan: Any) -> None:
    out = plan("llama-3-8b", "--device", "a100-sxm-80gb", "--section", "users")[1]
    rows = re.findall(r"^([a-z ]+?)  +([\d,]+)  +=  +([\d.]+)  +x  +([\d.]+) ", out, re.M)
    assert [row[0] for row in rows] == ["within targets", "memory full"]
    for _, users, rate, stay in rows:
        assert float(rate) * float(stay) == pytest.approx(int(users), rel=0.01)


def test_a_rate_gives_cards(plan: Any) -> None:
    words = ("llama-3.1-8b", "--card", "l40s", "--rate", "12")
    shown, out = json.loads(plan(*words, "--json")[1]), plan(*words)[1]
    fleet = shown["fleet"]
    assert fleet["replicas"] == fleet["cards"] > 1
    assert fleet["requests_per_second"] == 12
    assert shown["queue"]["rate"] == pytest.approx(12 / fleet["replicas"])
    assert "at random times: TTFT" in answered(out)["queue"]
    assert f"12.0 requests/s: {fleet['replicas']} replicas of one device" in answered(out)["users"]
    assert f"${fleet['dollars_per_hour']:.2f}"[:4] in answered(out)["cost"]
    users = json.loads(plan(*words[:3], "--users", str(fleet["load"]["users"]), "--json")[1])["fleet"]
    assert users["replicas"] == 1


@pytest.mark.parametrize("demand", [("--rate", "20"), ("--users", "150"), ("--rate", "1"), ()])
@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_figures_of_a_replica_and_of_all_are_told_apart(plan: Any, demand: tuple[str, ...], engine: str) -> None:
    """Check that each figure says which of both it is, and is the one that --json has."""
    words = ("llama-3.1-8b", "--card", "l40s", "--engine", engine, *demand)
    told, out = json.loads(plan(*words, "--json")[1]), re.sub(r"\s+", " ", plan(*words, "--full")[1])
    fleet = told["fleet"] or {"replicas": 1, "load": told["load"]["most"]}
    load, count = fleet["load"], fleet["replicas"]
    each = " on each replica" if count > 1 else ""
    assert (count > 1) == (demand not in ((), ("--rate", "1")))
    total = fleet.get("tokens_per_second", load["tokens_per_second"]["expected"])
    said = answered(plan(*words)[1])
    users = load["users"]
    low, high = told["trust"]["intervals"]["load"]["low"], told["trust"]["intervals"]["load"]["high"]
    least, most = total / high, min(total / low, count * load["tokens_per_second"]["floor"])
    if "--rate" in demand:  # Little's law; no more tokens than are asked for, and as many unless slow steps overload
        means = (told["queue"]["metrics"]["latencies"][name]["mean"] for name in ("ttft", "tpot"))
        rate, (ttft, tpot) = float(demand[1]), means
        users = round(rate / count * (ttft + 255 * tpot))
        most = max(total, min(most, 256 * rate))
        full = (told["load"][name]["tokens_per_second"]["expected"] for name in ("most", "all_that_memory_holds"))
        least = min(total, count * max(full) / high)
    assert said["speed"].startswith(f"{describe_users(users)}{each}: mean TTFT ")
    around = f"[{three_digits(least)} .. {three_digits(most)}]"
    assert f" {total:,.0f} {around} in total{f' on {count} replicas' * (count > 1)}" in said["speed"]
    assert f"decode: memory bandwidth (a step for {describe_users(users)}{each}: " in said["limit"]
    assert told["answer"]["limits"] == {"prefill": "compute", "decode": "memory"}
    assert (f" per hour for {count} replicas, $" in said["cost"]) == (count > 1)
    assert said.get("queue", "").startswith("one replica, ") == (count > 1)
    rate = load["tokens_per_second"]["expected"]
    row = "tok/s of one replica" if count > 1 else "tok/s in total"
    assert re.search(rf" {row}( [\d,.]+){{2}} {rate:,.0f} \[", out)
    assert f"expected figures of {'one replica' if count > 1 else 'the deployment'}; " in out
    held = f"{told['memory']['users']:,} requests of {told['memory']['tokens_per_user']:,} tokens"
    mean = " (their mean length)" if engine == "vllm" else ""
    assert f"; memory full: {held}{mean}{each}" in out
    if not demand:
        assert f"memory holds {held}" in said["users"]


def test_a_comparison_says_which_figures_are_of_one_replica(plan: Any) -> None:
    words = ("llama-3.1-8b", "--compare-devices", "l40s")
    with_demand, without = plan(*words, "--rate", "20")[1], plan(*words)[1]
    assert "users, margins and tok/s of each: on the fullest replica" in with_demand
    assert "$/h: of all replicas" in with_demand
    assert "replica" not in without


def test_a_sweep_says_for_which_length_it_fits(plan: Any) -> None:
    words = ("llama-3.1-8b", "--card", "l40s", "--input", "1000", "--output", "200", "--batch", "1,8")
    told, out = json.loads(plan(*words, "--json")[1]), plan(*words, "--section", "sweep")[1]
    assert "at 1,100 tokens of context" in out
    assert "KV and fits: of requests that are all at their end, with 1,200 tokens" in out
    assert [row["kv_bytes"] for row in told["sweep"]] == [told["memory"]["request_bytes"] * n for n in (1, 8)]


def test_what_is_named_in_other_letters_is_found(plan: Any) -> None:
    for name, card in (("Qwen/Qwen3-8B", "rtx4090"), ("qwen3-8b", "rtx-4090"), ("Qwen3_8B", "4090")):
        code, out, err = plan(name, "--card", card)
        assert (code, err) == (0, "")
        assert out.startswith("qwen3-8b on 1 x NVIDIA GeForce RTX 4090")
    assert plan("Qwen/Qwen3-8B-FP8", "--card", "4090")[0] == 3  # another checkpoint


@pytest.mark.parametrize(
    "words",
    [
        ("--weights", "fp8", "--kv", "fp8"), ("--dtype", "int4", "--devices", "2"), ("--devices", "4", "--compare"),
        ("--compare", "--json"), ("--ttft", "10ms", "--tpot", "1ms"), ("--ttft", "1us"),
        ("--batch", "64", "--input", "4k"),
        ("--memory-utilization", "0.5", "--kv", "int8"), ("--max-batch-tokens", "128", "--batch", "3"),
        ("--output", "1"), ("--input", "1", "--output", "1"), ("--weights", "fp32"),
        ("--full", "--users", "7"), ("--section", "users,time", "--rate", "9"), ("--slo", "none", "--full"),
        ("--compare-devices", "l40s,mi300x", "--rate", "9"), ("--compare", "--seller", "lambda"),
        ("--slo", "ttft=1us", "--full"),
        ("--full", "--devices", "4", "--kv", "fp8"), ("--users", "9", "--slo", "tpot=1us"), ("--json", "--rate", "3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [TINY, TINY_MIXTURE], ids=["dense", "mixture"])
def test_options_in_pairs(plan: Any, model: str, config: dict[str, Any], words: tuple[str, ...]) -> None:
    Path(model).write_text(json.dumps(config))
    code, out, err = plan(model, *CARD, *words)
    assert (code, err) == (0, "")
    assert out
    if "--json" not in words:
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "a100"), "a100-sxm-80gb"),
        (("--device", "h100-smx"), "similar names are h100-sxm"),
        (("--device", "none.json"), "none.json"),
        ((*CARD, "--batch", "2000", "--input", "7900", "--memory-utilization", "0.1"), "GiB that are left"),
        ((*CARD, "--batch", "-1"), "--batch is '-1'"),
        ((*CARD, "--batch", "8,,64"), "like 1,8,64"),
        ((*CARD, "--batch", "many"), "--batch"),
        ((*CARD, "--devices", "0"), "the number of devices is 0"),
        ((*CARD, "--devices", "16"), "up to 8"),
        ((*CARD, "--input", "-5"), "--input is '-5'"),
        ((*CARD, "--output", "0"), "--output is '0'"),
        ((*CARD, "--input", "8k"), "the model's context is 8,192; give, for example, --input 7944 --output 248"),
        ((*CARD, "--input", "8k"), "or extend the context with --rope yarn:1.04 (8,192 positions x 1.04)"),
        (
            (*CARD, "--input", "32k"),
            "--rope yarn:4.04 (8,192 positions x 4.04), or with --rope yarn:4 and --input 32512",
        ),
        ((*CARD, "--input", "32k", "--rope", "yarn:4"), "or extend the context with --rope yarn:4.04 (8,192 positions"),
        ((*CARD, "--rope", "linear:4"), "--rope is 'linear:4'; write yarn:FACTOR"),
        ((*CARD, "--ttft", "500"), "like 500ms"),
        ((*CARD, "--tpot", "-5ms"), "--tpot is"),
        ((*CARD, "--price", "-2"), "--price is"),
        (
            ("--compare-devices", "l40s,h100-sxm", "--price", "2"),
            "--price is for the device of --device, which is missing: give",
        ),
        ((*CARD, "--weights", "fp7"), "fp8, int8, w8a8, int4"),
        ((*CARD, "--kv", "int4"), "fp8, int8"),
        ((*CARD, "--kv", "fp32"), "--weights fp32"),
        ((*CARD, "--memory-utilization", "90"), "at most 1"),
        (("--device", "m4-max", "--devices", "2"), "has no link of m4-max; give a device file with `link`"),
        ((), "--device is missing; for example: ridgeline plan llama-3-8b --device h100-sxm; `ridgeline plan --list`"),
        ((*CARD, "--slo", "ttft=1s", "--ttft", "1s"), "leave out --ttft and --tpot"),
        ((*CARD, "--slo", "e2e=1s"), "--slo has 'e2e=1s'; write one of ttft, tpot, like"),
        ((*CARD, "--slo", "fast"), "--slo has 'fast'"),
        ((*CARD, "--users", "3", "--rate", "2"), "give one of them"),
        ((*CARD, "--users", "0"), "--users is 0"),
        ((*CARD, "--rate", "0"), "--rate is 0"),
        ((*CARD, "--requests", "100"), "--requests is the length of a run; give --users or --rate too"),
        ((*CARD, "--users", "3", "--requests", "0"), "--requests is 0"),
        ((*CARD, "--rate", "3", "--requests", "20000"), "a plan simulates at most 3,000,000; give --requests 11718 or"),
        (("--compare-devices", "l40s", "--users", "3", "--requests", "9"), "leave out --requests, or --compare and"),
        (
            (*CARD, "--users", "3", "--requests", "many"),
            "write a whole number of requests, like 500, 10k (= 10,000) or",
        ),
        ((*CARD, "--within", "8h"), "--within is the deadline of a batch job; give its size too, like --requests 1M"),
        ((*CARD, "--within", "8", "--requests", "9"), "--within is '8'; write a time above 0 with its unit"),
        ((*CARD, "--within", "8h", "--requests", "9", "--rate", "1"), "leave out --users and --rate, or --within"),
        (
            (*CARD, "--cached", "100%"),
            "1,024 tokens are cached, but the input has 1,024, of which at least the last is",
        ),
        ((*CARD, "--cached", "most"), "--cached is 'most'; write a share like 70%, or tokens like 1500 or 1.5k"),
        ((*CARD, "--section", "money"), "--section is 'money'; it must be one or more of words, memory"),
        ((*CARD, "--seller", "nobody"), "--seller is 'nobody'; it must be one of nebius"),
        ((*CARD, "--prices", "none.toml"), "none.toml cannot be read"),
        (("--compare-devices", "l40s,a100"), "name one of a100-sxm-80gb, a100-pcie-80gb, a100-sxm-40gb"),
        ((*CARD, "--devices", "3"), "give --devices 1, 2 or 4"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(plan: Any, model: str, words: tuple[str, ...], said: str) -> None:
    code, out, err = plan(model, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("ridgeline: ")
    assert said in err


def test_rope_extends_the_context_of_every_deployment(plan: Any) -> None:
    asked = ("qwen3-8b", *CARD, "--input", "100k", "--json")
    code, _, err = plan(*asked)
    assert (code, "--rope yarn:3.14 (32,768 positions x 3.14)" in err) == (2, True)
    code, out, _ = plan(*asked, "--rope", "yarn:3.14")
    longer = json.loads(out)
    assert (code, longer["model"]["name"]) == (0, "qwen3-8b with --rope yarn:3.14")
    code, out, _ = plan(*asked, "--rope", "yarn:4", "--compare-devices", "l40s", "--weights", "fp8")
    assert code == 0
    # The scaling changes angles only: a length within the usual context costs what it cost without.
    for words in (("--input", "8k"), ("--input", "8k", "--kv", "fp8")):
        plain, scaled = (
            json.loads(plan("qwen3-8b", *CARD, *words, *more, "--json")[1]) for more in ((), ("--rope", "yarn:4"))
        )
        for part in ("prefill", "decode"):
            assert plain[part] == scaled[part]


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({"architectures": ["DeciLMForCausalLM"]}, (), "missing: layers of unequal sizes"),
        ({"architectures": ["SphinxForCausalLM"]}, (), "SphinxForCausalLM is not supported; `ridgeline plan --list`"),
        ({"hidden_size": None}, (), "hidden_size is missing"),
    ],
)
def test_a_refused_model_is_one_line_and_code_3(
    plan: Any, model: str, changes: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    Path(model).write_text(json.dumps(TINY | changes))
    code, out, err = plan(model, *CARD, *words)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("name", "said"),
    [("lama-3-8b", "did you mean llama-3-8b"), ("qwen-image", "diffusion"), ("no/such", "plan --list")],
)
def test_a_name_that_is_not_there_offers_the_nearest(plan: Any, name: str, said: str) -> None:
    code, _, err = plan(name, *CARD)
    assert (code, err.count("\n")) == (3, 1)
    assert said in err


def test_a_model_that_does_not_fit_is_an_answer(plan: Any) -> None:
    code, out, err = plan("llama-3-70b", *CARD, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert not shown["answer"]["fits"]
    assert shown["answer"]["missing_bytes"] > 60e9
    assert shown["answer"]["users"] == 0
    assert shown["ways_to_fit"]
    assert "does not fit" in shown["words"]


def test_fewer_cards_with_a_narrower_format_are_a_way_to_fit(plan: Any) -> None:
    """Mixtral was said to fit on eight RTX 4090 alone: two hold it in int4."""
    shown = json.loads(plan("mixtral-8x7b", "--device", "rtx-4090", "--json")[1])
    assert shown["ways_to_fit"] == [{"devices": 2, "weights": "int4"}, {"devices": 8, "weights": None}]
    for way in shown["ways_to_fit"][:1]:
        words = ("--devices", str(way["devices"]), "--weights", way["weights"], "--json")
        assert json.loads(plan("mixtral-8x7b", "--device", "rtx-4090", *words)[1])["answer"]["fits"]


def test_what_does_not_fit_says_so_without_styles(plan: Any) -> None:
    """Rows of a sweep that memory does not hold were dim in a terminal, and like any other in a pipe."""
    part = ("--section", "sweep")
    out = plan("llama-3-70b", *CARD, "--devices", "2", "--input", "100", "--batch", "48", *part)[1]
    head = next(line for line in out.splitlines() if line.split()[:2] == ["batch", "ITL"])
    assert head.split()[-1] == "fits"
    rows = re.findall(r"^ *([\d,]+) .* x .* (yes|no)$", out, re.M)
    assert rows[0] == ("1", "yes")
    out = plan("llama-3-70b", *CARD, *part)[1]
    assert {fits for _, fits in re.findall(r"^ *([\d,]+) .* x .* (yes|no) *$", out, re.M)} == {"no"}
    answer = answered(plan("llama-3-70b", *CARD)[1])
    assert answer["fits"].startswith("NO: the device lacks")
    assert answer["speed"].startswith("if it fitted, a single user")
    assert "users" not in answer


def test_a_target_that_nobody_meets_has_no_0_users(plan: Any) -> None:
    words = ("llama-3-8b", *CARD, "--ttft", "1us")
    assert (
        "none within TTFT 0.001 ms and TPOT 50 ms: a single user gets a TTFT of" in answered(plan(*words)[1])["users"]
    )
    out = re.sub(r"\s+", " ", plan(*words, "--full")[1])
    assert "0 users" not in out
    assert "no user within the targets either" in out
    assert "fits, but misses the targets" in out


def test_the_line_and_the_paragraph_agree_on_what_is_scarce(plan: Any) -> None:
    out = re.sub(r"\s+", " ", plan("llama-3-8b", *CARD, "--full")[1])
    said = re.search(r"; twice the (\S+) would help most", out)
    assert said is not None
    assert f"more {said[1]} would help most" in out


def ranked(out: str) -> list[tuple[str, list[str]]]:
    """The cards of a comparison under the seller by whose prices they are ranked."""
    found: list[tuple[str, list[str]]] = []
    for line in out.splitlines():
        if re.search(r": (cheapest( tokens)?|fastest) first", line):
            found.append((line, []))
        elif found and (row := re.match(r"([a-z][\w-]+) +(?:\d+ x )?\d+ +\S+/\S+ ", line)):
            found[-1][1].extend({row[1]} - {*found[-1][1]})  # one of them also in the stored formats
    return found


def test_a_ranking_by_dollars_is_of_one_seller(plan: Any, model: str) -> None:
    """It looked like a ranking of hardware, of an A100 at one seller's $1.29 beside one at another's $4.10."""
    out = plan(model, "--compare", "--seller", "nebius")[1]
    (nebius, cards), (unpriced, others) = ranked(out)
    assert nebius.startswith("Nebius, on demand (20")
    assert sorted(cards) == ["b200", "h100-sxm", "h200-sxm", "l40s"]
    assert unpriced == "No price from Nebius, on demand: fastest first"
    assert "without a price: --seller verda, lambda, hyperstack" in re.sub(r"\s+", " ", out)
    assert {"a100-sxm-80gb", "rtx-4090", "mi300x"} <= set(others)
    shown = json.loads(plan(model, "--compare", "--seller", "nebius", "--json")[1])
    by_name = {card["card"]: card for card in shown["cards"]}
    assert by_name["h100-sxm"]["dollars_per_hour"] == 2.95
    assert by_name["h100-sxm"]["seller"] == nebius.partition(" (")[0]
    assert "SkyPilot" in by_name["h100-sxm"]["price"]["source"]
    assert by_name["mi300x"]["seller"] is None
    costs = [by_name[card]["dollars_per_million"] for card in cards]
    assert costs == sorted(costs)


def test_each_seller_of_a_compared_card_has_a_ranking(plan: Any) -> None:
    """Cards that one seller lacks stood under "No price known", though others have them."""
    some = ("llama-3-8b", "--compare-devices", "l40s,h200-sxm,rtx-4090,mi300x")
    found = ranked(plan(*some)[1])
    expected = {each.title: set(each.dollars) & {"l40s", "h200-sxm", "rtx-4090"} for each in builtin_snapshots()}
    by_seller = {head.partition(" (")[0]: set(cards) for head, cards in found[:-1]}
    assert by_seller == {title: cards for title, cards in expected.items() if cards}
    assert found[-1] == ("No price known: fastest first", ["mi300x"])
    assert [len(cards) for _, cards in found[:-1]] == sorted((len(cards) for _, cards in found[:-1]), reverse=True)
    shown = json.loads(plan(*some, "--json")[1])
    assert [each["cards"] for each in shown["sellers"]] == [len(cards) for _, cards in found]
    alone = json.loads(
        plan("llama-3-8b", "--compare-devices", "l40s", "--seller", "runcomfy", "--users", "90", "--json")[1]
    )
    (mine,) = [each for each in json.loads(plan(*some, "--users", "90", "--json")[1])["cards"]
               if each["card"] == "l40s" and each["seller"].startswith("RunComfy")]  # fmt: skip
    assert (mine["fleet"], mine["dollars_per_million"]) == (
        alone["cards"][0]["fleet"],
        alone["cards"][0]["dollars_per_million"],
    )


@pytest.mark.parametrize("demand", [("--rate", "3"), ("--users", "9")])
def test_a_demand_on_what_does_not_fit_is_answered(plan: Any, demand: tuple[str, str]) -> None:
    """It was dropped without a word."""
    said = answered(plan("llama-3-70b", *CARD, *demand)[1])["users"]
    assert "no number of replicas can serve this, because the model does not fit" in said


def test_a_card_that_serves_nobody_is_named_once(plan: Any) -> None:
    """Three sellers have an A100 of 40 GB, which does not hold this model."""
    out = plan("llama-3-70b", "--compare-devices", "a100-sxm-40gb,h100-sxm", "--slo", "tpot=1us")[1]
    assert out.count("a100-sxm-40gb") == 1


def test_own_cards_and_own_prices_join_a_comparison(plan: Any, model: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nkind = "gpu"\ntflops = { bf16 = 200 }\nbandwidth = 1500\nmemory = { mib = 49152 }\n'
        'price = { dollars = 0.9, date = "2026-11", source = "lambda" }\n'
    )
    mine, prices = str(tmp_path / "mine.toml"), tmp_path / "prices.toml"
    out = plan(model, "--compare-devices", f"l40s,{mine}")[1]
    assert [cards for _, cards in ranked(out)] == [["l40s"], ["l40s"], ["mine"]]
    assert "lambda (2026-11): cheapest tokens first" in out  # its own words, not those of a list of that name
    assert "mine" in [name for _, cards in ranked(plan(model, "--device", mine, "--compare")[1]) for name in cards]
    assert "$0.90 per device and hour (lambda, 2026-11)" in answered(plan(model, "--device", mine)[1])["cost"]
    prices.write_text(
        '[us]\ntitle = "Us"\ndate = "2026-11"\nsource = "bills"\ndollars = { l40s = 1, "h100-sxm" = 2 }\n'
    )
    out = plan(model, "--compare-devices", "l40s,h100-sxm,a10", "--prices", str(prices))[1]
    assert [(head[:12], sorted(cards)) for head, cards in ranked(out)] == [
        ("Us (2026-11)", ["h100-sxm", "l40s"]), ("No price in ", ["a10"]),
    ]  # fmt: skip
    prices.write_text('[us]\ntitle = "Us"\ndate = "2026-11"\nsource = "bills"\ndollars = { mine = 2.5 }\n')
    stated = ("--device", mine, "--prices", str(prices))
    assert "$2.50 per device and hour (Us, 2026-11)" in answered(plan(model, *stated)[1])["cost"]
    assert ("Us (2026-11): cheapest tokens first", ["mine"]) in ranked(plan(model, *stated, "--compare")[1])
    assert "$7.00 per device and hour" in answered(plan(model, *stated, "--price", "7")[1])["cost"]


def test_a_price_of_no_card_is_told(plan: Any, model: str, tmp_path: Path) -> None:
    """A slip of the hand in a name was taken without a word, and the card had no price."""
    prices, mine = tmp_path / "prices.toml", tmp_path / "mine.toml"
    form = '[us]\ntitle = "Us"\ndate = "2026-11"\nsource = "bills"\ndollars = {{ l40s = 1, {} = 2 }}\n'
    mine.write_text('title = "Mine"\nkind = "gpu"\ntflops = { bf16 = 200 }\nbandwidth = 1500\nmemory = { gb = 48 }\n')
    words = (model, "--card", "l40s", "--prices", str(prices))
    for name, offered in (("h100-smx", "h100-sxm or"), ("rtx4090", "rtx-4090?"), ("zzz", "")):
        prices.write_text(form.format(name))
        code, out, err = plan(*words)
        assert (code, err.count("\n")) == (0, 1)
        assert "$1.00 per device" in out
        assert f"prices.toml has prices of unknown devices: {name}" in err
        assert (f"(did you mean {offered}" in err) == bool(offered)
    prices.write_text(form.format("mine"))
    assert "mine" in plan(*words)[2]
    assert plan(*words, "--compare-devices", str(mine))[2] == ""
    assert plan(*words[:1], "--card", str(mine), *words[3:])[2] == ""


def test_this_machine_runs_ridgeline(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page said vLLM; beside other cards each has the engine that drives it."""
    monkeypatch.setattr(
        local_device, "this_device", cache(local_device.this_device)
    )  # a probe of two seconds serves all plans
    small = ("--input", "300", "--output", "9")
    for words, said in (
        (("--card", "this"), "on Ridgeline (--engine)"),
        (("--card", "cpu"), "on Ridgeline (--engine)"),
        (("--card", "this", "--engine", "vllm"), "on vLLM 0.14 and later (--engine)"),
        (("--compare-devices", "this,l40s,a10"), "on vLLM 0.14 and later, this on Ridgeline;"),
        (("--compare-devices", "l40s", "--engine", "ridgeline"), "on Ridgeline;"),
    ):
        assert said in re.sub(r"\s+", " ", plan("tales", *small, *words)[1])
    for flag in ("--card", "--compare-devices"):
        for device, notes in (("l40s", 0), ("mi300x", 1)):
            out = re.sub(r"\s+", " ", plan("tales", *small, flag, device, "--engine", "ridgeline")[1])
            assert out.count("Ridgeline does not run on this device yet (only on CPUs and NVIDIA GPUs)") == notes


def test_cards_without_kernel_times_are_marked_where_they_are_ranked(plan: Any) -> None:
    out = plan("llama-3-8b", "--compare-devices", "l40s,mi300x,rtx-4090")[1]
    marks = dict(re.findall(r"^(l40s|mi300x|rtx-4090) .* (own|NONE|family)  +\S", out, re.M))
    assert marks == {"l40s": "own", "mi300x": "NONE", "rtx-4090": "family"}


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_names_are_whole_and_prose_is_narrow(
    plan: Any, model: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of cards were cut in their middle, and sentences ran over 200 columns."""
    from ridgeline.util.document import terminal_renderer

    monkeypatch.setattr(terminal_renderer, "FILE_WIDTH", columns)
    monkeypatch.setattr(terminal_renderer.show, "__defaults__", (columns,))
    for words in ((model, "--compare", "--rate", "9"), ("--list",)):
        out = plan(*words)[1]
        assert set(device_names()) <= set(re.findall(r"[a-z][\w-]+", out))
        assert "…" not in out
        assert max(map(len, out.splitlines())) <= columns
    for words in ((model, *CARD), (model, *CARD, "--section", "words,terms")):
        assert max(map(len, plan(*words)[1].splitlines())) <= min(columns, 100)


def test_the_list_names_every_model_and_card(plan: Any) -> None:
    code, out, err = plan("--list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    sizes = {model["name"]: model["parameters"] for model in listed["models"]}
    assert sizes["llama-3-8b"] == 8_030_261_248
    assert len(sizes) >= 23
    assert {card["name"] for card in listed["cards"]} == set(device_names())
    code, out, err = plan("--list")
    assert (code, err) == (0, "")
    shown = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert {pipeline["name"] for pipeline in listed["pipelines"]} >= {"z-image", "z-image-turbo"}
    assert {*sizes, *device_names(), *(pipeline["name"] for pipeline in listed["pipelines"])} <= set(shown)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    assert re.search(r"h100-sxm +NVIDIA H100 SXM 80GB +80 +3,350 +989 +2.29 to 12.29", out)
    h100 = next(card for card in listed["cards"] if card["name"] == "h100-sxm")
    assert h100["dollars_per_hour"]["lambda"] == 4.29
    assert {each["seller"] for each in listed["sellers"]} >= set(h100["dollars_per_hour"])


def test_help_teaches_the_terms(plan: Any) -> None:
    code, out, _ = plan("--help")
    assert code == 0
    for term in ("TTFT", "ITL", "TPOT", "floor, bound and expected", "mean context"):
        assert term in re.sub(r"\s+", " ", out.replace("│", " "))


def test_the_engine_is_part_of_the_question(plan: Any, model: str) -> None:
    shown = {name: json.loads(plan(model, *CARD, "--engine", name, "--json")[1]) for name in ("vllm", "sglang")}
    assert [each["engine"]["name"] for each in shown.values()] == ["vllm", "sglang"]
    assert shown["vllm"]["engine"]["host_known"]
    assert not shown["sglang"]["engine"]["host_known"]
    unknown = answered(plan(model, *CARD, "--engine", "sglang")[1])["trust"]
    assert "the engine's own time per step is unknown" in unknown
    assert "on vLLM" in plan(model, "--compare-devices", "l40s")[1]
    assert "unknown engine 'vlm'; did you mean vllm" in plan(model, *CARD, "--engine", "vlm")[2]


def test_engines_of_published_measurements_are_not_planned_with(plan: Any) -> None:
    """`vllm-dp` gave one card's users, at the dollars of all cards; and vLLM's options for it were not known."""
    words = ("mixtral-8x7b", *CARD, "--devices", "2")
    for name in ("vllm-dp", "gpt-fast", "other"):
        code, out, err = plan(*words, "--engine", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"unknown engine '{name}'; " in err
        assert "the known engines are vllm, " in err
    for flags in (("--data-parallel-size", "2"), ("-dp", "2"), ("--enable-expert-parallel",)):
        code, out, err = plan(*words, *flags)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{' '.join(flags)} is not supported: " in err
        assert "--enable-dp-attention" in err
    assert plan("mixtral-8x7b", *CARD, "--data-parallel-size", "1", "--no-enable-expert-parallel")[0] == 0


def test_a_state_is_of_a_request_and_its_pages_of_bytes(plan: Any) -> None:
    """Mamba-2's, however long the request is: pages that hold states or positions are not of so many tokens."""
    memory = json.loads(plan("nemotron-h-8b", *CARD, "--json")[1])["memory"]
    assert (memory["page_size"], memory["kv_tokens"]) == (None, None)
    assert memory["concurrency"] == pytest.approx(memory["pages"] * memory["page_bytes"] / memory["request_bytes"])
    text = " ".join(plan("nemotron-h-8b", *CARD, "--section", "memory")[1].split())
    assert f"a state of {memory['state_bytes']:,.0f} bytes a request of any length" in text
    assert f"{memory['pages']:,} pages of {memory['page_bytes']:,} bytes" in text


def test_the_headline_counts_queues(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check replicas that the even arrivals fill up: their headline claimed the target, which the queue missed."""
    monkeypatch.setattr(tail_latency, "TOKENS", 100_000)
    asked = ("llama-3.1-8b", "--device", "a100-sxm-80gb", "--rate", "6", "--input", "4k", "--slo", "ttft=320ms")
    said, told = answered(plan(*asked)[1]), json.loads(plan(*asked, "--json")[1])
    queue, fleet = told["queue"], told["fleet"]
    mean, even = queue["metrics"]["latencies"]["ttft"]["mean"], queue["even_arrivals"]["replicas"]
    assert fleet["load"]["ttft"]["expected"] < mean <= 0.32
    assert queue["missed"] == []
    assert (fleet["replicas"] > even, queue["rate"]) == (True, pytest.approx(6 / fleet["replicas"]))
    headline = f"6.00 requests/s: {fleet['replicas']} replicas of one device within TTFT 320 ms on average, queues"
    assert f"{headline} included ({even} if arrivals were evenly spaced), at " in said["users"]
    assert said["users"].split(" [")[0] in " ".join(plan(*asked, "--short")[1].split())
    assert f"$ per hour for {fleet['replicas']} replicas".removeprefix("$") in said["cost"]
    assert f"replicas: {fleet['replicas']}" in plan(*asked, "--emit", "kubernetes")[1]


def test_a_short_plan_counts_the_users_of_the_simulation(plan: Any) -> None:
    """Check one number of users in all lines: the formula's stood next to simulated rates."""
    asked = ("qwen3-8b", "--device", "a100-sxm-80gb", "--rate", "5")
    queue = json.loads(plan(*asked, "--json")[1])["queue"]
    latencies = queue["metrics"]["latencies"]
    users = round(5 * (latencies["ttft"]["mean"] + 255 * latencies["tpot"]["mean"]))
    assert users != queue["even_arrivals"]["load"]["users"]
    short, said = " ".join(plan(*asked, "--short")[1].split()), answered(plan(*asked)[1])
    assert f"; {users} users at a time speed {users} users: {1 / latencies['tpot']['mean']:.1f} [" in short
    assert "of time)" not in short
    assert said["speed"].startswith(f"{users} users: ")
    assert f"(a step for {users} users: " in said["limit"]


def test_json_tells_capacity_from_demand(plan: Any) -> None:
    """Check figures of the most users and of the asked ones under keys of their own; the old keys mix them."""
    asked = ("qwen3-8b", "--device", "a100-sxm-80gb")
    alone, told = (json.loads(plan(*asked, *demand, "--json")[1]) for demand in ((), ("--rate", "9")))
    capacity, demand = told["answer"]["capacity"], told["answer"]["demand"]
    assert alone["answer"]["demand"] is None
    assert capacity == alone["answer"]["capacity"]
    for figures in (capacity, alone["answer"]):  # without a demand, the old keys are the capacity
        rate = figures["tokens_per_second"]
        rate = rate if isinstance(rate, float) else rate["expected"]
        assert rate == told["load"]["most"]["tokens_per_second"]["expected"]
        assert figures["dollars_per_million_tokens"] == pytest.approx(
            told["device"]["dollars_per_hour"] / 3600 / rate * 1e6
        )
        assert figures["users"] == told["answer"]["users"]
    fleet, latencies = told["fleet"], told["queue"]["metrics"]["latencies"]
    assert (demand["served"], demand["missed"], demand["simulated"]) == (True, [], True)
    assert (demand["replicas"], demand["cards"]) == (fleet["replicas"], fleet["cards"])
    assert demand["requests_per_second"] == 9
    assert (demand["ttft"], demand["tpot"]) == (latencies["ttft"]["mean"], latencies["tpot"]["mean"])
    hourly, tokens = demand["dollars_per_hour"], demand["tokens_per_second"]
    assert demand["dollars_per_million_tokens"] == pytest.approx(hourly / 3600 / tokens * 1e6)
    assert demand["dollars_per_million_tokens"] == told["answer"]["dollars_per_million_tokens"]
    for figures in (capacity, demand):
        for name, (low, high) in figures["intervals"].items():
            assert low <= figures[name] <= high
    refused = json.loads(plan(*asked, "--users", "9", "--ttft", "1ms", "--json")[1])["answer"]
    assert (refused["capacity"], refused["demand"]) == (None, {"served": False})


def test_an_engine_whose_times_are_the_default_ones_says_so(plan: Any) -> None:
    """Check the remark of engines of which only the memory rules are known, and that others have none."""
    asked = ("qwen3-8b", *CARD)
    times = {}
    for engine in ("vllm", "sglang", "llama.cpp", "tensorrt-llm"):
        told = json.loads(plan(*asked, "--engine", engine, "--json")[1])
        times[engine] = told["answer"]["ttft"]["expected"], told["answer"]["itl"]["expected"]
        remark = [note for note in told["model"]["notes"] if note.startswith("no measured difference in step times")]
        assert bool(remark) == (engine != "vllm" and times[engine] == times["vllm"])
    assert times["sglang"] == times["vllm"] != times["tensorrt-llm"]
    said = " ".join(plan(*asked, "--engine", "sglang")[1].split())
    assert (
        " note no measured difference in step times is known between SGLang 0.4 and later and vLLM 0.14 and later for "
        "bf16 weights on NVIDIA H100 SXM 80GB: only the rules for memory differ "
    ) in said
    # Kernel times of llama.cpp's formats are known.
    mix = plan(*asked, "--engine", "llama.cpp", "--weights", "q4_k_m")[1]
    assert "no measured difference" not in mix
    assert "\nnote " not in plan(*asked)[1]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_simulated_if_that_changes_it(plan: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Compare each section with and without a simulation, which takes three replicas instead of one."""
    simulated = []

    def simulate(serving: LoadEstimator, demand: Demand, even: ReplicaCount) -> Any:
        simulated.append(even.replicas)
        queue = SimulatedQueue("", (), fleet_of(serving, demand, 3), even, 0.1, (0.1, 0.2), 0.01, (0.01, 0.02), 9)
        return SimpleNamespace(queue=queue, tail=None)

    monkeypatch.setattr(demand_simulation, "simulate_demand", simulate)
    texts = []
    for wanted in (True, False):
        monkeypatch.setattr("ridgeline.cli.plan.needs_simulation", lambda _, wanted=wanted: wanted)
        texts.append(plan("qwen3-8b", "--device", "a100-sxm-80gb", "--rate", "5", "--section", name)[1])
    assert simulated == [1]
    assert (texts[0] != texts[1]) == needs_simulation((name,))


@pytest.mark.parametrize("words", [("--section", "memory,weights"), ("--compare-devices", "l4,l40s")])
def test_what_states_no_demand_is_not_simulated(
    plan: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(demand_simulation, "simulate_demand", lambda *_: pytest.fail("it was simulated"))
    code, out, _ = plan("qwen3-8b", "--device", "a100-sxm-80gb", "--users", "9", *words)
    assert (code, bool(out)) == (0, True)


@pytest.mark.parametrize("demand", [("--users", "6"), ("--rate", "2")])
def test_a_whole_run_is_not_a_steady_state(plan: Any, demand: tuple[str, ...]) -> None:
    """Check that the lines say which of both they are, and that ramp-up and drain lower the throughput of users.

    At a rate, 20 random arrivals may be closer together than those of a long run.
    """
    asked = ("llama-3.1-8b", *CARD, *demand)
    run = "a run of 20 requests, ramp-up and drain included"
    said, told = (
        answered(plan(*asked, "--requests", "20")[1]),
        json.loads(plan(*asked, "--num-prompts", "20", "--json")[1]),
    )
    steady, known = answered(plan(*asked)[1]), json.loads(plan(*asked, "--json")[1])
    assert f" within TTFT 1 s and TPOT 50 ms on average over {run}, at " in said["users"]
    assert f"(simulated, {run}; by formula, if arrivals were evenly spaced: " in said["speed"]
    assert "(simulated, a steady state; by formula, " in steady["speed"]
    assert (told["demand"]["requests"], known["demand"]["requests"]) == (20, None)
    assert (told["queue"]["requests"], known["queue"]["requests"]) == (20, None)
    assert told["queue"]["metrics"]["requests"] == 20
    assert told["fleet"]["tokens_per_second"] == pytest.approx(told["queue"]["metrics"]["tokens_per_second"])
    ratio = told["fleet"]["tokens_per_second"] / known["fleet"]["tokens_per_second"]
    assert ratio < 0.95 if "--users" in demand else ratio != 1
    assert told["fleet"]["dollars_per_million"] == pytest.approx(known["fleet"]["dollars_per_million"] / ratio)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("qwen3-235b-a22b", "--devices", "8", "--enable-dp-attention"), "not supported for --enable-dp-attention"),
        (("whisper-large-v3-turbo",), "not supported for whisper-large-v3-turbo, an encoder-decoder"),
        (("bge-m3",), "generates no text"),
        (("FLUX.1-schnell",), "--requests"),
    ],
)
def test_a_run_that_cannot_be_simulated_is_refused(plan: Any, words: tuple[str, ...], says: str) -> None:
    code, out, err = plan(*words, *CARD, "--users", "8", "--requests", "9")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


JOB = ("llama-3.1-8b", *CARD, "--requests", "200k", "--within", "1h", "--input", "2k", "--output", "100")


def test_a_batch_job_is_done_in_time_for_so_many_dollars(plan: Any, tmp_path: Path) -> None:
    code, out, err = plan(*JOB, "--price", "2", "--report", str(tmp_path / "job.html"))
    assert (code, err) == (0, f"report written to {tmp_path / 'job.html'}\n")
    said, told = answered(out), json.loads(plan(*JOB, "--price", "2", "--json")[1])
    fleet, job, known = told["fleet"], told["fleet"]["job"], told["answer"]
    assert (job["requests"], job["within"], told["queue"]) == (200_000, 3600, None)
    assert job["seconds"] == known["job_seconds"] == job["start"] + job["run"] <= 3600
    assert known["job_dollars"] == pytest.approx(2 * fleet["replicas"] * job["seconds"] / 3600)
    load = told["trust"]["intervals"]["load"]
    low, high = known["intervals"]["job_seconds"]
    fastest = max(job["run"] * load["low"], job["floor"])  # the floor is the later of the two here
    assert fastest == job["floor"]
    assert (low, high) == pytest.approx((job["start"] + fastest, job["start"] + job["run"] * load["high"]))
    share = known["job_dollars"] / job["seconds"]
    assert known["intervals"]["job_dollars"] == pytest.approx([low * share, high * share])
    done = f"done in {say_duration(job['seconds'])} {durations_between(low, high)}"
    done += f" for ${three_digits(known['job_dollars'])} {costs_between(low * share, high * share)}"
    assert said["job"].startswith(done)
    late = (3600 - job["start"]) / job["run"]
    assert said["job"].endswith(f"late if times are above x {three_digits(late)} of the predicted ones")
    assert said["users"].startswith(f"200,000 requests within 1.00 h: {fleet['replicas']} replicas of one device, kept")
    assert f"{fleet['load']['users']} users at a time on each replica; memory has no room" in said["users"]
    assert f"cost   {done}" in " ".join(plan(*JOB, "--price", "2", "--short")[1].split()).replace("cost ", "cost   ")
    page = (tmp_path / "job.html").read_text()
    assert "duration of the job" in page
    assert "cost of the job" in page


def test_a_batch_job_only_has_the_targets_that_are_given(plan: Any) -> None:
    free, held = (json.loads(plan(*JOB, "--json", *more)[1]) for more in ((), ("--slo", "tpot=15ms")))
    assert (free["workload"]["ttft"], free["workload"]["tpot"]) == (None, None)
    assert held["fleet"]["load"]["tpot"]["expected"] <= 0.015
    assert held["fleet"]["load"]["users"] < free["fleet"]["load"]["users"]
    assert held["fleet"]["job"]["dollars"] > 1.2 * free["fleet"]["job"]["dollars"]
    emitted = plan(*JOB, "--emit", "kubernetes")[1]
    assert f"replicas: {free['fleet']['replicas']}" in emitted
    assert f"; 200,000 requests are done in {say_duration(free['answer']['job_seconds'])}\n" in emitted


def test_a_comparison_of_a_batch_job(plan: Any) -> None:
    asked = (*JOB[:1], *JOB[3:], "--compare-devices", "l40s,h100-sxm,a100-sxm-80gb", "--seller", "nebius")
    out, told = plan(*asked)[1], json.loads(plan(*asked, "--json")[1])
    first = told["cards"][0]["fleet"]
    assert "devices for 200,000 requests within 1.00 h, on vLLM" in " ".join(out.split())
    assert "cheapest job first" in out
    row = next(line for line in out.splitlines() if line.startswith(told["cards"][0]["card"]))
    assert f"{say_duration(first['job']['seconds'])} {three_digits(first['job']['dollars'])} " in " ".join(row.split())
    priced = [card["fleet"]["job"]["dollars"] for card in told["cards"][: told["sellers"][0]["cards"]]]
    assert priced == sorted(priced)


def test_a_batch_job_that_is_late_says_why(plan: Any) -> None:
    said = answered(plan("llama-3.1-8b", "--device", "l4", "--requests", "1k", "--within", "7s", "--output", "100")[1])
    assert said["users"].startswith(
        "1,000 requests within 7.00 s: no number of replicas of one device can serve this; "
    )
    assert "a single request takes " in said["users"]
    assert said["users"].endswith("; give a longer --within, or more --devices")


def test_a_cached_part_of_prompts(plan: Any) -> None:
    """Check that all figures follow, and that a share and its tokens are the same."""
    asked = ("llama-3.1-8b", *CARD, "--input", "2k", "--slo", "ttft=1s,tpot=30ms")
    plain, share, tokens = (
        json.loads(plan(*asked, *more, "--json")[1]) for more in ((), ("--cached", "75%"), ("--cached", "1.5k"))
    )
    assert (plain["workload"]["cached"], share["workload"]["cached"], share) == (0, 1536, tokens)
    assert share["answer"]["users"] > 1.3 * plain["answer"]["users"]
    assert share["prefill"]["tokens"] == 512
    assert share["memory"] == plain["memory"]
    out = " ".join(plan(*asked, "--cached", "75%", "--section", "words")[1].split())
    assert "2,048 tokens (1,536 cached)" in out
    command = plan(*asked, "--cached", "75%", "--emit", "vllm")[1]
    assert "--enable-prefix-caching" in command
    assert "prefix cache on" in command
    assert "--enable-prefix-caching" not in plan(*asked, "--emit", "vllm")[1]


@pytest.mark.parametrize("name", ["whisper-large-v3-turbo", "bge-m3", "FLUX.1-schnell"])
def test_what_has_no_prefix_cache_refuses_a_cached_part(plan: Any, name: str) -> None:
    code, out, err = plan(name, *CARD, "--cached", "50%")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--cached is for " in err


@pytest.mark.parametrize(
    ("text", "tokens"), [("0", 0), ("0%", 0), ("70%", 1434), ("12.5 %", 256), ("100%", 2048), ("1k", 1024)]
)
def test_a_share_of_tokens(text: str, tokens: int) -> None:
    assert parse_share(text, 2048, "--cached") == tokens


def test_replicas_for_the_slow_end_of_the_interval(plan: Any) -> None:
    """Check that the simulated search is at the slow end, and that the other figures are expected ones."""
    asked = ("llama-3.1-8b", *CARD, "--rate", "15", "--slo", "ttft=4s,tpot=200ms")
    middle, told = (json.loads(plan(*asked, *more, "--json")[1]) for more in ((), ("--pessimistic",)))
    factor = told["trust"]["intervals"]["load"]["high"]
    assert (middle["answer"]["replicas_as_predicted"], middle["demand"]["pessimistic"]) == (None, False)
    assert (told["answer"]["replicas_as_predicted"], told["demand"]["pessimistic"]) == (1, True)
    assert told["fleet"]["replicas"] > middle["fleet"]["replicas"]
    latencies = told["queue"]["metrics"]["latencies"]
    assert told["queue"]["rate"] == pytest.approx(15 / told["fleet"]["replicas"])
    assert latencies["ttft"]["mean"] * factor < 4
    assert latencies["tpot"]["mean"] * factor < 0.2
    said = answered(plan(*asked, "--pessimistic")[1])["users"]
    assert (
        f", also if times are x {three_digits(factor)} of the predicted ones (as predicted, by formula: 1), at " in said
    )


def test_no_number_of_replicas_at_the_slow_end(plan: Any) -> None:
    asked = ("llama-3.1-8b", *CARD, "--users", "9", "--slo", "tpot=10ms", "--pessimistic")
    said = answered(plan(*asked)[1])["users"]
    factor = three_digits(json.loads(plan(*asked, "--json")[1])["trust"]["intervals"]["load"]["high"])
    assert f"can serve this if times are x {factor} of the predicted ones; a single user misses TPOT; leave out" in said
    compared = " ".join(
        plan(*asked[:1], *asked[3:], "--compare-devices", "h100-sxm,l4", "--devices", "1", "--weights", "bf16")[
            1
        ].split()
    )
    assert "misses the targets even with one user, at the slow end of the interval: h100-sxm" in compared


def test_a_target_that_queues_miss_on_any_number_of_replicas(plan: Any) -> None:
    """Check a target just above the time of a prompt of the mean length: longer ones take more than their share."""
    asked = ("llama-3.1-8b", "--device", "a100-sxm-80gb", "--rate", "6", "--input", "4k", "--slo", "ttft=262ms")
    told = json.loads(plan(*asked, "--json")[1])
    assert told["queue"]["missed"] == ["TTFT"]
    assert told["fleet"]["replicas"] == told["queue"]["even_arrivals"]["replicas"]
    said = answered(plan(*asked)[1])["users"]
    assert "would miss TTFT because of queues (targets: TTFT 262 ms), at " in said


def test_a_target_that_queues_miss_at_the_slow_end(plan: Any) -> None:
    """Check that the line does not say that the replicas serve the load at the slow end, too."""
    asked = ("llama-3.1-8b", "--device", "a100-sxm-80gb", "--rate", "6", "--input", "4k", "--slo", "ttft=535ms")
    told = json.loads(plan(*asked, "--pessimistic", "--json")[1])
    assert told["queue"]["missed"] == ["TTFT"]
    factor = three_digits(told["trust"]["intervals"]["load"]["high"])
    said = answered(plan(*asked, "--pessimistic")[1])["users"]
    assert f" would miss TTFT because of queues if times are x {factor} of the predicted ones (targets: " in said
    assert "also if" not in said


def test_simulated_and_even_figures_are_told_apart(plan: Any) -> None:
    """Check that each is named, and that the line has the figures of --json."""
    asked = ("llama-3.1-8b", *CARD, "--users", "9")
    said, told = answered(plan(*asked)[1]), json.loads(plan(*asked, "--json")[1])
    assert " within TTFT 1 s and TPOT 50 ms on average, queues included, at " in said["users"]
    assert said["users"].endswith("% of capacity for evenly spaced arrivals; 9 users at a time")
    simulated, even = told["queue"]["metrics"], told["fleet"]["load"]
    ttft, tpot = (simulated["latencies"][name]["mean"] for name in ("ttft", "tpot"))
    total, each = told["fleet"]["tokens_per_second"], even["tokens_per_second_per_user"]["expected"]
    assert total == pytest.approx(simulated["tokens_per_second"])
    around, known = error_intervals()["load", "timed"], told["queue"]["intervals"]
    ceiling = even["tokens_per_second"]["floor"]
    assert known["ttft"]["mean"] == pytest.approx(around.around_time(ttft))
    assert known["tpot"]["mean"] == pytest.approx(around.around_time(tpot))
    assert said["speed"].startswith(
        f"9 users: mean TTFT {say_seconds(ttft)} {time_interval(around, ttft)}, then {three_digits(1 / tpot)} "
        f"{rate_interval(around, 1 / tpot)} tok/s each, {three_digits(total)} {rate_interval(around, total, ceiling)} "
        "in total (simulated, a steady state; by formula, if arrivals were evenly spaced: mean TTFT "
        f"{say_seconds(even['ttft']['expected'])}, {three_digits(each)} tok/s each, "
        f"{three_digits(even['tokens_per_second']['expected'])} in total, with the factors under load); a single user: "
    )
    assert 0 < told["queue"]["mean_errors"]["ttft"] < 0.5
    assert "simulated" not in plan("llama-3.1-8b", *CARD)[1]
