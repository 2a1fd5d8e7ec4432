"""Wan's denoiser over the autoencoder of a picture, a frame of latents for each frame: latents are diffusers', a clip
is its frames, and how many there may be the parts say."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diffusion.schedulers import relative
from ridgeline.core.checkpoint.source import open_source
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.forecast import Forecaster
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.pipeline_price import PipelinePrice, PipelineWorkload
from ridgeline.price.devices import load_device
from support.pipelines import generators, wan_of_pictures

TOLERANCE = 1e-5
PLACES = 32  # of frames, lines and columns, that the denoiser has


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frames")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> tuple[Any, Any]:
    """Diffusers' pipeline, and the autoencoder that it cannot call."""
    return wan_of_pictures(folder, num_frames=6, num_inference_steps=3)


@pytest.fixture(scope="module")
def ours(folder: Path, theirs: tuple[Any, Any]) -> Pipeline:
    return load_pipeline(str(folder), threads=1)


def test_latents_and_frames_are_the_references(theirs: tuple[Any, Any], ours: Pipeline) -> None:
    """Of frames that are not 4k + 1, which another VAE wants. Theirs is asked for one less: where each is one of
    latents, it rounds their number up."""
    pipeline, autoencoder = theirs
    expected = pipeline(
        ["a cat runs"] * 2, negative_prompt=["blur"] * 2, height=32, width=64, num_frames=5, num_inference_steps=4,
        guidance_scale=3.0, generator=generators(7, 2), output_type="latent",
    ).frames  # fmt: skip
    plan = ours.plan(DiffusionRequest("a cat runs", "blur", Size(64, 32), 4, 3.0, 7, 2, frames=6))
    latents = torch.cat([step.latents for step in ours.denoise(plan, ours.encode(plan)) if step.last])
    assert latents.shape == (2, 4, 6, 4, 8)
    assert relative(latents, expected) < TOLERANCE
    pixels = ours.decode(latents)
    assert pixels.shape == (2, 3, 6, 32, 64)
    frames = expected.transpose(1, 2).flatten(0, 1) / 0.7 + 0.1
    decoded = autoencoder.decode(frames).sample.unflatten(0, (2, 6)).transpose(1, 2)
    assert relative(pixels, decoded) < TOLERANCE


def test_a_clip_comes_frame_by_frame(ours: Pipeline) -> None:
    """Each part is the decode of a picture, bit for bit."""
    latents = torch.randn(4, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    parts = list(ours.decode_parts(latents))
    assert [part.shape for part in parts] == [(3, 1, 32, 64)] * 3
    for number, part in enumerate(parts):
        assert torch.equal(part[:, 0], ours.decode(latents[None, :, number])[0])
    assert torch.equal(torch.cat(parts, 1), ours.decode(latents[None])[0])


def test_the_folder_and_its_parts_say_how_many_frames(ours: Pipeline) -> None:
    """What a request leaves open, any number up to the denoiser's places, and no more."""
    plan = ours.plan(DiffusionRequest("x", seed=1))
    assert (plan.geometry.frames, plan.schedule.steps, plan.geometry.latents) == (6, 3, (4, 6, 4, 8))
    assert plan.geometry.tokens == 6 * 2 * 4
    for frames in (1, 2, PLACES):
        assert ours.plan(DiffusionRequest("x", frames=frames)).geometry.latents[1] == frames
    with pytest.raises(ValueError, match=f"this model cannot make 33 frames: it makes 1 to {PLACES} frames"):
        ours.plan(DiffusionRequest("x", frames=PLACES + 1))


def test_a_clips_price_is_that_of_its_frames(folder: Path, ours: Pipeline) -> None:
    """The decode's, of a loaded pipeline and of its outline; activations are one frame's."""
    source, card = open_source(str(folder)), load_device("h100-sxm")
    parts = build_on_meta(source, torch.float32)
    usual = PipelineDefaults.of(source, parts)
    assert (usual.frames, usual.steps) == (6, 3)
    price = PipelinePrice(parts)
    one, six = (price.on(card, PipelineWorkload(ours.layout.geometry(Size(64, 32), n), 3, (5, 2))) for n in (1, 6))
    assert six.decode.flops == pytest.approx(6 * one.decode.flops)
    assert six.decode.runs == 6
    assert six.memory.whole == six.memory.tiled == one.memory.whole
    forecaster = Forecaster(ours, card)
    plan = ours.plan(DiffusionRequest("x", steps=3, frames=6, seed=0))
    assert forecaster.seconds(plan, None)["decode"] == pytest.approx(six.decode.seconds.expected)
