"""The built-in pipeline of clips: diffusers' has the same latents of its folder, prompts act, and drawing needs nothing
of diffusers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline
from PIL import Image
from torch import Tensor
from zoo.digits_video.measures import directions, speeds

from ridgeline.core.checkpoint.source import BUILTIN
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.pipelines import widen

FOLDER = BUILTIN / "digits-video"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load_pipeline("digits-video", threads=1)


def drawn(pipeline: Pipeline, *prompts: str) -> Tensor:
    """A clip of each [clips, frames, 1, lines, columns]."""
    clips = [pipeline.draw(DiffusionRequest(prompt, steps=4, seed=seed)) for seed, prompt in enumerate(prompts)]
    return torch.cat(clips).clamp(-1, 1).transpose(1, 2)


def test_diffusers_has_the_same_latents_of_the_folder(tmp_path: Path) -> None:
    """Tokenizer, encoder, padding, denoiser, guidance, schedule, sampler. Theirs wants a VAE of clips to decode, and
    rounds frames up where each is one of latents."""
    widen(FOLDER, tmp_path)
    theirs = WanPipeline.from_pretrained(tmp_path, torch_dtype=torch.float32, vae=None)
    theirs.vae_scale_factor_temporal, theirs.vae_scale_factor_spatial = 1, 2
    theirs.set_progress_bar_config(disable=True)
    expected = theirs(
        "a seven moving left", height=32, width=32, num_frames=8, num_inference_steps=4, guidance_scale=4.0,
        generator=torch.Generator().manual_seed(7), output_type="latent",
    ).frames  # fmt: skip
    ours = load_pipeline(str(tmp_path), threads=1)
    plan = ours.plan(DiffusionRequest("a seven moving left", steps=4, guidance=4.0, seed=7))
    *_, last = ours.denoise(plan, ours.encode(plan))
    assert last.latents.shape == expected.shape == (1, 4, 9, 16, 16)
    assert float((last.latents - expected).abs().max() / expected.abs().max()) < 1e-3


def test_a_prompt_is_followed(pipeline: Pipeline) -> None:
    """Clips move where they are told to, at about the speed that was trained; a one is narrower than a zero."""
    ways = ["left", "right", "up", "down"]
    moving = drawn(pipeline, *[f"a {digit} moving {way}" for way in ways for digit in ("zero", "one")])
    assert directions(moving) == [way for way in ways for _ in range(2)]
    assert 0.8 < float(speeds(moving).abs().amax(-1).median()) < 1.2
    zeros, ones = moving[::2], moving[1::2]
    assert float((ones > 0).sum()) < 0.6 * float((zeros > 0).sum())


def test_a_folder_states_what_a_request_leaves_open(pipeline: Pipeline) -> None:
    plan = pipeline.plan(DiffusionRequest("a seven moving left", seed=1))
    assert (plan.schedule.steps, plan.scale, plan.passes, plan.geometry.frames) == (20, 4.0, 40, 9)
    assert plan.geometry.latents == (4, 9, 16, 16)
    assert plan.geometry.tokens == 9 * 16


def test_what_it_was_not_trained_for_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="32x32"):
        pipeline.plan(DiffusionRequest("a seven moving left", size=Size(64, 64)))
    with pytest.raises(ValueError, match="this model cannot make 13 frames: it makes 1 to 9 frames"):
        pipeline.plan(DiffusionRequest("a seven moving left", frames=13))


def test_nothing_of_diffusers_is_needed(tmp_path: Path) -> None:
    """Nor of av: what the base install has draws a clip, and writes a GIF."""
    without = 'sys.modules["diffusers"] = sys.modules["av"] = None'
    code = f'import runpy, sys; {without}; runpy.run_module("ridgeline", run_name="__main__")'
    file = tmp_path / "seven.gif"
    asked = ["video", "digits-video", "a seven moving left", "--steps", "1", "--quiet", "-o", str(file)]
    ended = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    with Image.open(file) as image:
        assert (image.size, image.n_frames) == ((32, 32), 9)  # type: ignore[attr-defined]


def test_it_stays_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 5e6
