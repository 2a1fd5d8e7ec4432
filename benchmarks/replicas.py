"""Replicas on Ray under `bench serve`: two on two cores beside one on one core, one killed under load, and `simulate`.

    python benchmarks/replicas.py rate [--streams 64] [--requests 640]
    python benchmarks/replicas.py kill [--streams 64] [--requests 640]

`rate` runs the same load three times: one engine with its server and the client on one core; the same with a core for
the engine and another for the others; two replicas with both cores for all. Of each it says the tokens a second and who
had the processors. `kill` runs it on two replicas, kills the engine of one in the middle, and says what became of all
requests, with the server's log. Beside both stands what `simulate` says of the same fleet. Nothing else should run.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import processor_seconds, started

MODEL, INPUT, OUTPUT = "tales", 32, 128
RIDGELINE = [sys.executable, "-m", "ridgeline"]
SHOWN = ("requests", "ok", "failed", "rejected", "unfinished", "reasons", "duration", "tokens_per_second")
BOTH, ONE, OTHER = "0,1", "0", "1"


@dataclass
class Up:
    """A server under test: where it is, its own process, those of its engines, its log."""

    url: str
    pid: int
    engines: list[int]
    log: Path

    def replicas(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/v1/replicas") as answer:
            found: list[dict[str, Any]] = json.load(answer)["replicas"]
        return found


@contextmanager
def serving(replicas: int, cores: str, *more: str) -> Iterator[Up]:
    """A server of so many replicas, on these cores; one is served without Ray."""
    command = ["taskset", "-c", cores, *RIDGELINE, "serve", MODEL, "--port", "0", "--no-access-log", "--threads", "1"]
    command += [*more, *(["--replicas", str(replicas)] if replicas > 1 else [])]
    with started(command) as (url, pid, log):
        up = Up(url, pid, [], log)
        up.engines = engines(up) if replicas > 1 else descendants(pid, b"ridgeline.engine.worker.engine_child")
        yield up


def engines(up: Up) -> list[int]:
    return [int(re.findall(r"process (\d+)", each["where"])[0]) for each in up.replicas()]


def descendants(pid: int, named: bytes = b"") -> list[int]:
    """Processes below one, all or those whose command has a name in it."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                parents[int(folder.name)] = int(stat[1]), (folder / "cmdline").read_bytes()
            except OSError:
                continue
    found, below = list[int](), [pid]
    while below:
        parent = below.pop()
        children = [child for child, (of, _) in parents.items() if of == parent]
        below += children
        found += [child for child in children if named in parents[child][1]]
    return found


def load(url: str, cores: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """What `bench serve` says of a run, and the seconds of processor that it took."""
    command = ["taskset", "-c", cores, *RIDGELINE, "bench", "serve", url, "--concurrency", str(arguments.streams)]
    command += ["--requests", str(arguments.requests), "--input", str(INPUT), "--output", str(OUTPUT), "--seed", "1"]
    command += ["--processes", "1", "--max-errors", "1", "--json"]
    before = os.times()
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    after = os.times()
    if not answer.stdout:
        raise SystemExit(answer.stderr)
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    found: dict[str, Any] = json.loads(answer.stdout)
    return found, taken


def rate(arguments: argparse.Namespace) -> None:
    """Rows of the table."""
    print("| replicas, cores | tok/s | TPOT p50 | engines | server | client | Ray's own |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for replicas, name, of_engine, of_others in (
        (1, "1, one core for all", ONE, ONE),
        (1, "1, one core and one for server and client", ONE, OTHER),
        (2, "2, two cores for all", BOTH, BOTH),
    ):
        with serving(replicas, BOTH) as up:
            for pid, cores in ((up.pid, of_others), *((engine, of_engine) for engine in up.engines)):
                subprocess.run(["taskset", "-a", "-p", "-c", cores, str(pid)], check=True, capture_output=True)
            rest = set(descendants(up.pid)) - set(up.engines)
            before = {pid: processor_seconds(pid) for pid in (up.pid, *up.engines, *rest)}
            started = time.perf_counter()
            found, client = load(up.url, of_others, arguments)
            seconds = time.perf_counter() - started
            used = {pid: processor_seconds(pid) - before[pid] for pid in before if Path(f"/proc/{pid}").exists()}
            shares = [
                sum(used[pid] for pid in up.engines) / seconds,
                used[up.pid] / seconds,
                client / seconds,
                sum(used[pid] for pid in rest & used.keys()) / seconds,
            ]
            said = " | ".join(f"{share:.0%}" for share in shares)
            print(f"| {name} | {found['metrics']['tokens_per_second']:.0f} | {tpot(found)} | {said} |", flush=True)


def tpot(found: dict[str, Any]) -> str:
    """The median; none where the client was late by too much to tell."""
    told = (found["metrics"]["latencies"] or {}).get("tpot")
    return "-" if told is None else f"{1e3 * told['p50']['mid']:.1f} ms"


def kill(arguments: argparse.Namespace) -> None:
    """One of two dies under load: what bench serve saw, what the server logged."""
    with serving(2, BOTH, "--max-requests", str(arguments.running)) as up:

        def later() -> None:
            time.sleep(arguments.after)
            os.kill(up.engines[0], signal.SIGKILL)

        threading.Thread(target=later, daemon=True).start()
        found, _ = load(up.url, BOTH, arguments)
        while [each["state"] for each in up.replicas()] != ["ready", "ready"]:
            time.sleep(0.1)
        with urllib.request.urlopen(f"{up.url}/v1/replicas") as answer:
            said = json.load(answer)
        print({name: found["metrics"][name] for name in SHOWN if name in found["metrics"]})
        print(f"retried: {said['retried']}; restarts: {[each['restarts'] for each in said['replicas']]}")
        print(up.log.read_text())


def simulated(replicas: int, arguments: argparse.Namespace) -> None:
    """What `simulate` says of the same fleet and load."""
    command = [*RIDGELINE, "simulate", MODEL, "--device", "this", "--replicas", str(replicas), "--json"]
    command += ["--users", str(arguments.streams), "--requests", str(arguments.requests)]
    command += ["--input", str(INPUT), "--output", str(OUTPUT)]
    command += ["--router", "least", "--signal-age", "0s"] if replicas > 1 else []
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    print(f"simulate, {replicas}: {json.loads(answer.stdout)['figures']['tokens_per_second']['mid']:.0f} tok/s")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rate", "kill"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--running", type=int, default=16, help="of kill: requests that an engine runs at a time")
    parser.add_argument("--after", type=float, default=4.0, help="of kill: seconds until it is")
    arguments = parser.parse_args(given)
    rate(arguments) if arguments.what == "rate" else kill(arguments)
    for replicas in (1, 2):
        simulated(replicas, arguments)


if __name__ == "__main__":
    main()
