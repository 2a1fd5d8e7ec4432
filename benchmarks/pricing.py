"""What a price costs: decode steps priced a second at a batch of 256, and seconds of `ridgeline plan` as a command.

    python benchmarks/pricing.py [--models llama-3-8b qwen3-235b-a22b] [--plan llama-3-70b] [--repeats 5] [--json]

A step is what a simulator asks: 256 contexts grow by one, become a Work, and are priced on a card. Attention is
evaluated anew each time; all else depends on the shape of the step alone (tokens, logit rows, sequences), which stays,
so that what it costs is reused from the first step. Seconds are of processor time (what else runs on the machine is not
in it) and of the clock. The share of `import torch` in the command is printed beside it, since nothing here can change
that.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import build
from ridgeline.core.ops.work import Work
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price

BATCH, STEPS = 256, 5_000


def steps_a_second(name: str, card: str, clock: Callable[[], float]) -> float:
    """Decode steps of BATCH sequences priced a second, their Work included."""
    price, device = Price(build(read_config(name))), load_device(card)
    contexts = list(range(500, 500 + BATCH))
    price.price_step(device, Work.decode(contexts, price.reaches))
    start = clock()
    for _ in range(STEPS):
        contexts = [n + 1 for n in contexts]
        price.price_step(device, Work.decode(contexts, price.reaches))
    return STEPS / (clock() - start)


def command_seconds(*words: str) -> tuple[float, float]:
    """Processor and clock seconds of a Python process."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    clock, after = time.perf_counter() - start, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-3-8b", "mistral-7b-v0.3", "qwen3-235b-a22b"])
    parser.add_argument("--plan", nargs="+", default=["llama-3-8b", "llama-3-70b", "qwen3-235b-a22b"])
    parser.add_argument("--card", default="h100-sxm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    rates = {
        name: {
            kind: statistics.median(steps_a_second(name, args.card, clock) for _ in range(args.repeats))
            for kind, clock in (("processor", time.process_time), ("clock", time.perf_counter))
        }
        for name in args.models
    }
    commands = {"import torch": ("-c", "import torch")} | {
        f"plan {name}": ("-m", "ridgeline", "plan", name, "--device", args.card) for name in args.plan
    }
    taken = {what: [command_seconds(*words) for _ in range(args.repeats)] for what, words in commands.items()}
    seconds = {
        what: dict(zip(("processor", "clock"), map(statistics.median, zip(*runs, strict=True)), strict=True))
        for what, runs in taken.items()
    }
    if args.json:
        print(json.dumps({"steps_per_second": rates, "seconds": seconds, "batch": BATCH}))
        return
    print(
        f"decode steps priced a second at batch {BATCH}, median of {args.repeats}   (by processor time / by the clock)"
    )
    for name, rate in rates.items():
        print(f"  {name:24}{rate['processor']:9,.0f} /{rate['clock']:9,.0f}")
    print("seconds of a command")
    for what, spent in seconds.items():
        print(f"  {what:24}{spent['processor']:9.2f} /{spent['clock']:9.2f}")


if __name__ == "__main__":
    main()
