"""Whether the adviser finds what a whole grid has: windows of a recorded trace, each under every setting.

    python benchmarks/simulate_advice.py TRACE [--model llama-3-8b] [--device h100-sxm] [--windows 8] [--speed 3]
        [--slo ttft=200ms,tpot=20ms]

Each window is 30 s of the trace, hurried. The grid is the adviser's: 7 x 7 settings, and three shares of memory where
pages are short. A line says the share of good
requests under the default setting, under the one that is advised and under the best of the grid, how many settings each
of the two ran, and processor seconds. Goal: within 3 % of the grid's best in all windows, within 60 s.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product, takewhile
from pathlib import Path

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.adviser import (
    REQUEST_LIMITS,
    SHARES,
    TOKEN_BUDGETS,
    MachineBuilder,
    TriedSetting,
    advise,
    simulate_setting,
)
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation_query import PriceUncertainty, SimulationQuery
from ridgeline.insight.traffic.offered import OpenLoop, time_scaled
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.plan.scenario import Deployment, ModelCache

SECONDS = 30.0  # of simulated arrivals a window


def window(path: Path, start: float, speed: float) -> list[TraceRequest]:
    """The requests from `start` seconds on, for 30 s once they are hurried; the first at 0."""
    begin, end = round(start * 1e9), round((start + SECONDS * speed) * 1e9)
    within = takewhile(lambda request: request.at < end, read_trace(path))
    return [replace(request, at=request.at - begin) for request in within if request.at >= begin]


def main() -> None:
    """Print a line for each window."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--speed", type=float, default=3.0)
    parser.add_argument("--slo", default="ttft=200ms,tpot=20ms")
    args = parser.parse_args()
    card = load_device(args.device)
    models, usual = ModelCache(open_source(args.model).config), Deployment(card, engine=default_engine(card))

    def rebuilt(limits: Limits, memory: float = usual.utilization) -> Machine:
        return machine_of(models.scenario(replace(usual, utilization=memory)), limits)

    slo, last = parse_slo(args.slo), 0
    for request in read_trace(args.trace):
        last = request.at
    print("window  a second  default  advised   best  within  settings  of grid  s to advise")
    for number in range(args.windows):
        requests = window(args.trace, last / 1e9 * number / args.windows, args.speed)

        def offered(own: list[TraceRequest] = requests) -> OpenLoop:
            return OpenLoop(time_scaled(own, args.speed))

        asked = SimulationQuery(
            args.model, rebuilt(Limits()), "", True, offered, slo, PriceUncertainty.of_share(0.0, ""), 0
        )
        started = time.process_time()
        found = advise(asked, rebuilt)
        spent = time.process_time() - started
        grid = list(_grid(asked, rebuilt))
        best = max(grid, key=lambda each: each.share)
        print(
            f"{number:6}  {len(requests) / SECONDS:8.1f}  {found.current.share:7.1%}  {found.best.share:7.1%}  "
            f"{best.share:5.1%}  {'yes' if found.best.share >= 0.97 * best.share else 'NO':>6}  "
            f"{len(found.options):8}  {len(grid):7}  {spent:11.1f}",
            flush=True,
        )


def _grid(asked: SimulationQuery, rebuilt: MachineBuilder) -> Iterator[TriedSetting]:
    """All settings that differ, as far as the adviser tells them apart."""
    known: list[TriedSetting] = []
    shares = (asked.machine.case.setup.utilization, *SHARES)
    for memory, tokens, places in product(shares, TOKEN_BUDGETS, REQUEST_LIMITS):
        limits = Limits(tokens=tokens, requests=places)
        if not any(each.covers(limits, memory) for each in known):
            known.append(simulate_setting(asked, rebuilt(limits, memory)))
            yield known[-1]


if __name__ == "__main__":
    main()
