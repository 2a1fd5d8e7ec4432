"""One process of a pair that draws together: it imports what it needs, and none of the references."""

from dataclasses import replace
from datetime import timedelta

import torch
from torch import Tensor, distributed

from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline

REQUESTS = {
    "z-image": DiffusionRequest("a cat at night", "blurred", Size(96, 64), 3, 2.5, 7, 2),
    "wan": DiffusionRequest("a seven moving left", "still", Size(64, 32), 3, 4.0, 5, 1, frames=5, step_cache=9.0),
}
"""By the folder: a batch with a negative prompt, and a clip with a step cache."""


def latents_of(pipeline: Pipeline, request: DiffusionRequest, pair: CFGParallelPair | None = None) -> Tensor:
    """Finished latents, of two passes that are not one call."""
    plan = pipeline.plan(request, lambda _, texts: float(len(texts)))  # nothing is gained by a larger call
    assert not plan.batching.paired
    steps = list(pipeline.denoise(plan, pipeline.encode(plan), pair))
    skipped = sum(step.skipped for step in steps)
    assert skipped == (0 if request.step_cache is None else 4), "all but the first of either process"
    return torch.cat([step.latents for step in steps if step.last])


def run_process(rank: int, folder: str) -> None:
    """What each does: every request, saved for the test to compare, and what is refused."""
    store = distributed.FileStore(f"{folder}/meeting", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    refused = []
    for name, request in REQUESTS.items():
        pipeline = load_pipeline(f"{folder}/{name}", threads=1)
        torch.save(latents_of(pipeline, request, CFGParallelPair()), f"{folder}/{name}.{rank}.pt")
        for other in (replace(request, negative=None, guidance=0.0), replace(request, seed=rank)):
            try:
                latents_of(pipeline, other, CFGParallelPair())
            except ValueError as error:
                refused.append(str(error))
    torch.save(refused, f"{folder}/refused.{rank}.pt")
    distributed.destroy_process_group()
