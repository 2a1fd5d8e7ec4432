"""CFG-parallel: two processes over gloo, each with one pass of a step, have the latents of one process."""

from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from diffusion.pair_process import REQUESTS, latents_of, run_process
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.pipelines import wan_of_pictures, z_image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pipelines, and what two processes made of them."""
    folder = tmp_path_factory.mktemp("pair")
    z_image(folder / "z-image")
    wan_of_pictures(folder / "wan")  # a VAE that needs no diffusers, which takes each process seconds to import
    multiprocessing.spawn(run_process, (str(folder),), nprocs=2)
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
        refused = torch.load(folder / f"refused.{rank}.pt")
        assert len(refused) == 2 * len(REQUESTS)
        assert all("one pass, which CFG parallelism cannot divide" in said for said in refused[::2])
        assert all("one CFG-parallel process has seed 0, the other 1" in said for said in refused[1::2])
    with pytest.raises(ValueError, match="runs in two processes: start two"):
        CFGParallelPair()
