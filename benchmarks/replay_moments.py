"""A recorded server replayed by its moments: how many steps are decided alike where only arrivals are known.

    python benchmarks/replay_moments.py [--model tales] [--seconds 20] [--rate 20]

`serve --record` writes when the engine had each request and when each step began. The simulated engine is given the
same requests at those moments, and begins its steps when the real one did. A step is alike where it has as many
sequences and as many positions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.core.checkpoint.source import read_config
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import PromptBuilder, SimulatedReplica, StepPricer
from ridgeline.insight.simulate.simulated_clock import SimulatedClock
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.devices import load_device
from ridgeline.price.plan.scenario import Deployment, ModelCache
from serving import serving


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


def compare(model: str, lines: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Decide every recorded step again: how many are alike, of how many."""
    head, *_ = lines
    case = ModelCache(read_config(model)).scenario(Deployment(load_device("h100-sxm")))
    machine = machine_of(
        case,
        Limits(tokens=head["step_tokens"], requests=head["requests"]),
        context=head["context"],
        pages=head["pages"],
        page_size=head["page_size"],
    )
    clock = SimulatedClock()
    replica = SimulatedReplica(machine, clock, StepPricer(case.price, case.device), PromptBuilder())
    asked = [line for line in lines if line["kind"] == "request" and line["queued"] is not None]
    waiting = deque(sorted(asked, key=lambda line: line["queued"]))
    steps = [line for line in lines if line["kind"] == "step"]
    alike = 0
    for step in steps:
        clock.to(max(round(step["at"] * 1e9), clock.now))
        while waiting and waiting[0]["queued"] <= step["at"]:
            line = waiting.popleft()
            pages, size = tuple(line["pages"]), head["page_size"]
            replica.add(TraceRequest(clock.now, line["input"], line["output"], pages, size if pages else 0))
        if replica.begin() is None:
            continue
        plan = replica.plan
        assert plan is not None
        alike += (len(plan.items), plan.tokens) == (step["sequences"], step["positions"])
        for event in replica.end():
            if event.finish is not None:
                replica.forget(event.request)
    return alike, len(steps)


def main() -> None:
    """Print the share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tales")
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    alike, steps = compare(args.model, recorded(args.model, args.rate, args.seconds))
    print(f"{steps:,} steps: {alike / steps:.2%} alike, {steps - alike:,} not")


if __name__ == "__main__":
    main()
