"""A simulated server beside the real one: `serve` under `bench serve`, and `simulate` of the same requests.

    ridgeline calibrate --threads 1
    python benchmarks/simulate_real.py tales even [--seconds 45] [--repeats 3]

The engine's process has one core, the server's and the client's another; nothing else should run. First one user asks
ten times: what passes between two steps, and before and after the engine, is taken from that. Then a trace is replayed
so many times, each time with other prompts of the same lengths, a probe of the machine beside each run. It is simulated
from its lengths and moments, with the pages and limits that the server says it has, at the calibrated price: nothing is
fitted to the runs. TTFT is the client's, from the intended moment. Printed are rows of benchmarks/simulate.md.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from ridgeline.calibrate.file import load as calibrated
from ridgeline.calibrate.probe import Pace, Probe
from ridgeline.calibrate.roofs import beyond_caches, stated_caches
from ridgeline.calibrate.this import this_device
from ridgeline.calibrate.timer import Timer
from ridgeline.checkpoint.source import read_config
from ridgeline.engine.scheduler import Limits
from ridgeline.roofline.engine_profile import load_engine
from ridgeline.roofline.plan.case import ModelCache, Setup
from ridgeline.simulate.asked import Asked, price_error
from ridgeline.simulate.findings import FIGURES, Findings, simulate
from ridgeline.simulate.metrics import Metrics, measure
from ridgeline.simulate.run import run
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
    "0.6 B": Load(Uniform(16, 64), Uniform(8, 24), 1.0, 32.0, 0.25),
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
    tokens_per_second: float
    failed: int
    share: float

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]], since: float, share: float) -> "Real":
        """Of the lines that `bench serve --csv` wrote. share: as of share_of."""
        ok = [row for row in rows if row["outcome"] == "ok" and float(row["intended"]) >= since]
        span = max(float(row["last_token"]) for row in ok) - min(float(row["intended"]) for row in ok)
        return cls(
            [float(row["ttft"]) for row in ok],
            [float(row["tpot"]) for row in ok if row["tpot"]],
            sum(int(row["output_tokens"]) for row in ok) / span,
            sum(row["outcome"] != "ok" for row in rows),
            share,
        )


def pin(pid: int, core: int) -> None:
    """Every thread of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def bench(server: Server, csv_file: Path, vocabulary: int, *load: str) -> list[dict[str, str]]:
    """One run of the client: its lines."""
    command = [sys.executable, "-m", "ridgeline", "bench", "serve", server.url, *load]
    command += ["--token-ids", str(vocabulary), "--csv", str(csv_file), "--force", "--processes", "1"]
    own_core = partial(os.sched_setaffinity, 0, {CORES[1]})
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=own_core)
    with csv_file.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def limits_of(server: Server) -> dict[str, int]:
    """context, requests, step_tokens, page_size and pages, as the engine says them."""
    with urllib.request.urlopen(f"{server.url}/v1/engine/state") as answer:
        found: dict[str, int] = json.load(answer)["limits"]
        return found


def steps_in(record: Path) -> list[dict[str, float]]:
    """The steps of a recording that goes on."""
    time.sleep(0.5)  # it is written beside
    with record.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["kind"] == "step"]


def share_of(steps: Sequence[dict[str, float]]) -> float:
    """What steps took, of what they were predicted to."""
    return sum(step["seconds"] for step in steps) / sum(step["predicted"] for step in steps)


@dataclass(frozen=True)
class Edges:
    """What one user alone meets beside the engine's steps: seconds between two of them, and of TTFT before and after
    the engine: the network, the server's reading of the request and its way to the engine, the way of the first token
    to the client."""

    between: float
    around: float

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]], steps: Sequence[dict[str, float]]) -> "Edges":
        """Of what the client wrote, and what `serve --record` did meanwhile."""
        gaps = [
            after["at"] - before["at"] - before["seconds"]
            for before, after in pairwise(steps)
            if after["positions"] == 1 == before["positions"]
        ]
        engine = [float(row["server_ttft"]) - float(row["server_queue"]) for row in rows]  # nobody is before them
        around = [float(row["service_ttft"]) - own for row, own in zip(rows, engine, strict=True)]
        return cls(statistics.median(gaps), statistics.median(around))


# -- the simulated one ------------------------------------------------------------------------------------------------


def simulated(model: str, trace: Path, limits: dict[str, int], between: float) -> Findings:
    """The same requests to the same limits, on this processor's price with one thread."""
    device = this_device(1)
    case = ModelCache(read_config(model)).case(Setup(device, engine=load_engine("ridgeline")))
    machine = machine_of(
        case,
        Limits(tokens=limits["step_tokens"], requests=limits["requests"]),
        context=limits["context"],
        pages=limits["pages"],
        page_size=limits["page_size"],
        between=round(between * 1e9),
    )
    error = price_error(case.device, 1)
    return simulate(Asked(model, machine, "", True, lambda: OpenLoop(read_trace(trace)), None, error, 0))


