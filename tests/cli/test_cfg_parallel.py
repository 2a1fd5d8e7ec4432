"""`ridgeline image --cfg-parallel`: the picture of one process, drawn by two, and what is said where one fails."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from cli.running import INTERRUPTED, OK, USAGE, Run, assert_one_line
from ridgeline.media.diffusion import cfg_parallel_process
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import DenoiseOutput, Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.saved_latents import latents_path, read_latents

REQUEST = ("a cat", "--negative", "blurred", "--size", "64x64", "--steps", "3", "--guidance", "2", "--seed", "5")
Children = list["subprocess.Popen[bytes]"]

pytestmark = pytest.mark.usefixtures("not_probed")


@pytest.fixture(scope="module")
def folder(z_image_folder: Path) -> Path:
    return z_image_folder


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """The second processes that a test starts; none outlives its command."""
    started: Children = []
    popen = subprocess.Popen

    def start(*args: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(cfg_parallel_process.subprocess, "Popen", start)
    yield started
    assert all(child.returncode is not None for child in started)
    assert not distributed.is_initialized()


def test_two_processes_draw_what_one_does(ridgeline: Run, folder: Path, tmp_path: Path, children: Children) -> None:
    """The latents of two passes, bit for bit, and one process' words."""
    path = tmp_path / "cat.png"
    ended = ridgeline("image", folder, *REQUEST, "-o", path, "-n", 2, "--cfg-parallel", "--keep-latents")
    assert ended.code == OK, ended.err
    assert ended.out.splitlines() == [str(tmp_path / f"cat-{image}.png") for image in (1, 2)]
    assert "3 steps x 2 = 6 passes per image" in ended.err
    assert "both passes of a step in one call" not in ended.err
    assert "a second process runs one pass of each step and loads the weights again: " in ended.err
    assert ended.err.count("denoise") == 2, "predicted, and measured"
    assert len(children) == 1
    pipeline = load_pipeline(str(folder), threads=1)
    request = DiffusionRequest("a cat", "blurred", Size(64, 64), 3, 2.0, 5, 2)
    plan = pipeline.plan(request, lambda _, texts: float(len(texts)))
    steps = list(pipeline.denoise(plan, pipeline.encode(plan)))
    for image, latents in enumerate(step.latents[0] for step in steps if step.last):
        assert torch.equal(read_latents(latents_path(tmp_path / f"cat-{image + 1}.png"))[0], latents)


def _before_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Something happens when so many steps are done."""
    denoise = Pipeline.denoise

    def watched(
        self: Pipeline, plan: DiffusionPlan, texts: Sequence[Tensor], pair: CFGParallelPair | None = None
    ) -> Iterator[DenoiseOutput]:
        for step in denoise(self, plan, texts, pair):
            if step.number == number:
                act()
            yield step

    monkeypatch.setattr(Pipeline, "denoise", watched)


def test_the_second_process_dies(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    _before_step(monkeypatch, 1, lambda: os.kill(children[0].pid, signal.SIGKILL))
    ended = ridgeline("image", folder, *REQUEST, "-o", tmp_path / "cat.png", "--cfg-parallel", "--quiet")
    assert_one_line(ended, USAGE, "the second CFG-parallel process has ended: killed by signal 9")
    assert not list(tmp_path.iterdir())


def test_the_second_process_does_not_start(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    monkeypatch.setattr(cfg_parallel_process.sys, "executable", "/bin/false")
    ended = ridgeline("image", folder, *REQUEST, "-o", tmp_path / "cat.png", "--cfg-parallel", "--quiet")
    assert_one_line(ended, USAGE, "the second CFG-parallel process did not start: exit code 1")


def test_an_interrupt(
    ridgeline: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    """Stops both between two steps; what would have come is kept."""
    _before_step(monkeypatch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    path = tmp_path / "cat.png"
    ended = ridgeline("image", folder, *REQUEST, "-o", path, "--cfg-parallel")
    assert ended.code == INTERRUPTED, ended.err
    assert ended.err.splitlines()[-1].startswith("stopped after step 2 of 3; ")
    assert read_latents(latents_path(path))[1]["stopped"] == "step 2 of 3"


def test_what_has_no_pair(ridgeline: Run, folder: Path, tmp_path: Path, children: Children) -> None:
    """Steps of one pass, and what is only decoded: no second process is started."""
    off = ridgeline("image", folder, "a cat", "--guidance", 0, "-o", tmp_path / "cat.png", "--cfg-parallel", "--quiet")
    assert_one_line(
        off, USAGE, "guidance is off, so a step is one pass, which CFG parallelism cannot divide: run one process"
    )
    saved = ridgeline("image", folder, "--latents", tmp_path / "none", "--cfg-parallel")
    assert_one_line(saved, USAGE, "--cfg-parallel is for generation")
    assert not children
