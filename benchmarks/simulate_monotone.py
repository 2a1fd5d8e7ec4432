"""Whether less is never more: a lower price never lowers the capacity, more pages never add preemptions.

    python benchmarks/simulate_monotone.py TRACE [--model llama-3-8b] [--device h100-sxm] [--windows 0 1 2]

Eight windows of a recorded trace, as of simulate_advice.py. A line says the capacity (99 % within TTFT 1 s and TPOT
50 ms) at nine tenths of the price, at it and at eleven tenths, and the preemptions with 900, 1,200, 1,600 and 3,000
pages.
"""

import argparse
from functools import partial
from pathlib import Path

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.capacity import capacity
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.traffic.offered import OpenLoop, time_scaled
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache
from simulate_advice import SECONDS, window

SLO = parse_slo("ttft=1s,tpot=50ms")
SPEED = 3.0
FACTORS = (0.9, 1.0, 1.1)
PAGES = (900, 1200, 1600, 3000)


def at(machine: Machine, requests: list[TraceRequest], factor: float, rate: float, _: float) -> SimulationMetrics:
    """A window's requests at a rate and so many times the price."""
    span = requests[-1].at / 1e9
    log = run(machine, OpenLoop(time_scaled(requests, rate * span / (len(requests) - 1))), factor)
    return measure(log, SLO, open_loop=True)


def main() -> None:
    """Print a line for each window."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--windows", type=int, nargs="+", default=range(8))
    args = parser.parse_args()
    card, last = load_device(args.device), 0
    case = ModelCache(open_source(args.model).config).scenario(Deployment(card, engine=default_engine(card)))
    for request in read_trace(args.trace):
        last = request.at
    for number in args.windows:
        requests = window(args.trace, last / 1e9 * number / 8, SPEED)
        rate, machine = len(requests) / SECONDS, machine_of(case, Limits())
        found = [capacity(partial(at, machine, requests, factor), rate, (1.0, 1.0)).rate.mid for factor in FACTORS]
        few = [at(machine_of(case, Limits(), pages=pages), requests, 1.0, rate, 0.0).preemptions for pages in PAGES]
        cells = (number, *(f"{each:.1f}" for each in found), *few)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
