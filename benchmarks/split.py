"""Prompts and answers apart: what a prompt's pages take on their way, what a client sees, beside `simulate --split`.

    python benchmarks/split.py transfers MODEL [--dummy-weights]
    python benchmarks/split.py load MODEL [--dummy-weights] [--rate 0.3] [--requests 30] [--only 0]

`transfers` asks a server of one engine for prompts and one for answers (a thread each) for prompts of rising length,
as far as the model's context goes, one at a time, and says what their pages took beside what the connection's speed
said, and when the first token came.
`load` runs the same requests on that server, on one engine with both cores, and on that with smaller steps; beside each
stands what `simulate` says of it. Nothing else should run.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from serving import started

RIDGELINE = [sys.executable, "-m", "ridgeline"]
LENGTHS, ROUNDS = (66, 130, 258, 514, 1026), 3
INPUT, OUTPUT = 256, 32
WAYS: tuple[tuple[str, Sequence[str]], ...] = (
    ("apart, a thread each", ("--split", "1:1", "--threads", "1")),
    ("together, two threads", ("--threads", "2")),
    ("together, two threads, 64 positions a step", ("--threads", "2", "--max-batch-tokens", "64")),
)
SHOWN = (("ttft", "p50"), ("ttft", "max"), ("tpot", "p50"), ("worst_gap", "p50"), ("itl", "max"))


@contextmanager
def serving(model: str, *more: str) -> Iterator[str]:
    """The URL of a server."""
    with started([*RIDGELINE, "serve", model, "--port", "0", "--no-access-log", *more]) as (url, _, log):
        print("\n".join(re.findall(r"the prefill engine at .* is connected.*", log.read_text())), flush=True)
        yield url


def metric(url: str, name: str) -> float:
    """What /metrics says of the engine that writes answers."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        said = answer.read().decode()
    return float(re.findall(rf'^ridgeline:{name}{{engine="0".*}} (.*)$', said, re.MULTILINE)[0])


def lengths(url: str) -> Sequence[int]:
    """Those of LENGTHS that the model's context has room for, with a token of the answer."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        context = json.load(answer)["data"][0]["max_model_len"]
    found = [length for length in LENGTHS if length < context]
    if len(found) < len(LENGTHS):
        print(f"prompts of {LENGTHS[len(found)]} and more are left out: the context is {context}", file=sys.stderr)
    return found


def first_token(url: str, prompt: Sequence[int]) -> float:
    """Milliseconds until it came."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True}).encode()
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked) as answer:
            return float(json.load(answer)["timings"]["first_token_ms"])
    except urllib.error.HTTPError as error:
        said = json.load(error)["error"]["message"]
        raise SystemExit(f"a prompt of {len(prompt)} ids is refused: {said}") from None


def transfers(arguments: argparse.Namespace) -> None:
    """Rows of the table."""
    draw = random.Random(0)
    with serving(arguments.model, *arguments.more, "--split", "1:1", "--threads", "1") as url:
        print("| prompt | MB sent | ms on their way (predicted) | ms to the first token |")
        print("| --- | --- | --- | --- |")
        for length in lengths(url):
            names = ("kv_transfer_bytes_total", "kv_transfer_seconds_sum", "kv_transfer_predicted_seconds_sum")
            rounds = list[tuple[float, ...]]()
            for _ in range(ROUNDS):
                before = [metric(url, name) for name in names]
                first = first_token(url, [draw.randrange(1, 1000) for _ in range(length)])
                rounds.append((*(metric(url, name) - known for name, known in zip(names, before, strict=True)), first))
            nbytes, took, predicted, waited = map(median, zip(*rounds, strict=True))
            print(
                f"| {length} | {nbytes / 1e6:.1f} | {1e3 * took:.1f} ({1e3 * predicted:.1f}) | {waited:.0f} |",
                flush=True,
            )


def load(arguments: argparse.Namespace) -> None:
    """Rows of the table: what a client saw, and what is predicted."""
    print("| | " + " | ".join(f"{name} {point}" for name, point in SHOWN) + " |")
    print("| --- " * (1 + len(SHOWN)) + "|")
    asked = ["--rate", str(arguments.rate), "--requests", str(arguments.requests)]
    asked += ["--input", str(INPUT), "--output", str(OUTPUT), "--seed", "1", "--json"]
    for place, (name, options) in enumerate(WAYS):
        if arguments.only is not None and place != arguments.only:
            continue
        with serving(arguments.model, *arguments.more, *options) as url:
            told = answered([*RIDGELINE, "bench", "serve", url, *asked, "--processes", "1"])
        print(f"| {name} | {row(told['metrics']['latencies'])} |", flush=True)
        command = [*RIDGELINE, "simulate", arguments.model, "--device", "this", *asked]
        if options[options.index("--threads") + 1] == "1":
            command = ["taskset", "-c", "0", *command]
        command += ["--split", "1:1", "--link", arguments.link, "--signal-age", "0s"] if "--split" in options else []
        command += ["--max-batch-tokens", "64"] if "--max-batch-tokens" in options else []
        print(f"| the same, simulated | {row(answered(command)['metrics']['latencies'])} |", flush=True)


def answered(command: Sequence[str]) -> Any:
    """What a command says in JSON."""
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if not answer.stdout:
        raise SystemExit(answer.stderr)
    return json.loads(answer.stdout)


def row(latencies: dict[str, Any] | None) -> str:
    """Milliseconds; none where the client was late by too much to tell."""
    found = [((latencies or {}).get(name) or {}).get(point) for name, point in SHOWN]
    seconds = [each["mid"] if isinstance(each, dict) else each for each in found]
    return " | ".join("-" if each is None else f"{1e3 * each:.0f}" for each in seconds)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("transfers", "load"))
    parser.add_argument("model")
    parser.add_argument("--dummy-weights", action="store_true")
    parser.add_argument("--rate", type=float, default=0.3, help="requests a second")
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument(
        "--link", default="1GB/s", help="what simulate takes for the connection: as the server's log says"
    )
    parser.add_argument("--only", type=int, default=None, help="of load: this one of its servers, from 0")
    arguments = parser.parse_args(given)
    arguments.more = ["--dummy-weights"] if arguments.dummy_weights else []
    transfers(arguments) if arguments.what == "transfers" else load(arguments)


if __name__ == "__main__":
    main()
