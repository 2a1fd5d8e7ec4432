"""PixArt's pipelines against diffusers', from the prompt to latents and pixels, in fp32 on small random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffusion.schedulers import relative
from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.checkpoints import edit_config
from support.pipelines import generators, pixart

TOLERANCE = 1e-5
CLASSES: dict[str, Callable[[Path], Any]] = {
    "sigma": lambda folder: pixart(folder, sigma=True),
    "alpha": lambda folder: pixart(folder, sigma=False),
    "lcm": lambda folder: pixart(folder, sigma=False, consistent=True),
}
REQUESTS = {
    "guidance, negative, two images": DiffusionRequest("  a Cat, naïve ", "Blurred", Size(96, 64), 5, 3.0, 7, 2),
    "guidance, an empty negative": DiffusionRequest("日本 🐈", None, Size(64, 96), 3, 1.5, 2**40, 1),
    "no guidance": DiffusionRequest("x", None, Size(64, 64), 4, 0.0, 0, 2),
}


@pytest.fixture(scope="module", params=CLASSES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Pipeline]:
    """Diffusers' pipeline, and ours of the folder that it wrote."""
    folder = tmp_path_factory.mktemp(request.param)
    return CLASSES[request.param](folder), load_pipeline(str(folder), threads=1)


def expected(theirs: Any, request: DiffusionRequest, output: str) -> Tensor:
    """Theirs of a request."""
    assert request.size is not None
    assert request.seed is not None
    given: Tensor = theirs(
        [request.prompt] * request.images,
        negative_prompt=request.negative or "",
        height=request.size.height,
        width=request.size.width,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        generator=generators(request.seed, request.images),
        clean_caption=False,
        use_resolution_binning=False,
        output_type=output,
    ).images
    return given


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_latents_and_pixels_are_the_references(both: tuple[Any, Pipeline], request_: DiffusionRequest) -> None:
    """With guidance and without; texts in small letters, masked beside each other there and apart here."""
    theirs, ours = both
    plan = ours.plan(request_)
    latents = torch.cat([step.latents for step in ours.denoise(plan, ours.encode(plan)) if step.last])
    assert relative(latents, expected(theirs, request_, "latent")) < TOLERANCE
    pixels = (ours.decode(latents) / 2 + 0.5).clamp(0, 1)
    assert relative(pixels, torch.as_tensor(expected(theirs, request_, "np")).permute(0, 3, 1, 2)) < TOLERANCE


def test_the_longest_texts(both: tuple[Any, Pipeline]) -> None:
    """With the end of the text; a longer one is refused, where the reference cuts it."""
    _, ours = both
    most = ours.encoder.most_tokens
    assert most == (300 if ours.kind.layout and "Sigma" in type(both[0]).__name__ else 120)
    assert len(ours.encoder.ids("x" * (most - 1))) == most
    with pytest.raises(ValueError, match=r"prompt.* has .*tokens.* the text encoder reads at most"):
        ours.plan(DiffusionRequest("x" * most, steps=1))


def test_a_scheduler_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Noise would be taken for a velocity."""
    pixart(tmp_path, sigma=True)
    scheduler = tmp_path / "scheduler"
    (scheduler / "scheduler_config.json").rename(scheduler / "config.json")
    edit_config(scheduler, prediction_type="flow_prediction", use_flow_sigmas=True)
    (scheduler / "config.json").rename(scheduler / "scheduler_config.json")
    with pytest.raises(ModelRefused, match="the transformer predicts noise, but the scheduler expects velocity: set"):
        load_pipeline(str(tmp_path))
