"""Two ways to a picture: all of it at once, so many times, as a denoiser draws, and a token a pass, as a language model
writes.

    python benchmarks/two_ways.py [--steps 20 4] [--runs 5] [--device h100-sxm]

A table of the built-in `digits` with so many steps (guidance as it states it), of `digits-fast` and of `digits-ar`:
passes of denoiser or decoder, what a picture comes to from prompt to pixels, the seconds predicted, and where the
device is `this`, those measured on one thread: what it computed, others' part of a busy machine left out; the median
over prompts that none has seen before.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ridgeline.cli.options import device_named
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.pipeline_price import PipelineComponents, PipelinePrice, PipelineWorkload
from ridgeline.media.images.image_generator import TokenImageGenerator, load_image_generator
from ridgeline.price.device import Device

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ASKED = "a handwritten seven"


@dataclass(frozen=True)
class Way:
    """What a picture comes to. draw: draws one of a prompt."""

    name: str
    passes: int
    flops: float
    nbytes: float
    predicted: float
    draw: Callable[[str], object]


def denoised(pipeline: Pipeline, steps: int, device: Device) -> Way:
    """In so many steps."""
    vae = pipeline.autoencoder
    assert isinstance(vae, AutoencoderKL)
    plan = pipeline.plan(DiffusionRequest(ASKED, steps=steps, seed=0))
    texts = [len(text) for text in plan.token_ids]
    price = PipelinePrice(PipelineComponents(pipeline.encoder.models, (pipeline.denoiser,), vae))
    encode, _, decode = price.stages(device, PipelineWorkload(plan.geometry, steps, tuple(texts)))
    guidance = f"guidance {plan.scale:g}" if plan.passes > steps else "no guidance"
    calls = [texts] if plan.batching.paired else [[text] for text in texts]
    step = [price.call(device, plan.geometry, call) for call in calls]
    return Way(
        f"`{pipeline.name}`, {steps} steps, {guidance}",
        plan.passes,
        encode.flops + decode.flops + steps * sum(call.cost.total_flops for call in step),
        sum(stage.once.memory_bytes * stage.count for stage in (encode, decode))
        + steps * sum(call.cost.memory_bytes for call in step),
        encode.seconds.expected + decode.seconds.expected + steps * sum(call.expected for call in step),
        lambda prompt: pipeline.draw(DiffusionRequest(prompt, steps=steps, seed=0)),
    )


def written(drawer: TokenImageGenerator, device: Device) -> Way:
    """A token a pass."""
    plan = drawer.plan(ASKED, seed=0)
    forecast = drawer.forecast(plan, device)
    cost, seconds = forecast.cost, sum(forecast.seconds.values())

    def draw(prompt: str) -> None:
        for step in drawer.draw(drawer.plan(prompt, seed=0)):
            for tokens in step.finished.values():
                drawer.decode(tokens)

    return Way("`digits-ar`", plan.tokens, cost.total_flops, cost.memory_bytes, seconds, draw)


def measured(way: Way, runs: int) -> float:
    """Seconds of CPU a picture, after one that is not counted."""
    took = []
    for name in NAMES[: runs + 1]:
        start = time.process_time()
        way.draw(f"a handwritten {name}")
        took.append(time.process_time() - start)
    return statistics.median(took[1:])


def table(ways: Sequence[Way], runs: int) -> Iterator[str]:
    """Lines of Markdown. runs: 0 where nothing is measured."""
    head = ["", "passes", "GFLOP", "GB of weights and KV", "predicted", *(["measured"] if runs else [])]
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---'] * len(head))} |"
    for way in ways:
        took = [f"{measured(way, runs):.3f} s"] if runs else []
        predicted = f"{way.predicted:.3f} s" if runs else f"{1e3 * way.predicted:.2f} ms"
        cells = [way.name, way.passes, f"{way.flops / 1e9:.3g}", f"{way.nbytes / 1e9:.3g}", predicted, *took]
        yield f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 4])
    parser.add_argument("--runs", type=int, default=5, choices=range(1, len(NAMES)))
    parser.add_argument("--device", default="this")
    args = parser.parse_args()
    pipeline, fast = (load_pipeline(name, threads=1) for name in ("digits", "digits-fast"))
    drawer = load_image_generator(open_source("digits-ar"))
    torch.set_num_threads(1)
    device = device_named(args.device, 1)
    ways = [denoised(pipeline, steps, device) for steps in args.steps]
    ways += [denoised(fast, fast.kind.steps, device), written(drawer, device)]
    print(f"{device.title}{'' if device.calibrated else ', not calibrated'}")
    print("\n".join(table(ways, args.runs if args.device == "this" else 0)))


if __name__ == "__main__":
    main()
