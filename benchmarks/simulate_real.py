"""A simulated server beside the real one: `serve` under `bench serve`, and `simulate` of the same requests.

    ridgeline calibrate --threads 1
    python benchmarks/simulate_real.py tales even bursts azure [--seconds 45] [--repeats 3]

The engine's process has one core, the server's and the client's another; nothing else should run. First one user asks,
then few requests come by themselves, then several users ask: what passes between two steps, and what a request, a step,
a token and an answer take of the other core, is taken from that (served_costs.py), of the least disturbed of three
tries. Then each trace is replayed so many times, each time with other prompts of the same lengths. It is simulated from
its lengths and moments, with the pages and limits that the server says it has, at the calibrated price: nothing is
fitted to the runs. TTFT is the client's, from the intended moment. Printed are rows of benchmarks/simulate.md.

Probes before and after each run, and slices of Python all the while, say what else is at work on the machine
(machine_pace.py). Errors are printed of what was simulated before the trace ran, at the pace that the calibration met;
and of the same at the pace of each run.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

import torch

from machine_pace import Cores, watched
from ridgeline.core.checkpoint.source import read_config
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.calibrate.calibration_file import load as calibrated
from ridgeline.insight.calibrate.local_device import this_device
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.serving_overhead import ApiServerOverhead, HostOverhead
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_findings import FIGURES, SimulationFindings, simulate
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery, price_error
from ridgeline.insight.traffic.arrivals import gamma, poisson
from ridgeline.insight.traffic.lengths import Uniform
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests, time_scaled
from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.price.slowdown import Slowdown
from served_costs import Phase, costs_of
from serving import Server, serving

SEED = 16
GOALS = {"TTFT p50": 0.15, "TPOT p50": 0.10, "tokens a second": 0.05}
TRIES = 3  # of each idle phase, of which the least disturbed counts
RECORD = "record.jsonl"  # what the server writes down
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


_ONE = ("--concurrency", "1")
IDLE = {
    "tales": (
        (_ONE, 60, 10),
        (_ONE, 120, 60),
        (_ONE, 2, 60),
        (("--rate", "8"), 60, 200),
        (("--concurrency", "8"), 120, 80),
    ),
    "0.6 B": ((_ONE, 4, 2), (_ONE, 24, 8), (_ONE, 2, 8), (("--rate", "0.3"), 24, 12), (("--concurrency", "4"), 24, 12)),
}
"""Who asks, tokens of an answer and requests before the traces: to become warm, then as costs_of takes them."""


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
        return bounded(time_scaled(shrunk, load.speed), None, until)
    moments = poisson(load.rate, SEED) if kind == "even" else gamma(load.rate, 0.25, SEED)
    return bounded(draw_requests(moments, load.given, load.made, SEED), None, until)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """As Azure's are."""
    start = datetime(2026, 1, 1)
    with path.open("w", encoding="ascii") as file:
        print("TIMESTAMP,ContextTokens,GeneratedTokens", file=file)
        for each in requests:
            stamp = start + timedelta(microseconds=each.at // 1000)
            print(f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{each.input},{each.output}", file=file)


# -- the real one -----------------------------------------------------------------------------------------------------


Paces = tuple[Slowdown, Slowdown]
"""Of the engine's core and of the other."""


@dataclass(frozen=True)
class Run:
    """What the client of one run saw, in seconds, request by request; of those that came after a moment. share: what
    steps took, of what they were predicted to. paces: of the engine's core and of the other."""

    ttft: list[float]
    tpot: list[float]
    tokens_per_second: float
    failed: int
    share: float
    paces: Paces

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]], since: float, share: float, paces: Paces) -> "Run":
        """Of the lines that `bench serve --csv` wrote."""
        ok = [row for row in rows if row["outcome"] == "ok" and float(row["intended"]) >= since]
        span = max(float(row["last_token"]) for row in ok) - min(float(row["intended"]) for row in ok)
        return cls(
            [float(row["ttft"]) for row in ok],
            [float(row["tpot"]) for row in ok if row["tpot"]],
            sum(int(row["output_tokens"]) for row in ok) / span,
            sum(row["outcome"] != "ok" for row in rows),
            share,
            paces,
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


class Recording:
    """What a server writes down as it goes on, from where it was last read."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """The steps and the requests since; the requests as they came."""
        time.sleep(0.5)  # it is written beside
        with self._path.open(encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        new, self._read = lines[self._read :], len(lines)
        requests = [line for line in new if line["kind"] == "request"]
        return [line for line in new if line["kind"] == "step"], sorted(requests, key=lambda each: each["at"])


def share_of(steps: Sequence[Mapping[str, float]]) -> float:
    """What steps took, of what they were predicted to."""
    return sum(step["seconds"] for step in steps) / sum(step["predicted"] for step in steps)


class Real:
    """A server with its engine on one core, its client beside it on the other, and the pace of both cores."""

    def __init__(self, server: Server, model: str, load: Load, cores: Cores, folder: Path) -> None:
        """folder: where the server records, and the client writes its lines."""
        self._server, self._given, self._cores, self._folder = server, load.given, cores, folder
        self._recording = Recording(folder / RECORD)
        self._vocabulary = read_config(model).values["vocab_size"]
        self._seeds = count(1000)  # prompts that are new each time: none is found in the prefix cache
        pin(server.pid, CORES[1])
        pin(server.engine, CORES[0])

    def parts(self, phases: Iterable[tuple[Sequence[str], int, int]]) -> tuple[HostOverhead, ApiServerOverhead]:
        """What a server takes, undisturbed: of the least disturbed try of each phase. The first phase warms it up."""
        _, *tries = ([self._phase(*each) for _ in range(TRIES)] for each in phases)
        return costs_of(*(min(each, key=lambda found: found.pace) for each in tries))

    def _phase(self, asking: Sequence[str], answer: int, requests: int) -> Phase:
        """Requests with answers of so many tokens. asking: how they come, as `bench serve` takes it."""
        given = f"uniform:{self._given.low}:{self._given.high}"
        size = ("--requests", str(requests), "--input", given, "--output", str(answer))
        before = self._cores.probed(CORES[1])
        lines = self._folder / "idle.csv"
        rows, seconds = bench(self._server, lines, self._vocabulary, *asking, *size, "--seed", str(next(self._seeds)))
        after = self._cores.probed(CORES[1])
        return Phase(rows, *self._recording.new(), seconds, self._cores.pace(CORES[1], before, after).launch)

    def replayed(self, trace: Path, seconds: float, since: float) -> Run:
        """A trace of so many seconds. since: the second from which requests count."""
        seed = next(self._seeds)
        asked = ("--trace", str(trace), "--duration", f"{seconds + 60:.0f}s", "--seed", str(seed))
        lines = self._folder / f"{trace.stem}-{seed}.csv"
        before = [self._cores.probed(core) for core in CORES]
        rows, _ = bench(self._server, lines, self._vocabulary, *asked)
        after = [self._cores.probed(core) for core in CORES]
        steps, _ = self._recording.new()
        engine, other = (self._cores.pace(*each) for each in zip(CORES, before, after, strict=True))
        return Run.of(rows, since, share_of(steps), (engine, other))


# -- the simulated one ------------------------------------------------------------------------------------------------


def simulated(
    model: str, trace: Path, limits: dict[str, int], parts: tuple[HostOverhead, ApiServerOverhead]
) -> SimulationFindings:
    """The same requests to the same limits, on this processor's price with one thread, as it is on average. parts: of a
    server, undisturbed."""
    undisturbed = this_device(1)
    if undisturbed.disturbed is None:
        sys.exit("this machine is not calibrated: run `ridgeline calibrate --threads 1` first")
    launch = undisturbed.disturbed.launch
    between, front = parts[0].times(launch), parts[1].times(launch)
    device = undisturbed.with_calibration_slowdown()
    case = ModelCache(read_config(model)).scenario(Deployment(device, engine=load_engine("ridgeline")))
    machine = machine_of(
        case,
        Limits(tokens=limits["step_tokens"], requests=limits["requests"]),
        context=limits["context"],
        pages=limits["pages"],
        page_size=limits["page_size"],
        between=between,
    )
    error = price_error(case)
    fleet = SimulatedFleet(api_server=front)
    return simulate(
        SimulationQuery(model, machine, "", True, lambda: OpenLoop(read_trace(trace)), None, error, 0, fleet)
    )


def row(cells: Iterable[object]) -> str:
    """Of a table in Markdown."""
    return "| " + " | ".join(map(str, cells)) + " |"


def at_pace(
    found: SimulationFindings, parts: tuple[HostOverhead, ApiServerOverhead], paces: Paces
) -> SimulationMetrics:
    """The same requests while the cores have such a pace. parts: of a server, undisturbed."""
    asked, (engine, other) = found.query, paces
    device = replace(this_device(1), disturbed=engine).with_calibration_slowdown()
    case = replace(asked.machine.case, setup=replace(asked.machine.case.setup, device=device))
    between, front = parts[0].times(engine.launch), parts[1].times(other.launch)
    machine, fleet = replace(asked.machine, case=case, host_overhead=between), replace(asked.fleet, api_server=front)
    return measure(run(machine, asked.offered(), fleet=fleet), None, open_loop=True)


def table(
    name: str, kind: str, runs: Sequence[Run], found: SimulationFindings, paced: Sequence[SimulationMetrics]
) -> Iterator[str]:
    """A line a metric: simulated with its interval, the median of the runs with their ends, how far apart they are; and
    how far at the pace of each run."""
    milli = 1e3
    throughput = FIGURES["tokens_per_second"](found)
    assert throughput is not None
    for metric, latency, real in (
        ("TTFT p50", "TTFT", [statistics.median(each.ttft) for each in runs]),
        ("TPOT p50", "TPOT", [statistics.median(each.tpot) for each in runs]),
    ):
        at, own = found.latency(latency, 50), [each.latency(latency, 50) for each in paced]
        if at is not None:
            told = (at.low * milli, at.mid * milli, at.high * milli)
            expected = [math.nan if each is None else each.mid * milli for each in own]
            yield line(name, kind, metric, told, [each * milli for each in real], expected)
    told = (throughput.low, throughput.mid, throughput.high)
    real = [each.tokens_per_second for each in runs]
    yield line(name, kind, "tokens a second", told, real, [each.tokens_per_second for each in paced])


def line(
    name: str,
    kind: str,
    metric: str,
    told: tuple[float, float, float],
    real: Sequence[float],
    expected: Sequence[float],
) -> str:
    """Of the table. expected: at the pace of each run, where the interval is as wide beside its middle."""
    low, mid, high = told
    middle = statistics.median(real)
    error = mid / middle - 1
    apart = statistics.median(one / other - 1 for one, other in zip(expected, real, strict=True))
    paced = "yes" if low <= mid / (1 + apart) <= high else "**no**"
    cells = (f"{mid:.3g} ({low:.3g} .. {high:.3g})", f"{middle:.3g} ({min(real):.3g} .. {max(real):.3g})")
    near, at_its_pace = ("yes" if abs(each) <= GOALS[metric] else "**no**" for each in (error, apart))
    within = "yes" if low <= middle <= high else "**no**"
    return row((name, kind, metric, *cells, f"{error:+.1%}", near, within, f"{apart:+.1%}", at_its_pace, paced))


def main() -> None:
    """Print the rows of one model and some traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="tales, or the folder of a checkpoint of 0.6 B parameters")
    parser.add_argument("traces", choices=["even", "bursts", "azure"], nargs="+")
    parser.add_argument("--seconds", type=float, default=45, help="of each trace")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a new folder for what the client and the server write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    undisturbed = calibrated(1).pace
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.keep is None else args.keep
        folder.mkdir(parents=True, exist_ok=args.keep is None)
        recorded = [args.model, "--threads", "1", "--record", str(folder / RECORD)]
        with watched(CORES, folder, undisturbed) as cores, serving(recorded) as server:
            for text in beside(args, server, cores, folder):
                print(text, flush=True)


