"""A simulated server beside the real one: `serve` under `bench serve`, and `simulate` of the same requests.

    ridgeline calibrate --threads 1
    python benchmarks/simulate_real.py tales even bursts azure [--seconds 45] [--repeats 3]

The engine's process has one core, the server's and the client's another; nothing else should run. First one user asks,
and then eight: what passes between two steps, and what a request, a step, a token and an answer take of the other core,
is taken from that (costs_of). Then each trace is replayed so many times, each time with other prompts of the same
lengths, a probe of the machine beside each run. It is simulated from its lengths and moments, with the pages and limits
that the server says it has, at the calibrated price: nothing is fitted to the runs. TTFT is the client's, from the
intended moment. Printed are rows of benchmarks/simulate.md.
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
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.front import Between, Front
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


IDLE = {
    "tales": ((1, 60, 10), (1, 120, 60), (1, 2, 60), (8, 120, 80)),
    "0.6 B": ((1, 4, 2), (1, 24, 8), (1, 2, 8), (4, 24, 12)),
}
"""Users, tokens of an answer and requests before the traces: to become warm, then as costs_of takes them."""


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


def bench(server: Server, csv_file: Path, vocabulary: int, *load: str) -> tuple[list[dict[str, str]], float]:
    """One run of the client: its lines, and processor seconds of server and client."""
    command = [sys.executable, "-m", "ridgeline", "bench", "serve", server.url, *load, "--json", "--warmup", "0"]
    command += ["--token-ids", str(vocabulary), "--csv", str(csv_file), "--force", "--processes", "1"]
    own_core, before = partial(os.sched_setaffinity, 0, {CORES[1]}), processor_nanoseconds(server.pid)
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=own_core).stdout
    metrics = json.loads(told)["metrics"]
    seconds = (processor_nanoseconds(server.pid) - before) / 1e9 + metrics["client_cpu"] * metrics["duration"]
    with csv_file.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), seconds


def processor_nanoseconds(pid: int) -> int:
    """That all threads of a process have taken."""
    return sum(int((each / "schedstat").read_text().split()[0]) for each in Path(f"/proc/{pid}/task").iterdir())


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
class Phase:
    """Requests to a server that nobody else asks: what the client wrote of each, the engine's steps meanwhile, and
    processor seconds of server and client."""

    rows: Sequence[dict[str, str]]
    steps: Sequence[dict[str, float]]
    seconds: float

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(int(row["output_tokens"]) for row in self.rows)

    @property
    def batch(self) -> float:
        """Sequences of a step, on average."""
        return statistics.mean(step["sequences"] for step in self.steps)

    def gap(self, *, prompts: bool) -> float:
        """Seconds before a step in the midst of others, those that begin a prompt or the others; the mean, for they add
        up."""
        return statistics.mean(
            after["at"] - before["at"] - before["seconds"]
            for before, after in pairwise(self.steps)
            if before["running"] and (after["positions"] > after["sequences"]) == prompts
        )

    @property
    def around(self) -> float:
        """Seconds of a first token that are not the engine's; the median. Nobody is before a request of one user."""
        return statistics.median(
            float(row["service_ttft"]) - float(row["server_ttft"]) + float(row["server_queue"]) for row in self.rows
        )


def costs_of(long: Phase, short: Phase, several: Phase) -> tuple[Between, Front]:
    """What a server takes beside its engine's steps: of one user with long answers and with short ones, and of several
    users. All of it is idle time that is told apart: nothing of a trace is in it."""
    each = (long.seconds - short.seconds) / (long.tokens - short.tokens)  # a step and its one token
    request = (short.seconds - each * short.tokens) / len(short.rows)
    shared = (several.seconds - request * len(several.rows)) / several.tokens
    step = max(0.0, (each - shared) / (1 - 1 / several.batch))
    sequence = max(0.0, (several.gap(prompts=False) - long.gap(prompts=False)) / (several.batch - 1))
    arrival = max(0.0, several.gap(prompts=True) - several.gap(prompts=False))
    read = max(0.0, long.around - each - arrival)
    between = Between(*map(_nanoseconds, (long.gap(prompts=False) - sequence, sequence, arrival)))
    return between, Front(*map(_nanoseconds, (read, step, each - step, max(0.0, request - read))))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


# -- the simulated one ------------------------------------------------------------------------------------------------


