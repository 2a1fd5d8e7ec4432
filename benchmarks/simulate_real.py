"""A simulated server beside the real one: `serve` under `bench serve`, and `simulate` of the same requests.

    ridgeline calibrate --threads 1
    python benchmarks/simulate_real.py tales even [--seconds 45] [--repeats 3]

The engine's process has one core, the server's and the client's another; nothing else should run. A trace is written,
replayed so many times with a probe of the machine beside each run, and simulated from its lengths and moments, with
the pages and limits that the server says it has, at the calibrated price: nothing is fitted to the runs.
TTFT is the client's, from the intended moment; `engine` is the server's own, without HTTP. Printed are rows of
benchmarks/simulate.md.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import torch

from ridgeline.calibrate.file import load
from ridgeline.calibrate.probe import Probe
from ridgeline.calibrate.roofs import beyond_caches, stated_caches
from ridgeline.calibrate.this import this_device
from ridgeline.calibrate.timer import Timer
from ridgeline.checkpoint.source import read_config
from ridgeline.engine.scheduler import Limits
from ridgeline.roofline.engine_profile import load_engine
from ridgeline.roofline.plan.case import ModelCache, Setup
from ridgeline.simulate.asked import Asked, price_error
from ridgeline.simulate.findings import Findings, simulate
from ridgeline.simulate.setup import machine_of
from ridgeline.traffic.arrivals import gamma, poisson
from ridgeline.traffic.lengths import Uniform
from ridgeline.traffic.offered import OpenLoop, bounded, drawn, hurried
from ridgeline.traffic.trace import TraceRequest, read_trace
from serving import Server, serving

SEED = 16
GOALS = {"TTFT p50": 0.15, "TPOT p50": 0.10, "tokens a second": 0.05}
CORES = (0, 1)  # the engine's, and everybody else's
AZURE = Path("traces/AzureLLMInferenceTrace_conv.csv")


@dataclass(frozen=True)
class Load:
    """What a model is asked: tokens in and out of drawn requests, how many a second, by what a recorded length is
    divided so that it fits, and how many times as fast a recorded hour goes."""

    given: Uniform
    made: Uniform
    rate: float
    shrink: float
    speed: float


LOADS = {
    "tales": Load(Uniform(20, 120), Uniform(20, 120), 20.0, 16.0, 8.0),
    "0.6 B": Load(Uniform(16, 64), Uniform(8, 24), 0.8, 32.0, 0.25),
}


def requests_of(kind: str, load: Load, seconds: float) -> Iterator[TraceRequest]:
    """Those of one of the three traces. even: Poisson. bursts: of gaps whose coefficient of variation is 2. azure: the
    moments and lengths of a recorded conversation trace."""
    until = round(seconds * 1e9)
    if kind == "azure":
        recorded = read_trace(Path(os.environ["RIDGELINE_DATA"]) / AZURE)
        shrunk = (
            TraceRequest(each.at, max(4, round(each.input / load.shrink)), max(2, round(each.output / load.shrink)))
            for each in recorded
        )
        return bounded(hurried(shrunk, load.speed), None, until)
    moments = poisson(load.rate, SEED) if kind == "even" else gamma(load.rate, 0.25, SEED)
    return bounded(drawn(moments, load.given, load.made, SEED), None, until)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """As Azure's are."""
    start = datetime(2026, 1, 1)
    with path.open("w", encoding="ascii") as file:
        print("TIMESTAMP,ContextTokens,GeneratedTokens", file=file)
        for each in requests:
            stamp = start + timedelta(microseconds=each.at // 1000)
            print(f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{each.input},{each.output}", file=file)


# -- the real one -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Real:
    """What the client of one run saw, in seconds, request by request; of those that came after a moment."""

    ttft: list[float]
    tpot: list[float]
    engine: list[float]
    tokens_per_second: float
    failed: int

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]], since: float) -> "Real":
        """Of the lines that `bench serve --csv` wrote."""
        ok = [row for row in rows if row["outcome"] == "ok" and float(row["intended"]) >= since]
        span = max(float(row["last_token"]) for row in ok) - min(float(row["intended"]) for row in ok)
        return cls(
            [float(row["ttft"]) for row in ok],
            [float(row["tpot"]) for row in ok if row["tpot"]],
            [float(row["server_ttft"]) for row in ok if row["server_ttft"]],
            sum(int(row["output_tokens"]) for row in ok) / span,
            sum(row["outcome"] != "ok" for row in rows),
        )


