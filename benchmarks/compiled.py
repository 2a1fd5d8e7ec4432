"""What --compile gains and costs: a built-in pipeline's steps, compiled and not, in turn.

    python benchmarks/compiled.py [--model digits] [--dtype fp32] [--steps 4] [--repeats 10]

Seconds of compiling are those of a machine that has compiled none of it: what torch keeps of earlier times is left out.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.pipeline import Pipeline, compile_blocks
from ridgeline.media.diffusion.pipeline_loader import load_pipeline

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def seconds(pipeline: Pipeline, plan: DiffusionPlan) -> tuple[float, torch.Tensor]:
    """Of a step; and the latents after all."""
    texts = pipeline.encode(plan)
    start = time.perf_counter()
    *_, last = pipeline.denoise(plan, texts)
    return (time.perf_counter() - start) / plan.steps, last.latents


def main() -> None:
    """Print what compiling took, and both ways' seconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    ways = {name: load_pipeline(asked.model, DTYPES[asked.dtype], threads=1) for name in ("plain", "compiled")}
    plan = ways["plain"].plan(DiffusionRequest("a handwritten seven", steps=asked.steps, seed=1))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        start = time.perf_counter()
        blocks = compile_blocks(ways["compiled"], plan, ways["compiled"].encode(plan))
        print(f"compiled {blocks} blocks in {time.perf_counter() - start:.0f} s", flush=True)
        took: dict[str, list[float]] = {name: [] for name in ways}
        latents = {}
        for _ in range(asked.repeats):
            for name, pipeline in ways.items():
                found, latents[name] = seconds(pipeline, plan)
                took[name].append(found)
    for name, each in took.items():
        print(f"{name:10} {statistics.median(each) * 1e3:.1f} ms a step (least {min(each) * 1e3:.1f})")
    off = (latents["compiled"] - latents["plain"]).abs().max() / latents["plain"].abs().max()
    print(f"latents differ by {off:.1e} of the largest")


if __name__ == "__main__":
    main()
