"""Formulas beside simulations: the plan's closed loop of users, and the load law of steady arrivals.

    python benchmarks/simulate_laws.py [--model llama-3-8b] [--device h100-sxm]

Closed loop: users who ask again at once, 20 cases; tokens a second over the middle half of the run, when all of them
are there, beside the plan's, whose prompts run by themselves, and beside the same law with prompts that ride on steps
that decode, as the scheduler has them. Load law: rates up to 0.6 of its wall, Poisson arrivals of 925 tokens in and 266
out, 90 s; mean TPOT. Lengths differ by up to a tenth. Printed are rows of benchmarks/simulate.md.
"""

import argparse

import numpy as np

from ridgeline.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.roofline.cards import load_card
from ridgeline.roofline.engine_profile import usual_engine
from ridgeline.roofline.plan.case import Case, ModelCache, Setup, Workload
from ridgeline.roofline.plan.serving import Serving
from ridgeline.simulate.law import load_law, loop_law
from ridgeline.simulate.log import Log
from ridgeline.simulate.metrics import measure
from ridgeline.simulate.run import run
from ridgeline.simulate.setup import machine_of
from ridgeline.traffic.arrivals import SECOND, constant, poisson
from ridgeline.traffic.lengths import Fixed
from ridgeline.traffic.offered import OpenLoop, Users, bounded, drawn, spread

CASES = ((100, 64), (500, 100), (1000, 50), (2000, 128))
USERS = (1, 2, 4, 8, 16)
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
EACH = 25  # requests of a user


def steady_rate(log: Log) -> float:
    """Tokens a second between a quarter and three quarters of the run."""
    begun, over = log.end // 4, log.end * 3 // 4
    ends, firsts = np.asarray(log.gaps.at), np.asarray(log.requests.first)
    later = np.asarray(log.gaps.tokens)[(ends > begun) & (ends <= over)].sum()
    first = ((firsts > begun) & (firsts <= over)).sum()
    return float(later + first) * SECOND / (over - begun)


def closed_loop(case: Case) -> None:
    """Two lines a length of prompt and answer: how far simulated is above the plan, and above the same with prompts
    that ride, for each number of users."""
    machine = machine_of(case, Limits())
    for given, made in CASES:
        serving = Serving(case, Workload(given, made))
        apart: dict[str, list[float]] = {"a plan": [], "law.py": []}
        for users in USERS:
            asked = bounded(drawn(constant(1.0), spread(Fixed(given)), spread(Fixed(made)), 1), users * EACH, None)
            simulated = steady_rate(run(machine, Users(users, 0, asked, None, 1)))
            apart["a plan"].append(simulated / serving.load(users).tokens_per_second.expected - 1)
            apart["law.py"].append(simulated / loop_law(case, users, given, made, Limits().tokens) - 1)
        for law, each in apart.items():
            print(f"| {given:,} | {made} | {law} | " + " | ".join(f"{one:+.1%}" for one in each) + " |", flush=True)


def law(case: Case) -> None:
    """A line a load."""
    machine = machine_of(case, Limits())
    wall = load_law(machine, 1.0, 925, 266).wall
    for share in LOADS:
        rate = share * wall
        asked = drawn(poisson(rate, 0), spread(Fixed(925)), spread(Fixed(266)), 0)
        found = measure(run(machine, OpenLoop(bounded(asked, None, 90 * SECOND))), None, open_loop=True)
        expected = load_law(machine, found.offered, round(found.input), round(found.output))
        tpot = found.latencies["TPOT"]
        assert tpot is not None
        assert expected.tpot is not None
        cells = (f"{rate:.1f}", f"{expected.load:.2f}", f"{expected.tpot * 1e3:.2f}", f"{tpot.mean * 1e3:.2f}")
        print("| " + " | ".join(cells) + f" | {tpot.mean / expected.tpot - 1:+.1%} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--device", default="h100-sxm")
    args = parser.parse_args()
    card = load_card(args.device)
    case = ModelCache(open_source(args.model).config).case(Setup(card, engine=usual_engine(card)))
    closed_loop(case)
    law(case)


if __name__ == "__main__":
    main()
