"""What sampling adds to the step that produced the logits: `python benchmarks/sampling_share.py [--model qwen3-0.6b]`.

Decodes 16 sequences with top-p 0.95 and times the forward and the sampler of every step inside one run, so that the
share is a ratio of neighbours in time. Ceiling: vLLM's CPU build doubles its step on this workload; the goal is 15 %.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence

import torch

from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow
from ridgeline.engine.setup import load_engine
from ridgeline.engine.step_plan import StepPlan


class Stopwatch:
    """An executor that runs plans like a Runner and keeps the seconds of its two halves."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.forward: list[float] = []
        self.sampling: list[float] = []

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        """As Executor.execute."""
        start = time.perf_counter()
        logits_RV = self.runner.step_logits(plan)
        between = time.perf_counter()
        sampled = self.runner.sampler.sample(logits_RV, rows)
        if all(len(item.tokens) == 1 for item in plan.items):
            self.forward.append(between - start)
            self.sampling.append(time.perf_counter() - between)
        return sampled


def main() -> None:
    """Run the workload and print medians and quartiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", help="a folder or a catalogue name, run with random weights")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=12, help="tokens sampled of each")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    loaded = load_engine(args.model, dummy_weights=True)
    engine = loaded.engine
    assert isinstance(engine.executor, Runner)
    watch = engine.executor = Stopwatch(engine.executor)
    generator = torch.Generator().manual_seed(0)
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=args.output, ignore_eos=True, seed=1)
    for _ in range(args.sequences):
        engine.add(GenerationRequest(torch.randint(5, 2000, (args.prompt,), generator=generator).tolist(), params))
    while engine.has_work:
        engine.step()
    shares = [s / f for s, f in zip(watch.sampling, watch.forward, strict=True)]
    for name, values, unit, scale in (
        ("forward", watch.forward, "ms", 1e3),
        ("sampling", watch.sampling, "ms", 1e3),
        ("share", shares, "%", 100.0),
    ):
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:9} {middle * scale:8.2f} {unit:2} (quartiles {low * scale:.2f} to {high * scale:.2f})")


if __name__ == "__main__":
    main()