def pin(pid: int, core: int) -> None:
    """Every thread of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def bench(server: Server, trace: Path, csv_file: Path, vocabulary: int) -> list[dict[str, str]]:
    """One run of the client: its lines."""
    command = [sys.executable, "-m", "ridgeline", "bench", "serve", server.url, "--trace", str(trace)]
    command += ["--token-ids", str(vocabulary), "--csv", str(csv_file), "--force", "--processes", "1", "--seed", "1"]
    command += ["--duration", "600s"]  # longer than any trace: else it ends after 100 requests
    own_core = partial(os.sched_setaffinity, 0, {CORES[1]})
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=own_core)
    with csv_file.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def limits_of(server: Server) -> dict[str, int]:
    """context, requests, step_tokens, page_size and pages, as the engine says them."""
    with urllib.request.urlopen(f"{server.url}/v1/engine/state") as answer:
        found: dict[str, int] = json.load(answer)["limits"]
        return found


# -- the simulated one ------------------------------------------------------------------------------------------------


def simulated(model: str, trace: Path, limits: dict[str, int]) -> Findings:
    """The same requests to the same limits, on this processor's price with one thread."""
    device = this_device(1)
    case = ModelCache(read_config(model)).case(Setup(device, engine=load_engine("ridgeline")))
    machine = machine_of(
        case,
        Limits(tokens=limits["step_tokens"], requests=limits["requests"]),
        context=limits["context"],
        pages=limits["pages"],
        page_size=limits["page_size"],
    )
    error = price_error(case.device, 1)
    return simulate(Asked(model, machine, "", True, lambda: OpenLoop(read_trace(trace)), None, error, 0))


def row(cells: Iterable[object]) -> str:
    """Of a table in Markdown."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(name: str, kind: str, runs: Sequence[Real], found: Findings) -> Iterator[str]:
    """A line a metric: simulated with its interval, the median of the runs with their ends, how far apart they are."""
    milli = 1e3
    throughput = found.metrics.tokens_per_second
    others = (found.cheap.tokens_per_second, throughput, found.dear.tokens_per_second)
    lines = []
    for metric, latency, real in (
        ("TTFT p50", "TTFT", [statistics.median(run.ttft) for run in runs]),
        ("TPOT p50", "TPOT", [statistics.median(run.tpot) for run in runs]),
    ):
        at = found.latency(latency, 50)
        if at is not None:
            lines.append((metric, at.low * milli, at.mid * milli, at.high * milli, [each * milli for each in real]))
    real = [run.tokens_per_second for run in runs]
    lines.append(("tokens a second", min(others), throughput, max(others), real))
    for metric, low, mid, high, each in lines:
        middle = statistics.median(each)
        error, within = mid / middle - 1, low <= middle <= high
        cells = (f"{mid:.3g} ({low:.3g} .. {high:.3g})", f"{middle:.3g} ({min(each):.3g} .. {max(each):.3g})")
        verdict = "yes" if abs(error) <= GOALS[metric] else "**no**"
        yield row((name, kind, metric, *cells, f"{error:+.1%}", verdict, "yes" if within else "**no**"))
    engine = [statistics.median(run.engine) * milli for run in runs if run.engine]
    if engine:
        middle = statistics.median(engine)
        yield f"TTFT p50 by the server's own clock: {middle:.3g} ms ({min(engine):.3g} .. {max(engine):.3g})"


def main() -> None:
    """Print the rows of one model and trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="tales, or the folder of a checkpoint of 0.6 B parameters")
    parser.add_argument("trace", choices=["even", "bursts", "azure"])
    parser.add_argument("--seconds", type=float, default=45, help="of the trace")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name = args.model if args.model in LOADS else "0.6 B"
    timer, calibration = Timer(torch.device("cpu"), 1), load(1)
    probe = Probe(timer, beyond_caches(stated_caches(1)))
    with tempfile.TemporaryDirectory() as folder, serving([args.model, "--threads", "1"]) as server:
        trace = Path(folder) / "trace.csv"
        write_trace(trace, requests_of(args.trace, LOADS[name], args.seconds))
        pin(server.pid, CORES[1])
        pin(server.engine, CORES[0])
        vocabulary = read_config(args.model).values["vocab_size"]
        limits = limits_of(server)
        found = simulated(args.model, trace, limits)
        probes, runs, raw = [probe().over(calibration.pace)], [], []
        for _ in range(args.repeats):
            raw.append(bench(server, trace, Path(folder) / "run.csv", vocabulary))
            probes.append(probe().over(calibration.pace))
        runs = [Real.of(rows, found.metrics.warm_up) for rows in raw]
    steps, failed = found.metrics.steps, sum(run.failed for run in runs)
    print(f"{name}, {args.trace}: {len(raw[0])} requests, {found.verdict}, busy {steps.busy:.0%}, "
          f"batch {steps.batch:.2f}; {failed} failed in {len(runs)} runs")  # fmt: skip
    for at in probes:
        print(f"pace: launch x{at.launch:.2f}, compute x{at.compute:.2f}, memory x{at.memory:.2f}")
    for line in table(name, args.trace, runs, found):
        print(line)


if __name__ == "__main__":
    main()
