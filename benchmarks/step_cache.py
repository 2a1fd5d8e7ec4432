"""What a step cache saves, and what it changes of what is drawn: digits, at several thresholds, beside whole passes.

    python -m benchmarks.step_cache [--steps 20 50] [--thresholds 0.05 0.1 ...] [--pictures 10] [--classifier RUN]

Each of the ten digits is asked for in so many pictures, drawn one by one with guidance. A row says which part of all
passes ran the first block alone, the median seconds of a picture's denoising (thresholds take turns, so that whatever
else the machine does falls on all of them), and how far the latents and the pixels are from those of whole passes:
the root of the mean squared difference beside that of the latents, and the PSNR of pixels from black to white. RUN is
that of zoo/digits/classifier.py, which says how often it reads the digit that was asked for.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from zoo.digits.classifier import classifier, read
from zoo.digits.prompts import DIGITS
from zoo.digits.training import averaged

from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)


@dataclass
class Drawn:
    """What was drawn at a threshold, in the order of all requests."""

    skipped: int = 0
    passes: int = 0
    seconds: list[float] = field(default_factory=list)
    latents: list[Tensor] = field(default_factory=list)
    pixels: list[Tensor] = field(default_factory=list)

    def draw(self, pipeline: Pipeline, request: DiffusionRequest) -> None:
        """A picture more."""
        plan = pipeline.plan(request)
        texts = pipeline.encode(plan)
        start = time.perf_counter()
        steps = list(pipeline.denoise(plan, texts))
        self.seconds.append(time.perf_counter() - start)
        self.skipped += sum(step.skipped for step in steps)
        self.passes += plan.passes
        self.latents.append(steps[-1].latents)
        self.pixels.append(pipeline.decode(steps[-1].latents).clamp(-1, 1))

    def row(self, whole: "Drawn", reader: nn.Module | None) -> str:
        """Beside what was drawn in whole passes."""
        ours, theirs = torch.cat(self.latents), torch.cat(whole.latents)
        distance = (ours - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)
        squares = (torch.cat(self.pixels) - torch.cat(whole.pixels)).flatten(1).square().mean(1)
        changed = f"{distance.median():.3f} | {(4 / squares).log10().mul(10).median():.1f}"
        took, usual = statistics.median(self.seconds), statistics.median(whole.seconds)
        cells = [f"{self.skipped / self.passes:.0%}", f"{took * 1e3:.0f}", f"x {usual / took:.2f}"]
        cells.append("- | -" if self is whole else changed)
        if reader is not None:
            digits = torch.arange(len(DIGITS)).repeat_interleave(len(self.pixels) // len(DIGITS))
            cells.append(f"{(read(reader, torch.cat(self.pixels)) == digits).float().mean():.1%}")
        return " | ".join(cells)


def measure(pipeline: Pipeline, steps: int, thresholds: Sequence[float], pictures: int) -> dict[float | None, Drawn]:
    """By threshold; None is no cache."""
    found: dict[float | None, Drawn] = {each: Drawn() for each in (None, *thresholds)}
    for name in DIGITS:
        for seed in range(pictures):
            for threshold, drawn in found.items():
                drawn.draw(
                    pipeline, DiffusionRequest(f"a handwritten {name}", steps=steps, seed=seed, step_cache=threshold)
                )
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--thresholds", type=float, nargs="+", default=THRESHOLDS)
    parser.add_argument("--pictures", type=int, default=10, help="of each digit")
    parser.add_argument("--classifier", type=Path, help="folder of the reader's run")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    pipeline = load_pipeline("digits", threads=asked.threads)
    reader = averaged(classifier(), asked.classifier) if asked.classifier else None
    read_right = " | read right" if reader else ""
    print(f"| steps | threshold | passes skipped | ms a picture | faster | latents off | PSNR, dB{read_right} |")
    print(f"|{' --- |' * (8 if reader else 7)}")
    for steps in asked.steps:
        found = measure(pipeline, steps, asked.thresholds, asked.pictures)
        for threshold, drawn in found.items():
            name = "off" if threshold is None else f"{threshold:g}"
            print(f"| {steps} | {name} | {drawn.row(found[None], reader)} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
