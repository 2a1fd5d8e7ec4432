"""Whether a simulation decides what the engine decides: runs of a model, replayed step by step from what was recorded.

    python benchmarks/replay_decisions.py [--model tales] [--requests 1000] [--seed 0]

Requests come in bunches to the engine around the model, under five settings: prompts in small chunks and in large ones,
equal beginnings, too few pages, requests that are aborted. Each run is simulated again by
`insight/simulate/engine_replay.py`, which is told lengths and names of blocks, and every plan compared: items,
positions, pages, copies, in their order. Every line should say that all are equal.
"""

import argparse
import random
from dataclasses import dataclass, replace
from itertools import count

import torch

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.insight.simulate.engine_replay import RecordedRun, replay
from ridgeline.insight.simulate.replica import Machine
from ridgeline.price.devices import load_device
from ridgeline.price.plan.scenario import Deployment, ModelCache


@dataclass(frozen=True)
class Setting:
    """How the engine is set up and asked. positions: that KV memory holds. stems: prompts that begin alike."""

    name: str
    limits: Limits
    positions: int
    prefix_cache: bool = True
    stems: int = 0
    aborts: float = 0.0


SETTINGS = (
    Setting("chunks of 7", Limits(tokens=64, requests=16, chunk=7), 4000),
    Setting("chunks of 64", Limits(tokens=256, requests=32, chunk=64), 8000, prefix_cache=False),
    Setting("equal beginnings", Limits(tokens=256, requests=32), 4000, stems=8),
    Setting("short of pages", Limits(tokens=128, requests=32), 450, stems=8),
    Setting("aborts", Limits(tokens=128, requests=24, chunk=32), 900, stems=8, aborts=0.1),
)


def record(model: str, setting: Setting, requests: int, seed: int) -> tuple[RecordedRun, Machine]:
    """A run of the engine around a model, and the machine that its simulation is to have."""
    loaded = load_engine(model, EngineSettings(kv_bytes=1 << 24))
    layout = kv_layout(loaded.model, 1e12, most_tokens=setting.positions)
    engine = build_engine(
        loaded.model, layout, setting.limits, prefix_cache=setting.prefix_cache, eos_ids=loaded.engine.eos_ids
    )
    run, draw, waiting = RecordedRun(engine), random.Random(seed), requests
    top = loaded.model.vocabulary
    stems = [[draw.randrange(top) for _ in range(draw.randint(20, 100))] for _ in range(setting.stems)]
    sampling = SamplingParams(temperature=0.9, seed=1)
    while waiting or engine.has_work:
        for _ in range(min(waiting, draw.choice((0, 0, 0, 1, 3)))):
            own = [draw.randrange(top) for _ in range(draw.randint(1, 60))]
            prompt = [*(draw.choice(stems) if stems else []), *own]
            run.add(prompt, replace(sampling, seed=draw.getrandbits(31), max_tokens=draw.randint(1, 60)))
            waiting -= 1
        if setting.aborts and engine.requests and draw.random() < setting.aborts:
            run.abort(draw.choice(sorted(engine.requests)))
        run.step()
    case = ModelCache(open_source(model).config).scenario(Deployment(load_device("h100-sxm")))
    return run, Machine(case, layout, setting.limits, loaded.model.context, setting.prefix_cache)


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tales")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for setting in SETTINGS:
        run, machine = record(args.model, setting, args.requests, args.seed)
        pairs = zip(count(), replay(machine, run), strict=False)
        differing = [step for step, (recorded, simulated) in pairs if recorded != simulated]
        stats = run.engine.stats
        found = f"step {differing[0]} is the first that differs" if differing else "all plans are equal"
        counts = f"{stats.preemptions:,} preemptions, {stats.reused_tokens:,} positions found"
        counts += f", {len(run.aborted)} aborts"
        print(f"{setting.name:18} {len(run.made):,} requests, {len(run.steps):,} steps, {counts}: {found}", flush=True)


if __name__ == "__main__":
    main()