def beside(args: argparse.Namespace, server: Server, cores: Cores, folder: Path) -> Iterator[str]:
    """Run and simulate; what there is to print."""
    name = args.model if args.model in LOADS else "0.6 B"
    real = Real(server, args.model, LOADS[name], cores, folder)
    parts = real.parts(IDLE[name])
    yield f"{name}, undisturbed: {parts[0]}, {parts[1]}"
    for kind in args.traces:
        trace = folder / f"{kind}.csv"
        write_trace(trace, requests_of(kind, LOADS[name], args.seconds))
        found = simulated(args.model, trace, limits_of(server), parts)
        runs = [real.replayed(trace, args.seconds, found.metrics.warm_up) for _ in range(args.repeats)]
        yield f"{name}, {kind}: {in_words(found, runs)}"
        yield from table(name, kind, runs, found, [at_pace(found, parts, each.paces) for each in runs])


def in_words(found: SimulationFindings, runs: Sequence[Run]) -> str:
    """What there was to do, and what the machine made of it."""
    paced = ", ".join(" and ".join(f"{pace.launch:.2f}" for pace in each.paces) for each in runs)
    shares, failed = ", ".join(f"{each.share:.2f}" for each in runs), sum(each.failed for each in runs)
    steps = found.metrics.steps
    return (
        f"{found.metrics.total} requests, {found.verdict}, busy {steps.busy:.0%}, batch {steps.batch:.2f}; {failed} "
        f"failed in {len(runs)} runs; of the price steps took {shares}; launches {paced}"
    )


if __name__ == "__main__":
    main()
