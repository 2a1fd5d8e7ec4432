"""Fleets under one stream of requests: unequal cards by router, prompts and answers apart, replicas that come and go.

    python benchmarks/simulate_fleets.py unequal | split | scale

Llama-3-8B, prompts of 925 tokens and answers of 266, a tenth more or less; good is TTFT 1 s and TPOT 50 ms. All runs of
a table have the same requests. Printed are rows of benchmarks/simulate.md.
"""

import argparse
from collections.abc import Iterable, Iterator

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulated_fleet import PrefillDecodeSplit, SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_verdict import verdict
from ridgeline.insight.traffic.arrivals import SECOND, poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache

SLO = parse_slo("ttft=1s,tpot=50ms")
NVLINK, GIGABIT = 450e9, 1e9 / 8


def machine(card: str, tokens: int = 2048) -> Machine:
    """A replica on one card."""
    device = load_device(card)
    case = ModelCache(open_source("llama-3-8b").config).scenario(Deployment(device, engine=default_engine(device)))
    return machine_of(case, Limits(tokens=tokens))


def requests(rate: float, seconds: float) -> Iterator[TraceRequest]:
    """So many a second at random moments."""
    asked = draw_requests(poisson(rate, 0), jittered(Fixed(925)), jittered(Fixed(266)), 0)
    return bounded(asked, None, round(seconds * SECOND))


def row(cells: Iterable[object]) -> None:
    """Of a table in Markdown."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def cells(found: SimulationMetrics) -> tuple[str, ...]:
    """TTFT p50 and p99, TPOT p99, ITL p99 in milliseconds, the share of good requests."""
    good = f"{found.good_share:.1%}"
    if verdict(found, open_loop=True) == "overloaded":
        return ("overloaded", "", "", "", good)
    figures = (("TTFT", 50), ("TTFT", 99), ("TPOT", 99), ("ITL", 99))
    known = [found.latency(name, percent) for name, percent in figures]
    return (*("n too small" if at is None else f"{at.mid * 1e3:.1f}" for at in known), good)


def unequal() -> None:
    """Three H100 and an A100, at rates up to where an A100's quarter is too much for it."""
    fast, slow = machine("h100-sxm"), machine("a100-sxm-80gb")
    for rate in (57.0, 72.0, 85.0):
        for router in ("random", "round-robin", "two", "least"):
            log = run(fast, OpenLoop(requests(rate, 20.0)), fleet=SimulatedFleet(3, router, 50_000_000, 0, (slow,)))
            row((f"{rate:g}", router, *cells(measure(log, SLO, open_loop=True))))


def split() -> None:
    """Two cards: one for prompts and one for answers over links, and both doing both with two sizes of steps."""
    for rate in (33.5, 39.2, 45.0):
        for tokens in (2048, 512):
            log = run(
                machine("h100-sxm", tokens), OpenLoop(requests(rate, 60.0)), fleet=SimulatedFleet(2, "two", 50_000_000)
            )
            row((f"{rate:g}", f"together, {tokens:,} positions a step", *cells(measure(log, SLO, open_loop=True))))
        for name, bandwidth in (("NVLink, 450 GB/s", NVLINK), ("100 Gb/s", 100 * GIGABIT), ("25 Gb/s", 25 * GIGABIT)):
            fleet = SimulatedFleet(2, "two", 50_000_000, split=PrefillDecodeSplit(1, bandwidth))
            log = run(machine("h100-sxm"), OpenLoop(requests(rate, 60.0)), fleet=fleet)
            row((f"{rate:g}", f"apart, {name}", *cells(measure(log, SLO, open_loop=True))))


def wave() -> Iterator[TraceRequest]:
    """Ten requests a second, sixty for a minute, ten again: five minutes in all."""
    parts = ((0, 10.0, 60.0), (60, 60.0, 60.0), (120, 10.0, 180.0))
    for start, rate, seconds in parts:
        for request in requests(rate, seconds):
            yield TraceRequest(start * SECOND + request.at, request.input, request.output)


def scale() -> None:
    """One to four replicas under a wave, by how long one takes to start; three all the time beside them."""
    on = machine("h100-sxm")
    fleets = {"3 all the time": SimulatedFleet(3, "two", 50_000_000), "1 all the time": SimulatedFleet(1)}
    for seconds in (8, 30, 141):
        scaling = Scaling(1, 4, 64, 10 * SECOND, 60 * SECOND, seconds * SECOND)
        fleets[f"1 to 4, {seconds} s to start"] = SimulatedFleet(1, "two", 50_000_000, scaling=scaling)
    for name, fleet in fleets.items():
        found = measure(log := run(on, OpenLoop(wave()), fleet=fleet), SLO, open_loop=True)
        figures = (("TTFT", 50), ("TTFT", 99), ("TPOT", 99))
        known = [found.latency(of, percent) for of, percent in figures]
        told = ["n too small" if at is None else f"{at.mid * 1e3:.1f}" for at in known]
        row((name, f"{found.replicas:.2f}", len(log.lives), *told, f"{found.good_share:.1%}"))


def main() -> None:
    """Print the rows of one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["unequal", "split", "scale"])
    {"unequal": unequal, "split": split, "scale": scale}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
