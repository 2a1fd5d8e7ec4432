"""CFG-parallel: two processes over gloo, each with one pass of a step, have the latents of one process."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from ridgeline.diffusion.geometry import Size
from ridgeline.diffusion.loading import load_pipeline
from ridgeline.diffusion.pair import Pair
from ridgeline.diffusion.pipeline import Pipeline
from ridgeline.diffusion.request import Request
from support.pipelines import wan, z_image

REQUESTS = {
    "z-image": Request("a cat at night", "blurred", Size(96, 64), 3, 2.5, 7, 2),
    "wan": Request("a seven moving left", "still", Size(64, 32), 3, 4.0, 5, 1, frames=5, step_cache=9.0),
}
"""By the folder: a batch with a negative prompt, and a clip with a step cache."""


def latents_of(pipeline: Pipeline, request: Request, pair: Pair | None = None) -> torch.Tensor:
    """Finished latents, of two passes that are not one call."""
    plan = pipeline.plan(request, lambda _, texts: float(len(texts)))  # nothing is gained by a larger call
    assert not plan.batching.paired
    steps = list(pipeline.denoise(plan, pipeline.encode(plan), pair))
    skipped = sum(step.skipped for step in steps)
    assert skipped == (0 if request.step_cache is None else 4), "all but the first of either process"
    return torch.cat([step.latents for step in steps if step.last])


def _process(rank: int, folder: str) -> None:
    """What each does: every request, saved for the test to compare, and what is refused."""
    store = distributed.FileStore(f"{folder}/meeting", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    refused = []
    for name, request in REQUESTS.items():
        pipeline = load_pipeline(f"{folder}/{name}", threads=1)
        torch.save(latents_of(pipeline, request, Pair()), f"{folder}/{name}.{rank}.pt")
        for other in (replace(request, negative=None, guidance=0.0), replace(request, seed=rank)):
            with pytest.raises(ValueError, match=r"guidance is off|give both one") as error:
                latents_of(pipeline, other, Pair())
            refused.append(str(error.value))
    torch.save(refused, f"{folder}/refused.{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pipelines, and what two processes made of them."""
    folder = tmp_path_factory.mktemp("pair")
    z_image(folder / "z-image")
    wan(folder / "wan")
    multiprocessing.spawn(_process, (str(folder),), nprocs=2)
    return folder


@pytest.mark.parametrize("name", REQUESTS)
def test_two_processes_have_the_latents_of_one(folder: Path, name: str) -> None:
    """Bit for bit, and both of them."""
    alone = latents_of(load_pipeline(str(folder / name), threads=1), REQUESTS[name])
    for rank in range(2):
        assert torch.equal(torch.load(folder / f"{name}.{rank}.pt"), alone)


def test_what_a_pair_cannot_do(folder: Path) -> None:
    """One pass a step, and steps from two noises; two processes that are not there."""
    for rank in range(2):
        off, seeds = torch.load(folder / f"refused.{rank}.pt")[:2]
        assert "one pass, which a pair does not divide" in off
        assert "one process of the pair has seed 0, the other 1" in seeds
    with pytest.raises(ValueError, match="runs on two processes; start two"):
        Pair()
