"""Compiled blocks: what is drawn is what is drawn without, of each class of denoisers, in fp32 on random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import utils
from torch._inductor import config

from diffusion.schedulers import relative
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import compile_blocks
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.flux_pipelines import klein
from support.pipelines import wan, z_image

TOLERANCE = 1e-5
KINDS: dict[str, tuple[Callable[[Path], Any], DiffusionRequest]] = {
    "z-image": (z_image, DiffusionRequest("a cat", "blurred", Size(64, 64), 2, 2.0, 7)),
    "klein": (lambda folder: klein(folder, distilled=False), DiffusionRequest("a cat", None, Size(64, 64), 2, 2.0, 7)),
    "wan": (wan, DiffusionRequest("a cat", "blurred", Size(64, 32), 2, 2.0, 7, frames=5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_what_is_drawn_is_the_same(name: str, tmp_path: Path) -> None:
    """With guidance; all graphs are there before the first step."""
    make, request = KINDS[name]
    make(tmp_path)
    pipeline = load_pipeline(str(tmp_path), threads=1)
    plan = pipeline.plan(request)
    texts = pipeline.encode(plan)
    *_, whole = pipeline.denoise(plan, texts)
    torch._dynamo.reset()
    utils.counters.clear()
    assert compile_blocks(pipeline, plan, texts) > 1
    graphs = utils.counters["stats"]["unique_graphs"]
    *_, compiled = pipeline.denoise(plan, texts)
    assert utils.counters["stats"]["unique_graphs"] == graphs > 0
    assert relative(compiled.latents, whole.latents) < TOLERANCE


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that says what is missing; nothing was compiled, so that nothing of torch's stays in the interpreter."""
    z_image(tmp_path)
    pipeline = load_pipeline(str(tmp_path), threads=1)
    plan = pipeline.plan(DiffusionRequest("a cat", None, Size(64, 64), 1, 0.0, 7))
    monkeypatch.setattr(config.cpp, "cxx", (None, "/nowhere/g++"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"^--compile needs a C\+\+ compiler, and none works here"):
        compile_blocks(pipeline, plan, pipeline.encode(plan))
