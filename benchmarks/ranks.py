"""Tensor parallel over processes of this machine: prefill and decode beside one process, and beside their prices.

One process has all threads, each of several an equal part of them. The link is measured by the ranks before they begin.

    python benchmarks/ranks.py MODEL [--ranks 1 2] [--prompt 128] [--output 64]
"""

import argparse
import random
import time
from dataclasses import dataclass, field

from ridgeline.core.ops.work import Work
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.events import StepRecord
from ridgeline.insight.calibrate.local_device import this_device
from ridgeline.util.host import cores


@dataclass(slots=True)
class Steps:
    """Steps of a sort: what each asked, and its seconds."""

    works: list[Work] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def median(self) -> float:
        """Of their seconds."""
        return sorted(self.seconds)[len(self.seconds) // 2]


def main() -> None:
    """Print a line for each number of ranks and sort of step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    options = parser.parse_args()
    draw = random.Random(2)
    prompt = [draw.randrange(5, 1999) for _ in range(options.prompt)]
    said: list[list[int]] = []
    print("ranks  threads  step      ms (predicted)  of it all-reduces, predicted   tokens as of the first")
    for ranks in options.ranks:
        threads = max(1, cores() // ranks)
        device = this_device(threads, estimate=True)
        llm = LLM(options.model, EngineSettings(prefix_cache=False, ranks=ranks), threads=threads)
        device = llm.loaded.with_interconnect(device)
        steps = {"prefill": Steps(), "decode": Steps()}
        last = time.perf_counter()

        def told(record: StepRecord, steps: dict[str, Steps] = steps) -> None:
            nonlocal last
            now, own = time.perf_counter(), steps["decode" if record.decodes_only else "prefill"]
            own.works.append(record.work)
            own.seconds.append(now - last)
            last = now

        params = SamplingParams(temperature=0.0, max_tokens=options.output, ignore_eos=True)
        llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
        llm.engine.on_step = told
        last = time.perf_counter()
        (completion,) = llm.generate([prompt], params)
        said.append(completion.choices[0].token_ids)
        same = sum(one == other for one, other in zip(said[0], said[-1], strict=True))
        for name, own in steps.items():
            priced = [llm.loaded.price.price_step(device, work) for work in own.works]
            middle = priced[len(priced) // 2]
            reduced = sum(r.time.expected * r.priced.count for r in middle.rows if r.cost.communication)
            print(
                f"{ranks:5}  {threads:7}  {name:8} {1e3 * own.median():7.2f} ({1e3 * middle.expected:7.2f})"
                f"  {1e3 * reduced:7.2f} ms{'':24}{same} of {len(said[0])}",
                flush=True,
            )


if __name__ == "__main__":
    main()
