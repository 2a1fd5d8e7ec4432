"""Wan's pipelines against diffusers', from the prompt to latents and frames, in fp32 on small random weights: 2.1, 2.2
with two experts, and 2.2's 5B."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from diffusion.schedulers import relative
from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.pipelines import generators, wan

TOLERANCE = 1e-5
KINDS: dict[str, Callable[[Path], Any]] = {
    "2.1": wan,
    "two experts": lambda folder: wan(folder, experts=True),
    "5b": lambda folder: wan(folder, fifth=True),
    "flow-match Euler": lambda folder: wan(folder, scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0)),
}
REQUESTS = {
    "guidance, negative, two clips": DiffusionRequest(
        "a  cat\n runs &amp; jumps", "blur", Size(64, 32), 5, 3.0, 7, 2, frames=9
    ),
    "guidance, an empty negative, one frame": DiffusionRequest(
        "日本 🐈", None, Size(32, 64), 3, 1.5, 2**40, 1, frames=1
    ),
    "no guidance": DiffusionRequest("x", None, Size(64, 32), 4, 0.0, 0, 1, frames=5),
}


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Pipeline]:
    """Diffusers' pipeline, and ours of the folder that it wrote."""
    folder = tmp_path_factory.mktemp("wan")
    return KINDS[request.param](folder), load_pipeline(str(folder), threads=1)


def expected(theirs: Any, request: DiffusionRequest, output: str) -> Tensor:
    """Theirs of a request."""
    assert request.size is not None
    assert request.seed is not None
    given: Tensor = theirs(
        [request.prompt] * request.images,
        negative_prompt=[request.negative or ""] * request.images,
        height=request.size.height,
        width=request.size.width,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        guidance_scale_2=request.second_guidance,
        generator=generators(request.seed, request.images),
        output_type=output,
    ).frames
    return given


def latents_of(ours: Pipeline, request: DiffusionRequest) -> Tensor:
    """Ours when they are finished."""
    plan = ours.plan(request)
    return torch.cat([step.latents for step in ours.denoise(plan, ours.encode(plan)) if step.last])


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_latents_and_frames_are_the_references(both: tuple[Any, Pipeline], request_: DiffusionRequest) -> None:
    """Of clips of one frame and of several, with guidance and without."""
    theirs, ours = both
    latents = latents_of(ours, request_)
    assert relative(latents, expected(theirs, request_, "latent")) < TOLERANCE
    pixels = (ours.decode(latents) / 2 + 0.5).clamp(0, 1).transpose(1, 2)
    reference = torch.as_tensor(expected(theirs, request_, "pt"))
    assert pixels.shape == reference.shape
    assert relative(pixels, reference) < TOLERANCE


def test_two_scales(both: tuple[Any, Pipeline]) -> None:
    """Each expert has its own; a model of one denoiser refuses a second."""
    theirs, ours = both
    request = DiffusionRequest("a cat", "blur", Size(64, 32), 6, 4.0, 1, frames=5, second_guidance=1.5)
    if ours.low_noise_expert is None:
        with pytest.raises(ValueError, match="this model has one denoiser, but a second guidance scale needs two"):
            ours.plan(request)
        return
    latents = latents_of(ours, request)
    assert relative(latents, expected(theirs, request, "latent")) < TOLERANCE
    with pytest.raises(
        ValueError, match=r"the guidance scales are 4.0 and 0.0: turn guidance on for both experts, or for neither"
    ):
        ours.plan(DiffusionRequest("a cat", None, Size(64, 32), 6, 4.0, 1, frames=5, second_guidance=0.0))


def test_both_experts_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first from 0.875 of all noise on, the second below: of shifted steps the first ones."""
    wan(tmp_path, experts=True)
    ours, asked = load_pipeline(str(tmp_path), threads=1), list[int]()
    assert ours.low_noise_expert is not None
    for number, denoiser in enumerate((ours.denoiser, ours.low_noise_expert.denoiser)):
        denoiser.register_forward_pre_hook(lambda *_, number=number: asked.append(number))
    plan = ours.plan(DiffusionRequest("x", None, Size(64, 32), 8, 0.0, 0, frames=5))
    for _ in ours.denoise(plan, ours.encode(plan)):
        pass
    assert asked == [0 if time >= 875 else 1 for time in plan.schedule.timesteps]
    assert 0 < sum(asked) < 8


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        (0, "this model cannot make 0 frames: it makes 1 to 125 frames"),
        (8, r"this model cannot make 8 frames: the number must be 4k \+ 1, like 5 or 9"),
        (10**6, "this model cannot make 1000000 frames: it makes 1 to"),
    ],
)
def test_frames_that_cannot_be(both: tuple[Any, Pipeline], frames: int, problem: str) -> None:
    """With their neighbours, before anything runs. The denoiser has 32 places for frames of latents."""
    with pytest.raises(ValueError, match=problem):
        both[1].plan(DiffusionRequest("x", frames=frames, steps=1))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"boundary_ratio": None}, "boundary_ratio is missing; it is the noise level below which transformer_2 runs"),
        ({"boundary_ratio": 1.5}, "boundary_ratio is 1.5; it must be between 0 and 1"),
        ({"transformer_2": None}, "boundary_ratio is 0.875, but model_index.json lists no transformer_2"),
    ],
)
def test_experts_that_are_not_two(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    """One without the other is refused, not ignored."""
    wan(tmp_path, experts=True)
    index = tmp_path / "model_index.json"
    values = json.loads(index.read_text(encoding="utf-8")) | changes
    index.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    with pytest.raises(ModelRefused, match=problem):
        load_pipeline(str(tmp_path))
