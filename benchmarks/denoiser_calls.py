"""The time of a denoiser that is called directly, compared with one that a pipeline calls: in turn, in one run.

    python benchmarks/denoiser_calls.py [--model digits] [--hidden 768] [--steps 8] [--repeats 15]

The same latents, noise levels and text, without guidance and without a sampler. `direct` is what `load_denoiser` gives,
called with the text at every step; `prepared` is called with what `prepare` made of it; `pipeline` is
`Pipeline.denoise`, which also takes a sampler's step. Seconds are those of the wall and of all threads. --hidden: a
denoiser of so many numbers a row, with random weights, in place of the model's: one that is no small model and so has
all cores. It is made by diffusers.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ridgeline import load_pipeline
from ridgeline.backends.model_loader import load_denoiser
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models.common.denoiser import Denoiser, Texts
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.pipeline import Pipeline


def widened(folder: Path, hidden: int, to: Path) -> None:
    """Save a denoiser of Z-Image's class with random weights, like that of a folder but for its width."""
    from diffusers import ZImageTransformer2DModel

    config = {name: value for name, value in json.loads((folder / "config.json").read_text()).items() if name[0] != "_"}
    heads = hidden // sum(config["axes_dims"])
    ZImageTransformer2DModel(**config | {"dim": hidden, "n_heads": heads, "n_kv_heads": heads}).save_pretrained(to)


def calls(denoiser: Denoiser, plan: DiffusionPlan, texts: Texts) -> None:
    """Call a denoiser once a step."""
    latents = Noise(plan.seed, 1, plan.geometry.latents)()
    for step in range(plan.schedule.steps):
        denoiser(latents, plan.schedule.time(step), texts)


def ways(pipeline: Pipeline, denoiser: Denoiser, plan: DiffusionPlan) -> dict[str, Callable[[], object]]:
    """Return the measured ways of calling a denoiser, by name."""
    texts = pipeline.encode(plan)
    return {
        "pipeline": lambda: [step.number for step in pipeline.denoise(plan, texts)],
        "direct": lambda: calls(denoiser, plan, texts),
        "prepared": lambda: calls(denoiser, plan, denoiser.prepare(texts)),
    }


def main() -> None:
    """Print milliseconds a step of each way, and its ratio to the pipeline's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args()
    folder = open_source(asked.model).components["transformer"].folder
    with tempfile.TemporaryDirectory() as wide:
        if asked.hidden:
            widened(folder, asked.hidden, Path(wide))
            folder = Path(wide)
        pipeline = load_pipeline(asked.model)
        denoiser = load_denoiser(str(folder))
        if asked.hidden:
            pipeline.denoiser = denoiser
        plan = pipeline.plan(DiffusionRequest("a handwritten seven", steps=asked.steps, guidance=0.0, seed=1))
        measured = ways(pipeline, denoiser, plan)
        wall: dict[str, list[float]] = {name: [] for name in measured}
        spent: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(asked.repeats):
            for name, way in measured.items():
                start, used = time.perf_counter(), time.process_time()
                way()
                wall[name].append((time.perf_counter() - start) / asked.steps)
                spent[name].append((time.process_time() - used) / asked.steps)
    print(f"{asked.model}, {torch.get_num_threads()} threads of torch, {asked.repeats} times in turn; ms a step:")
    for name in measured:
        ratio = statistics.median(own / theirs for own, theirs in zip(wall[name], wall["pipeline"], strict=True))
        print(
            f"{name:9} {statistics.median(wall[name]) * 1e3:8.2f} (least {min(wall[name]) * 1e3:.2f}), "
            f"x {ratio:.2f} of the pipeline's in turn; all threads {min(spent[name]) * 1e3:.2f}, "
            f"x {min(spent[name]) / min(spent['pipeline']):.2f}"
        )


if __name__ == "__main__":
    main()