def row(cells: Iterable[object]) -> str:
    """Of a table in Markdown."""
    return "| " + " | ".join(map(str, cells)) + " |"


def at_pace(found: Findings, share: float) -> Metrics:
    """The same requests where steps take so many times what they are priced at."""
    asked = found.asked
    return measure(run(asked.machine, asked.offered(), share), None, open_loop=True)


def table(name: str, kind: str, runs: Sequence[Real], found: Findings, around: float) -> Iterator[str]:
    """A line a metric: simulated with its interval, the median of the runs with their ends, how far apart they are; and
    how far where each run is simulated at the pace of its own steps. around: seconds of TTFT beside the engine's."""
    milli = 1e3
    throughput = FIGURES["tokens_per_second"](found)
    assert throughput is not None
    paced = [at_pace(found, each.share) for each in runs]
    lines = []
    for metric, latency, more, real in (
        ("TTFT p50", "TTFT", around, [statistics.median(each.ttft) for each in runs]),
        ("TPOT p50", "TPOT", 0.0, [statistics.median(each.tpot) for each in runs]),
    ):
        at, own = found.latency(latency, 50), [each.latency(latency, 50) for each in paced]
        if at is not None:
            low, mid, high = ((each + more) * milli for each in (at.low, at.mid, at.high))
            expected = [(each.mid + more) * milli for each in own if each is not None]
            lines.append((metric, low, mid, high, [each * milli for each in real], expected))
    real = [each.tokens_per_second for each in runs]
    own = [each.tokens_per_second for each in paced]
    lines.append(("tokens a second", throughput.low, throughput.mid, throughput.high, real, own))
    for metric, low, mid, high, each, expected in lines:
        middle = statistics.median(each)
        error, within = mid / middle - 1, low <= middle <= high
        apart = statistics.median(one / other - 1 for one, other in zip(expected, each, strict=True))
        cells = (f"{mid:.3g} ({low:.3g} .. {high:.3g})", f"{middle:.3g} ({min(each):.3g} .. {max(each):.3g})")
        near = "yes" if abs(error) <= GOALS[metric] else "**no**"
        yield row((name, kind, metric, *cells, f"{error:+.1%}", near, "yes" if within else "**no**", f"{apart:+.1%}"))


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
    timer, calibration = Timer(torch.device("cpu"), 1), calibrated(1)
    probe = Probe(timer, beyond_caches(stated_caches(1)))
    with tempfile.TemporaryDirectory() as folder:
        for line in beside(args, name, probe, calibration.pace, Path(folder)):
            print(line)


def beside(args: argparse.Namespace, name: str, probe: Probe, usual: Pace, folder: Path) -> Iterator[str]:
    """Run and simulate; what there is to print."""
    record, lines, trace = folder / "record.jsonl", folder / "run.csv", folder / "trace.csv"
    load, vocabulary = LOADS[name], read_config(args.model).values["vocab_size"]
    write_trace(trace, requests_of(args.trace, load, args.seconds))
    with serving([args.model, "--threads", "1", "--record", str(record)]) as server:
        pin(server.pid, CORES[1])
        pin(server.engine, CORES[0])
        lengths = ("--input", str(load.given.low), "--output", str(load.made.high))
        alone = bench(server, lines, vocabulary, "--concurrency", "1", "--requests", "10", *lengths, "--seed", "0")
        steps = steps_in(record)
        edges, taken = Edges.of(alone, steps), len(steps)
        found = simulated(args.model, trace, limits_of(server), edges.between)
        probes, runs, count = [probe().over(usual)], [], 0
        for seed in range(args.repeats):
            asked = ("--trace", str(trace), "--duration", "600s", "--seed", str(seed + 1))  # longer than any trace
            rows = bench(server, lines, vocabulary, *asked)
            probes.append(probe().over(usual))
            steps, count = steps_in(record), len(rows)
            runs.append(Real.of(rows, found.metrics.warm_up, share_of(steps[taken:])))
            taken = len(steps)
    shares, failed = ", ".join(f"{each.share:.2f}" for each in runs), sum(each.failed for each in runs)
    yield (
        f"{name}, {args.trace}: {count} requests, {found.verdict}, busy {found.metrics.steps.busy:.0%}, batch "
        f"{found.metrics.steps.batch:.2f}; {failed} failed in {len(runs)} runs; between steps "
        f"{edges.between * 1e3:.3f} ms, around the engine {edges.around * 1e3:.2f} ms; of the price steps took {shares}"
    )
    for at in probes:
        yield f"pace: launch x{at.launch:.2f}, compute x{at.compute:.2f}, memory x{at.memory:.2f}"
    yield from table(name, args.trace, runs, found, edges.around)


if __name__ == "__main__":
    main()
