"""What a simulation costs: processor time for each token of an answer, by how many requests run side by side.

    python benchmarks/simulate_speed.py [--model llama-3-8b] [--device h100-sxm] [--tokens 400000] [--profile]

Users who ask again at once keep so many under way; prompts of 925 tokens, answers of 266, a tenth more or less. Beside
the whole stands its share of pricing (what `StepPricer` takes, measured in a run of its own, so that the clock's own
cost is not in the whole), and a replica's hour at that load. With --memory a million short requests run, and how much
more memory the process has taken is printed. Goal: 5 us a token at 128 under way, 75 s a replica's hour, 300 MB.
"""

import argparse
import cProfile
import gc
import pstats
import resource
import time
from itertools import islice

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine, StepPricer
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.arrivals import constant
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import ClosedLoop, OpenLoop, draw_requests, jittered
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache

INPUT, OUTPUT = 925, 266


def users(machine: Machine, count: int, tokens: int) -> RunLog:
    """So many users until they have had about so many tokens."""
    asked = draw_requests(constant(1.0), jittered(Fixed(INPUT)), jittered(Fixed(OUTPUT)), 0)
    return run(machine, ClosedLoop(count, ThinkTime(), islice(asked, max(count * 2, tokens // OUTPUT)), None, 0))


def pricing(machine: Machine, count: int, tokens: int) -> float:
    """Processor seconds of pricing in the same run."""
    spent, priced = 0.0, StepPricer.__call__

    def timed(self: StepPricer, plan: StepPlan) -> int:
        nonlocal spent
        started = time.process_time()
        try:
            return priced(self, plan)
        finally:
            spent += time.process_time() - started

    StepPricer.__call__ = timed  # type: ignore[method-assign]
    try:
        users(machine, count, tokens)
    finally:
        StepPricer.__call__ = priced  # type: ignore[method-assign]
    return spent


def main() -> None:
    """Print a line for each number of users."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--profile", action="store_true", help="where the time of 128 users goes, and nothing else")
    parser.add_argument("--memory", action="store_true", help="a million requests, and the most memory that was taken")
    args = parser.parse_args()
    card = load_device(args.device)
    case = ModelCache(open_source(args.model).config).scenario(Deployment(card, engine=default_engine(card)))
    machine = machine_of(case, Limits(tokens=2048, requests=256))
    gc.freeze()  # as the command does: what was imported need not be gone over again
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(users, machine, 128, args.tokens)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    if args.memory:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        log = run(machine, OpenLoop(islice(draw_requests(constant(100.0), Fixed(16), Fixed(2), 0), 1_000_000)))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"{len(log.requests):,} requests, {len(log.steps):,} steps: {grown / 1024:,.0f} MiB more than before")
        return
    print("users  us a token  of it pricing  times real  s a replica's hour  steps a second")
    for count in (1, 16, 64, 128, 256):
        tokens = args.tokens if count > 1 else args.tokens // 16
        started = time.process_time()
        log = users(machine, count, tokens)
        spent = time.process_time() - started
        made, seconds = sum(log.requests.made), log.end / 1e9
        share = pricing(machine, count, tokens) / made
        print(
            f"{count:5}  {spent / made * 1e6:10.2f}  {share * 1e6:13.2f}  {seconds / spent:10.1f}  "
            f"{3600 * spent / seconds:18.0f}  {len(log.steps) / spent:14,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
