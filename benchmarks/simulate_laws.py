"""Formulas beside simulations: the plan's closed loop of users, the load law of steady arrivals, and its wall.

    python benchmarks/simulate_laws.py [--model llama-3-8b] [--device h100-sxm]

Closed loop: users who ask again at once, 20 cases; tokens a second over the middle half of the run, when all of them
are there, beside the plan's, whose prompts run by themselves, and beside the same law with prompts that ride on steps
that decode, as the scheduler has them. Load law: rates up to 0.6 of its wall, Poisson arrivals of 925 tokens in and 266
out, 90 s; mean TPOT. Lengths differ by up to a tenth. Printed are rows of benchmarks/simulate.md.
"""

import argparse

import numpy as np

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.load_law import closed_loop_throughput, load_law, saturation_rate
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.run_log import OUTCOMES, RunLog
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import measure
from ridgeline.insight.traffic.arrivals import SECOND, constant, poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import ClosedLoop, OpenLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario

CASES = ((100, 64), (500, 100), (1000, 50), (2000, 128))
USERS = (1, 2, 4, 8, 16)
SHARES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # of the wall
EACH = 25  # requests of a user
OVER = 1.5  # of the wall: a rate at which nothing keeps up
WALLS = (  # limits, pages (all that there are), tokens in and out
    (Limits(2048, 256), None, 925, 266),
    (Limits(256, 256), None, 925, 266),
    (Limits(64, 256), None, 925, 266),
    (Limits(2048, 16), None, 925, 266),
    (Limits(2048, 256), 3000, 925, 266),
    (Limits(2048, 1024), None, 100, 500),
    (Limits(8192, 256), None, 7000, 100),
    (Limits(512, 256), None, 2000, 20),
    (Limits(2048, 16, 64), None, 2000, 20),
    (Limits(2048, 256), 900, 300, 40),
    (Limits(512, 256), None, 6000, 1),
)


def steady_rate(log: RunLog) -> float:
    """Tokens a second between a quarter and three quarters of the run."""
    begun, over = log.end // 4, log.end * 3 // 4
    ends, firsts = np.asarray(log.gaps.at), np.asarray(log.requests.first)
    later = np.asarray(log.gaps.tokens)[(ends > begun) & (ends <= over)].sum()
    first = ((firsts > begun) & (firsts <= over)).sum()
    return float(later + first) * SECOND / (over - begun)


def closed_loop(case: Scenario) -> None:
    """Two lines a length of prompt and answer: how far simulated is above the plan, and above the same with prompts
    that ride, for each number of users."""
    machine = machine_of(case, Limits())
    for given, made in CASES:
        serving = LoadEstimator(case, PlanWorkload(given, made))
        apart: dict[str, list[float]] = {"a plan": [], "law.py": []}
        for users in USERS:
            asked = bounded(
                draw_requests(constant(1.0), jittered(Fixed(given)), jittered(Fixed(made)), 1), users * EACH, None
            )
            simulated = steady_rate(run(machine, ClosedLoop(users, ThinkTime(), asked, None, 1)))
            apart["a plan"].append(simulated / serving.load(users).tokens_per_second.expected - 1)
            apart["law.py"].append(simulated / closed_loop_throughput(machine, users, given, made) - 1)
        for law, each in apart.items():
            print(f"| {given:,} | {made} | {law} | " + " | ".join(f"{one:+.1%}" for one in each) + " |", flush=True)


def law(case: Scenario) -> None:
    """A line a rate."""
    machine = machine_of(case, Limits())
    wall = saturation_rate(machine, 925, 266)
    for share in SHARES:
        rate = share * wall
        asked = draw_requests(poisson(rate, 0), jittered(Fixed(925)), jittered(Fixed(266)), 0)
        found = measure(run(machine, OpenLoop(bounded(asked, None, 90 * SECOND))), None, open_loop=True)
        expected = load_law(machine, found.offered, round(found.input), round(found.output))
        tpot = found.latencies["TPOT"]
        assert tpot is not None
        assert expected.tpot is not None
        cells = (f"{rate:.1f}", f"{expected.load:.2f}", f"{expected.tpot * 1e3:.2f}", f"{tpot.mean * 1e3:.2f}")
        print("| " + " | ".join(cells) + f" | {tpot.mean / expected.tpot - 1:+.1%} |", flush=True)


def walls(case: Scenario) -> None:
    """A line a replica: its wall, and what it answers in the second half of a run in which half as much again comes."""
    for limits, pages, given, made in WALLS:
        machine = machine_of(case, limits, pages=pages)
        wall = saturation_rate(machine, given, made)
        rate = OVER * wall
        asked = draw_requests(poisson(rate, 0), jittered(Fixed(given)), jittered(Fixed(made)), 0)
        log = run(machine, OpenLoop(bounded(asked, None, round(max(60, 600 / rate) * SECOND))))
        assert set(log.requests.outcome) == {OUTCOMES.index("ok")}, "some were refused, so that fewer came"
        last, over = log.requests.arrived[-1], np.asarray(log.requests.last)
        answered = float(((over > last / 2) & (over <= last)).sum()) / (last / 2) * SECOND
        chunk = "" if limits.chunk is None else f"{limits.chunk}"
        cells = (f"{limits.tokens:,}", f"{limits.requests:,}", chunk, "" if pages is None else f"{pages:,}")
        figures = f"{given:,} | {made} | {wall:.2f} | {answered:.2f} | {wall / answered - 1:+.1%}"
        print("| " + " | ".join(cells) + f" | {figures} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--device", default="h100-sxm")
    args = parser.parse_args()
    card = load_device(args.device)
    case = ModelCache(open_source(args.model).config).scenario(Deployment(card, engine=default_engine(card)))
    closed_loop(case)
    law(case)
    walls(case)


if __name__ == "__main__":
    main()
