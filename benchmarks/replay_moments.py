"""A recorded server replayed by its moments: how many steps are decided alike where only arrivals are known.

    python benchmarks/replay_moments.py [--model tales] [--seconds 20] [--rate 20]

`serve --record` writes when requests came to the server and when each step began. The simulated engine is given the
same requests at those moments, later by `--hop`, which is what they take from there to the engine, and begins its steps
when the real one did. A step is alike where it has as many sequences and as many positions. A request that came as a
step began may be a step late, and its steps differ until it ends: those are counted apart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.checkpoint.source import read_config
from ridgeline.engine.scheduler import Limits
from ridgeline.roofline.cards import load_card
from ridgeline.roofline.plan.case import ModelCache, Setup
from ridgeline.simulate.clock import Clock
from ridgeline.simulate.replica import Prompts, Replica, StepPricer
from ridgeline.simulate.setup import machine_of
from ridgeline.traffic.trace import TraceRequest
from serving import serving


@dataclass
class Compared:
    """Steps: alike, different beside a request that came at a boundary, and different without one."""

    alike: int = 0
    excused: int = 0
    different: int = 0


def recorded(model: str, rate: float, seconds: float) -> list[dict[str, Any]]:
    """The lines of a server's recording under load."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.jsonl"
        with serving([model, "--record", str(file)]) as server:
            command = [sys.executable, "-m", "ridgeline", "bench", "serve", server.url, "--rate", str(rate)]
            command += ["--duration", f"{seconds:g}s", "--input", "uniform:20:120", "--output", "uniform:10:90"]
            subprocess.run([*command, "--seed", "1"], check=True, stdout=subprocess.DEVNULL)
            time.sleep(1.0)  # the recording is written beside
        with file.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def compare(model: str, lines: Sequence[dict[str, Any]], hop: int) -> Compared:
    """Decide every recorded step again. hop: nanoseconds."""
    head, *_ = lines
    case = ModelCache(read_config(model)).case(Setup(load_card("h100-sxm")))
    machine = machine_of(
        case,
        Limits(tokens=head["step_tokens"], requests=head["requests"]),
        context=head["context"],
        pages=head["pages"],
        page_size=head["page_size"],
    )
    clock = Clock()
    replica = Replica(machine, clock, StepPricer(case.price, case.device), Prompts())
    waiting = [line for line in lines if line["kind"] == "request"]
    steps = [line for line in lines if line["kind"] == "step"]
    found, doubtful = Compared(), set[int]()
    for step in steps:
        begun = round(step["at"] * 1e9)
        clock.to(max(begun, clock.now))
        while waiting and round(waiting[0]["at"] * 1e9) + hop <= begun:
            line = waiting.pop(0)
            pages, size = tuple(line["pages"]), head["page_size"]
            number = replica.add(TraceRequest(begun, line["input"], line["output"], pages, size if pages else 0))
            if abs(begun - hop - round(line["at"] * 1e9)) < hop:
                doubtful.add(number)
        took = replica.begin()
        plan, scheduler = replica.plan, replica.engine.scheduler
        if took is None or plan is None:
            found.excused += 1  # what it was about has not come yet
            continue
        told = (len(plan.items), plan.tokens)
        under_way = {item.request for item in plan.items} | {request.id for request in scheduler.waiting}
        for event in replica.end():
            if event.finish is not None:
                replica.forget(event.request)
                doubtful.discard(event.request)
        if told == (step["sequences"], step["positions"]):
            found.alike += 1
        elif under_way & doubtful or any(round(line["at"] * 1e9) <= begun for line in waiting[:8]):
            found.excused += 1
        else:
            found.different += 1
    return found


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tales")
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hop", type=float, default=1.5, help="milliseconds from the server to the engine")
    args = parser.parse_args()
    lines = recorded(args.model, args.rate, args.seconds)
    found = compare(args.model, lines, round(args.hop * 1e6))
    steps = found.alike + found.excused + found.different
    shares = (each / steps for each in (found.alike, found.excused, found.different))
    alike, excused, different = (f"{share:.2%}" for share in shares)
    print(f"{steps:,} steps: {alike} alike, {excused} beside a request that came as a step began, {different} not")


if __name__ == "__main__":
    main()
