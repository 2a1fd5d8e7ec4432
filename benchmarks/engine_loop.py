"""What the engine's own loop costs: processor time of planning and accepting, for each token that it gives out.

    python benchmarks/engine_loop.py [--running 128] [--requests 512] [--output 300] [--repeats 3] [--profile]

The executor of this benchmark gives a fixed token at once and moves a clock of its own by a fixed step, so that what is
left is the loop: requests that arrive, admission, pages, plans, tokens, events, ends. Requests arrive as others end, at
128 under way; prompts are 64 to 512 tokens, with a prefix cache and without. Goal: 5 us of processor time a token; a
simulation of an hour at 5,000 tokens a second is then 90 s.
"""

import argparse
import cProfile
import pstats
import random
import statistics
import time
from collections.abc import Sequence

import torch

from ridgeline.core.ops.kv_layout import KVGroup, KVLayout, KVSpec
from ridgeline.core.ops.work import CAUSAL
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.model_traits import ModelTraits
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.sample_row import Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan

STEP_NANOSECONDS = 13_000_000
_TOKEN = Sampled(7)


class FixedStep:
    """An Executor whose every step takes the same time, on a clock that only it moves."""

    def __init__(self) -> None:
        self.now = 0

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        """As Executor.execute; no row is looked at."""
        self.now += STEP_NANOSECONDS
        return [_TOKEN for item in plan.items if item.logits]


def engine_of(running: int, *, prefix_cache: bool) -> Engine:
    """An engine with room for `running` requests of 1,024 positions."""
    executor, limits = FixedStep(), Limits(tokens=2048, requests=running)
    spec = KVSpec(8, 128, 128, CAUSAL, torch.bfloat16)
    layout = KVLayout(int(16 * spec.bytes_per_token), running * 64, 16, (KVGroup(spec, (0,), 16),))
    return Engine(
        executor,
        KVCacheManager(layout, limits.max_request_tokens, prefix_cache=prefix_cache),
        limits,
        ModelTraits(8192, 1000, 1000),
        clock=lambda: executor.now,
    )


def seconds_a_token(running: int, requests: int, output: int, *, prefix_cache: bool) -> float:
    """Processor seconds for each output token of a run, arrivals included."""
    draw = random.Random(0)
    engine = engine_of(running, prefix_cache=prefix_cache)
    work = [
        ([draw.randrange(1000) for _ in range(draw.randint(64, 512))], draw.randint(output // 2, output * 3 // 2))
        for _ in range(requests)
    ]
    work.reverse()
    start = time.process_time()
    while work or engine.has_work:
        while work and len(engine.requests) < running:
            prompt, count = work.pop()
            engine.add(GenerationRequest(prompt, SamplingParams(temperature=0.0, max_tokens=count)))
        engine.step()
    used = time.process_time() - start
    return used / engine.stats.output_tokens


def main() -> None:
    """Print microseconds a token, median and range of the repeats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=128)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--output", type=int, default=300, help="tokens of a request in the mean")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where the time goes, once, without prefix cache")
    args = parser.parse_args()
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(seconds_a_token, args.running, args.requests, args.output, prefix_cache=False)
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        return
    for prefix_cache in (False, True):
        runs = [
            seconds_a_token(args.running, args.requests, args.output, prefix_cache=prefix_cache) * 1e6
            for _ in range(args.repeats)
        ]
        name = "with prefix cache" if prefix_cache else "without"
        print(f"{name:18} {statistics.median(runs):6.2f} us a token ({min(runs):.2f} to {max(runs):.2f})")


if __name__ == "__main__":
    main()