def simulated(model: str, trace: Path, limits: dict[str, int], between: Between, front: Front) -> Findings:
    """The same requests to the same limits, on this processor's price with one thread."""
    device = this_device(1)
    case = ModelCache(read_config(model)).case(Setup(device, engine=load_engine("ridgeline")))
    machine = machine_of(
        case,
        Limits(tokens=limits["step_tokens"], requests=limits["requests"]),
        context=limits["context"],
        pages=limits["pages"],
        page_size=limits["page_size"],
        between=between,
    )
    error = price_error(case.device, 1)
    fleet = Fleet(front=front)
    return simulate(Asked(model, machine, "", True, lambda: OpenLoop(read_trace(trace)), None, error, 0, fleet))


def row(cells: Iterable[object]) -> str:
    """Of a table in Markdown."""
    return "| " + " | ".join(map(str, cells)) + " |"


def at_pace(found: Findings, share: float) -> Metrics:
    """The same requests where steps take so many times what they are priced at."""
    asked = found.asked
    return measure(run(asked.machine, asked.offered(), share, fleet=asked.fleet), None, open_loop=True)


def table(name: str, kind: str, runs: Sequence[Real], found: Findings) -> Iterator[str]:
    """A line a metric: simulated with its interval, the median of the runs with their ends, how far apart they are; and
    how far where each run is simulated at the pace of its own steps."""
    milli = 1e3
    throughput = FIGURES["tokens_per_second"](found)
    assert throughput is not None
    paced = [at_pace(found, each.share) for each in runs]
    lines = []
    for metric, latency, real in (
        ("TTFT p50", "TTFT", [statistics.median(each.ttft) for each in runs]),
        ("TPOT p50", "TPOT", [statistics.median(each.tpot) for each in runs]),
    ):
        at, own = found.latency(latency, 50), [each.latency(latency, 50) for each in paced]
        if at is not None:
            low, mid, high = (each * milli for each in (at.low, at.mid, at.high))
            expected = [each.mid * milli for each in own if each is not None]
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
    """Print the rows of one model and some traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="tales, or the folder of a checkpoint of 0.6 B parameters")
    parser.add_argument("traces", choices=["even", "bursts", "azure"], nargs="+")
    parser.add_argument("--seconds", type=float, default=45, help="of each trace")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name = args.model if args.model in LOADS else "0.6 B"
    timer, calibration = Timer(torch.device("cpu"), 1), calibrated(1)
    probe = Probe(timer, beyond_caches(stated_caches(1)))
    with tempfile.TemporaryDirectory() as folder:
        for line in beside(args, name, probe, calibration.pace, Path(folder)):
            print(line, flush=True)


def beside(args: argparse.Namespace, name: str, probe: Probe, usual: Pace, folder: Path) -> Iterator[str]:
    """Run and simulate; what there is to print."""
    record, lines, trace = folder / "record.jsonl", folder / "run.csv", folder / "trace.csv"
    load, vocabulary = LOADS[name], read_config(args.model).values["vocab_size"]
    with serving([args.model, "--threads", "1", "--record", str(record)]) as server:
        pin(server.pid, CORES[1])
        pin(server.engine, CORES[0])
        given, taken, phases = f"uniform:{load.given.low}:{load.given.high}", 0, []
        for users, answer, count in IDLE[name]:
            alone = ("--concurrency", str(users), "--requests", str(count), "--input", given, "--output", str(answer))
            rows, seconds = bench(server, lines, vocabulary, *alone, "--seed", str(len(phases)))
            steps = steps_in(record)
            phases.append(Phase(rows, steps[taken:], seconds))
            taken = len(steps)
        between, front = costs_of(*phases[1:])
        yield f"{name}: {between}, {front}"
        for kind in args.traces:
            write_trace(trace, requests_of(kind, load, args.seconds))
            found = simulated(args.model, trace, limits_of(server), between, front)
            probes, runs, count = [probe().over(usual)], [], 0
            for seed in range(args.repeats):
                asked = ("--trace", str(trace), "--duration", "600s", "--seed", str(seed + 10))  # longer than any trace
                rows, _ = bench(server, lines, vocabulary, *asked)
                probes.append(probe().over(usual))
                steps, count = steps_in(record), len(rows)
                runs.append(Real.of(rows, found.metrics.warm_up, share_of(steps[taken:])))
                taken = len(steps)
            shares, failed = ", ".join(f"{each.share:.2f}" for each in runs), sum(each.failed for each in runs)
            shown = found.metrics.steps
            yield (
                f"{name}, {kind}: {count} requests, {found.verdict}, busy {shown.busy:.0%}, batch {shown.batch:.2f}; "
                f"{failed} failed in {len(runs)} runs; of the price steps took {shares}"
            )
            for at in probes:
                yield f"pace: launch x{at.launch:.2f}, compute x{at.compute:.2f}, memory x{at.memory:.2f}"
            yield from table(name, kind, runs, found)


if __name__ == "__main__":
    main()
