"""What routers do to first tokens: four replicas under one stream of requests, with signals of several ages.

    python benchmarks/simulate_routers.py [--model llama-3-8b] [--device h100-sxm] [--rate 72] [--seconds 20]

Prompts of 925 tokens, answers of 266, a tenth more or less. Each line is a router and an age of what it sees: TTFT p50
and p99, TPOT p99 in milliseconds, the share of requests within TTFT 1 s and TPOT 50 ms. All have the same requests.
"""

import argparse

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import measure
from ridgeline.insight.traffic.arrivals import poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache

RUNS = [("random", 0.0), ("round-robin", 0.0), *[(name, age) for age in (0.0, 0.5, 5.0) for name in ("two", "least")]]


def main() -> None:
    """Print a line for each router and age."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--rate", type=float, default=72.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    card = load_device(args.device)
    case = ModelCache(open_source(args.model).config).scenario(Deployment(card, engine=default_engine(card)))
    machine, slo = machine_of(case, Limits()), parse_slo("ttft=1s,tpot=50ms")
    print("router       age  TTFT p50     p99  TPOT p99   good")
    for name, age in RUNS:
        asked = draw_requests(poisson(args.rate, 0), jittered(Fixed(925)), jittered(Fixed(266)), 0)
        offered = OpenLoop(bounded(asked, None, round(args.seconds * 1e9)))
        log = run(machine, offered, fleet=SimulatedFleet(4, name, round(age * 1e9), 0))
        found = measure(log, slo, open_loop=True)
        figures = [found.latency(of, percent) for of, percent in (("TTFT", 50), ("TTFT", 99), ("TPOT", 99))]
        ttft, late, tpot = ("n too small" if at is None else f"{at.mid * 1e3:.1f}" for at in figures)
        print(f"{name:11}  {age:3g}  {ttft:>8}  {late:>6}  {tpot:>8}  {found.good_share:5.1%}", flush=True)


if __name__ == "__main__":
    main()
